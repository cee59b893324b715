"""Independent random streams, each derived from (seed, purpose, round, client id).

Nothing in the project draws from a global generator, but layers that draw from torch's, which is
seeded from here while they do. A client's draws therefore depend neither on which node hosts it,
nor on who else takes part, nor on the order of calls. The noise of differential privacy is drawn
elsewhere (``fedquorum.privacy``), from no seed.
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
        What the numbers are for, e.g. ``"batches"``; different words, different streams.
    round_number : int
        Round, from 0 (0 as well for what happens once in a run).
    client : int
        Client id (0 for what concerns no single client).
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), round_number, client])


def derive_seed(seed: int, purpose: str) -> int:
    """Return a 31-bit seed for a library that takes a number instead of a generator."""
    return int(make_generator(seed, purpose).integers(2**31))
