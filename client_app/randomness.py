"""Where a client's training draws its random numbers from."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

Draws = Callable[[str], np.random.Generator]
"""The generator of a purpose, fresh at every call: ``strategies.streams`` for one round and client.
"""


@contextmanager
def torch_seeded(seed: int, device: torch.device) -> Iterator[None]:
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
