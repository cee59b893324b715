"""Make independent random streams, each derived from (seed, purpose, round, client id).

The project does not use global generators, except for layers that sample from torch's, which is
seeded from here while they run. A client's random numbers therefore depend neither on its node, nor
on the other participants, nor on the order of calls. The noise of differential privacy
(``fedquorum.server.privacy``) has no seed.
"""

import zlib

import numpy as np

__all__ = ["derive_seed", "make_generator"]


def make_generator(
    seed: int, purpose: str, round_number: int = 0, client: int = 0
) -> np.random.Generator:
    """Return the generator of one purpose, round and client.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0.
    purpose : str
        The use of the numbers, e.g. ``"batches"``; each purpose has its own stream.
    round_number : int
        The round, from 0; also 0 for a purpose once per run.
    client : int
        The client id; also 0 for a purpose of all clients.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round_number, client])


def derive_seed(seed: int, purpose: str) -> int:
    """Return a 31-bit seed for a library that takes a number instead of a generator."""
    return int(make_generator(seed, purpose).integers(2**31))
