"""Random streams: reproducible, and independent of each other."""

import zlib
from itertools import product

import numpy as np
import pytest
from fedquorum.rng import MIN_JOINT_DRAWS, derive_seed, draw_normals, make_generator


def test_a_stream_is_reproducible() -> None:
    """The same four values give the same numbers, in any order of calls."""
    first = make_generator(1, "batches", 2, 3).random(4).tolist()
    make_generator(1, "batches", 2, 4).random(100)
    assert make_generator(1, "batches", 2, 3).random(4).tolist() == first


@pytest.mark.parametrize("client", [0, 1, 2**32 - 1, 2**32, 2**40])
@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70])
def test_a_stream_is_that_of_the_list_of_its_values(seed: int, client: int) -> None:
    """The stream is NumPy's for the list, also for numbers of more than 32 bits."""
    expected = np.random.default_rng([seed, zlib.crc32(b"batches"), 3, client])
    found = make_generator(seed, "batches", 3, client)
    assert found.bit_generator.state == expected.bit_generator.state


def test_every_value_changes_the_stream() -> None:
    """Seed, purpose, round and client each lead to another stream."""
    draws = {
        make_generator(seed, purpose, t, client).integers(2**62)
        for seed, purpose, t, client in product((0, 1), ("a", "b"), (0, 1), (0, 1))
    }
    assert len(draws) == 16


def test_derived_seeds_fit_in_31_bits() -> None:
    """Libraries that take a number get a non-negative one, different per purpose."""
    seeds = {derive_seed(seed, purpose) for seed in range(20) for purpose in ("a", "b")}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**70])
@pytest.mark.parametrize("server_round", [0, 1, 2**31])
def test_numbers_drawn_together_are_those_of_each_generator(seed: int, server_round: int) -> None:
    """NumPy itself is the reference; a number of two words, or few clients, change nothing."""
    clients = [*range(20), 2**16, 2**31 - 1, 2**32 - 1]
    rounds = [server_round if k % 3 else 0 for k in clients]
    expected = [
        make_generator(seed, "response-time", t, k).standard_normal()
        for t, k in zip(rounds, clients, strict=True)
    ]
    assert draw_normals(seed, "response-time", rounds, clients).tolist() == expected
    few = MIN_JOINT_DRAWS - 1
    drawn = draw_normals(seed, "response-time", rounds[:few], clients[:few])
    assert drawn.tolist() == expected[:few]
    assert draw_normals(seed, "response-time", [], []).tolist() == []
