"""Provide the random numbers of a client's training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

RngFactory = Callable[[str], np.random.Generator]
"""The generator of a purpose, fresh at every call: ``fedquorum.rng`` for one round and client.
"""


@contextmanager
def seed_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Let layers that draw from torch's generators draw from ``seed``, then put those back.

    Parameters
    ----------
    seed : int
        At least 0, below 2^64.
    device : torch.device
        Where the layers compute; of several GPUs only this one's generator is seeded.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


def uses_rng(model: nn.Module) -> bool:
    """Return whether a model draws random numbers while it trains, or may.

    Layers of torch without dropout do not, nor do the models here beside their layers; of
    others nobody knows.
    """
    return any(_uses_rng(layer) for layer in model.modules())


def _uses_rng(layer: nn.Module) -> bool:
    if isinstance(layer, nn.modules.dropout._DropoutNd):  # noqa: SLF001
        return layer.p > 0
    is_known = type(layer).__module__.startswith(("torch.nn.modules.", "client_app."))
    return not is_known or isinstance(layer, nn.RReLU) or getattr(layer, "dropout", 0) != 0
