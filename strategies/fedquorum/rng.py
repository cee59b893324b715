"""Make independent random streams, each derived from (seed, purpose, round, client id).

The project does not use global generators, except for layers that sample from torch's, which is
seeded from here while they run. A client's random numbers therefore depend neither on its node, nor
on the other participants, nor on the order of calls. The noise of differential privacy
(``fedquorum.server.privacy``) has no seed.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["derive_seed", "draw_normals", "make_generator"]


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
    words = [seed, zlib.crc32(purpose.encode()), round_number, client]
    # NumPy converts the numbers of a list one by one to the same 32-bit words, which takes longer.
    fits = min(words) >= 0 and max(words) < 2**32
    return np.random.default_rng(np.array(words, np.uint32) if fits else words)


def derive_seed(seed: int, purpose: str) -> int:
    """Return a 31-bit seed for a library that takes a number instead of a generator."""
    return int(make_generator(seed, purpose).integers(2**31))


def draw_normals(
    seed: int, purpose: str, rounds: Sequence[int], clients: Sequence[int]
) -> NDArray[np.float64]:
    """Return the first standard normal number of each round's and client's ``make_generator``.

    ``rounds`` and ``clients`` have n numbers each, and so has the result.

    Building a generator takes longer than drawing from it, so the seeds of many clients are
    computed together, by the algorithms that NumPy guarantees for ``SeedSequence`` and ``PCG64``.
    """
    word = zlib.crc32(purpose.encode())
    largest = max(seed, max(rounds, default=0), max(clients, default=0))
    if len(clients) < MIN_JOINT_DRAWS or largest >= 2**32:
        pairs = zip(rounds, clients, strict=True)
        generators = (make_generator(seed, purpose, t, client) for t, client in pairs)
        return np.array([rng.standard_normal() for rng in generators])
    bits = np.random.PCG64(0)
    rng, numbers = np.random.Generator(bits), np.empty(len(clients))
    for i, (high, low, seq_high, seq_low) in enumerate(
        _generate_states(seed, word, rounds, clients)
    ):
        increment = ((seq_high << 65 | seq_low << 1) | 1) & MASK_128
        state = ((increment + (high << 64 | low)) * PCG_MULTIPLIER + increment) & MASK_128
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
        numbers[i] = rng.standard_normal()
    return numbers


MIN_JOINT_DRAWS = 8
"""For fewer clients, one after the other is as fast."""

MASK_32, MASK_128 = 2**32 - 1, 2**128 - 1
PCG_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
INIT_A, MULT_A, INIT_B, MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
MIX_LEFT, MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
SHIFT = np.uint32(16)
POOL_SIZE = 4


def _generate_states(
    seed: int, purpose: int, rounds: Sequence[int], clients: Sequence[int]
) -> list[list[int]]:
    """Return ``SeedSequence([seed, purpose, t, k]).generate_state(4, np.uint64)`` of each pair.

    Each number must be below 2^32, so that it is one word of the entropy.
    """
    pool = [np.full(len(clients), word, np.uint32) for word in (seed, purpose)]
    pool += [np.array(rounds, np.uint32), np.array(clients, np.uint32)]
    constant = INIT_A

    def hash_word(values: NDArray[np.uint32], multiplier: int) -> NDArray[np.uint32]:
        nonlocal constant
        values = values ^ np.uint32(constant)
        constant = constant * multiplier & MASK_32
        values *= np.uint32(constant)
        return values ^ (values >> SHIFT)

    pool = [hash_word(words, MULT_A) for words in pool]
    for source in range(POOL_SIZE):
        for target in range(POOL_SIZE):
            if source != target:
                mixed = MIX_LEFT * pool[target] - MIX_RIGHT * hash_word(pool[source], MULT_A)
                pool[target] = mixed ^ (mixed >> SHIFT)
    constant = INIT_B
    words = np.stack([hash_word(pool[i % POOL_SIZE], MULT_B) for i in range(2 * POOL_SIZE)])
    halves = words.astype(np.uint64)
    states: list[list[int]] = (halves[0::2] | halves[1::2] << np.uint64(32)).T.tolist()
    return states
