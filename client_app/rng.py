"""Provide the random generators of a client's training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from fedquorum.rng import make_generator
from torch import nn

RngFactory = Callable[[str], np.random.Generator]
"""Returns a new generator for a purpose, from ``fedquorum.rng`` for one round and client."""


def build_rng_factory(seed: int, round_number: int, client: int, prefix: str = "") -> RngFactory:
    """Return the generators of a client's training in a round.

    Parameters
    ----------
    seed : int
        The run's seed.
    round_number : int
        The round, from 1.
    client : int
    prefix : str
        The beginning of each purpose, which separates another kind of training from the rounds'.
    """

    def make_for_purpose(purpose: str) -> np.random.Generator:
        return make_generator(seed, prefix + purpose, round_number, client)

    return make_for_purpose


@contextmanager
def seed_torch(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, which some layers use, and restore their state at the end.

    Parameters
    ----------
    seed : int
        At least 0, below 2^64.
    device : torch.device
        The device of the layers; only the generator of this GPU is seeded.
    """
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


def has_random_layers(model: nn.Module) -> bool:
    """Return whether a model may draw random numbers while it trains.

    torch's layers without dropout do not, and neither do the modules of this package. Any other
    layer is assumed to.
    """
    return any(_is_random_layer(layer) for layer in model.modules())


def _is_random_layer(layer: nn.Module) -> bool:
    if isinstance(layer, nn.modules.dropout._DropoutNd):  # noqa: SLF001
        return layer.p > 0
    is_known = type(layer).__module__.startswith(("torch.nn.modules.", "client_app."))
    dropout = getattr(layer, "dropout", 0)
    # A number is that of a recurrent or attention layer; a layer counts by itself.
    draws_masks = not isinstance(dropout, nn.Module) and dropout != 0
    return not is_known or isinstance(layer, nn.RReLU) or draws_masks
