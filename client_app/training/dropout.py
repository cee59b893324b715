"""Apply dropout with explicit masks, so that a client's mask does not depend on other clients."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn


class MaskedDropout(nn.Module):
    """Multiply by ``mask``, whose numbers are 0 with probability p and otherwise 1 / (1 - p).

    The mask of a batch, (n, *shape), is a buffer that is not part of the model's state.

    Parameters
    ----------
    p : float
        Fraction of numbers dropped, in [0, 1).
    """

    mask: torch.Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.shape: tuple[int, ...] = ()
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` (n, *shape) times the mask in training, and unchanged otherwise."""
        if not self.training:
            self.shape = tuple(x.shape[1:])
        if not self.training or self.p == 0:
            return x
        return x * self.mask

    def draw_mask(self, n: int, rng: np.random.Generator) -> torch.Tensor:
        """Return the mask for a batch of ``n`` samples, on the CPU."""
        keep_mask = torch.from_numpy(rng.random((n, *self.shape), dtype=np.float32)) >= self.p
        return keep_mask.to(torch.float32) / (1 - self.p)


def replace_dropout(model: nn.Module, inputs: torch.Tensor) -> nn.Module:
    """Replace each ``nn.Dropout`` of ``model`` with a ``MaskedDropout``.

    ``inputs`` (n, *input_shape) pass through the model once to determine the masks' shapes.
    """
    for name, module in list(model.named_modules()):
        if type(module) is nn.Dropout:
            parent = model.get_submodule(name.rpartition(".")[0])
            # Other modules may read p, as DistilBERT's attention does.
            setattr(parent, name.rpartition(".")[2], MaskedDropout(module.p))
    if any(True for _ in find_dropouts(model)):
        model.eval()
        with torch.no_grad():
            model(inputs)
    return model


def find_dropouts(model: nn.Module) -> Iterator[tuple[str, MaskedDropout]]:
    """Yield each layer with p > 0 and the name of its mask, in the model's order."""
    for name, module in model.named_modules():
        if isinstance(module, MaskedDropout) and module.p > 0:
            yield f"{name}.mask", module
