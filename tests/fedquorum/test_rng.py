"""Random streams: reproducible, and independent of each other."""

from itertools import product

from fedquorum.rng import derive_seed, make_generator


def test_a_stream_is_reproducible() -> None:
    """The same four values give the same numbers, in any order of calls."""
    first = make_generator(1, "batches", 2, 3).random(4).tolist()
    make_generator(1, "batches", 2, 4).random(100)
    assert make_generator(1, "batches", 2, 3).random(4).tolist() == first


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
