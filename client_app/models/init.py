"""Initialize models with other values than torch's."""

from collections.abc import Callable
from functools import partial

import torch
from fedquorum.errors import SettingsError
from torch import nn

_INITIALIZERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "kaiming": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
    "xavier": nn.init.xavier_normal_,
    "zeros": nn.init.zeros_,
}


def initialize_weights(model: nn.Module, scheme: str) -> None:
    """Initialize the weights of convolutions and fully connected layers, and set biases to 0.

    ``default``  unchanged: the model's initialization, which is torch's for most models
    ``kaiming``  N(0, 2 / fan-in), as in FedALIGN's and FedAU's experiments
    ``xavier``   N(0, 2 / (fan-in + fan-out)), as AAggFF's authors do
    ``zeros``    0, an unbiased start of a convex training

    All other layers are unchanged: LSTM layers, embeddings and normalizations start from torch's
    values under AAggFF's authors' ``xavier`` too (their src/utils.py, init_weights).

    Raises
    ------
    SettingsError
        For zeros in a model of more than one such layer, whose gradients would stay 0.

    References
    ----------
    He et al., Delving deep into rectifiers (ICCV 2015); Glorot and Bengio, Understanding the
    difficulty of training deep feedforward neural networks (AISTATS 2010).
    """
    if scheme == "default":
        return
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Linear))]
    if scheme == "zeros" and len(layers) > 1:
        raise SettingsError(
            f"model.init=zeros needs a model of one layer, got {len(layers)} layers, whose "
            "gradients would stay 0"
        )
    for layer in layers:
        _INITIALIZERS[scheme](layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
