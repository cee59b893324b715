"""Build EfficientNet, from torchvision."""

from pathlib import Path

import torch
from fedquorum.errors import SettingsError, to_one_line
from torch import nn


def build_efficientnet(
    variant: str,
    num_classes: int,
    pretrained: str | None = None,
    *,
    dropout: float | None = None,
) -> nn.Module:
    """Return torchvision's EfficientNet for images (n, 3, height, width), logits (n, num_classes).

    The running means and variances of its batch normalization are part of the model: they are
    sent, and averaged with the same weights as the parameters. In training it drops whole
    residual branches and features at random, as torchvision's does. AAggFF's authors compute the
    logits from the 7 x 7 features of a 200 x 200 image, torchvision from their mean.

    Parameters
    ----------
    variant : str
        b0 to b7.
    num_classes : int
        Number of logits.
    pretrained : str, optional
        A file of weights as torchvision publishes them. The weights of the logits are used if their
        number is the same, and left out otherwise.
    dropout : float, optional
        Fraction of features dropped before the logits in training; torchvision's for the variant
        (0.2 for b0) if None, 0.1 in AAggFF's experiments.

    Raises
    ------
    SettingsError
        If the file does not have such weights.

    References
    ----------
    Tan and Le, EfficientNet: rethinking model scaling for convolutional neural networks
    (ICML 2019).
    """
    # Importing takes seconds, so only if this model is used.
    from torchvision import models

    given = {} if dropout is None else {"dropout": dropout}
    model: nn.Module = getattr(models, f"efficientnet_{variant}")(num_classes=num_classes, **given)
    if pretrained is not None:
        try:
            _load_weights(model, Path(pretrained).expanduser())
        except Exception as error:  # a foreign file may raise anything
            raise SettingsError(
                f"model.pretrained must be a file with torchvision's weights of efficientnet_"
                f"{variant}, got {pretrained!r}: {to_one_line(error)}"
            ) from None
    return model


def _load_weights(model: nn.Module, path: Path) -> None:
    weights = torch.load(path, map_location="cpu", weights_only=True)
    state = model.state_dict()
    for name in ("classifier.1.weight", "classifier.1.bias"):
        if weights[name].shape != state[name].shape:
            weights[name] = state[name]
    model.load_state_dict(weights)
