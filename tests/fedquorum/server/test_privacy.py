"""The Gaussian mechanism of private rounds: clipping norm, noise, and the adaptive norm."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.server.privacy import AdaptiveClippingNorm, GaussianMechanism, check_model

SIZE = 20_000


def make_seeded_generator() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("update", [0.0, 3.0])
def test_noise_does_not_depend_on_the_update(update: float) -> None:
    """Noise z c C on every number of every array, including zeros."""
    mechanism = GaussianMechanism(2.0, clipping_norm=0.5, make_generator=make_seeded_generator)
    arrays = {"w": np.full(SIZE, update), "b": np.full((2, SIZE), update)}
    noisy = mechanism.for_round(None, 0.25).add_noise(arrays)
    assert list(noisy) == ["w", "b"]
    for name, array in noisy.items():
        assert array.shape == arrays[name].shape
        noise = array - update
        assert np.std(noise) == pytest.approx(2.0 * 0.5 * 0.25, rel=0.05)
        assert abs(np.mean(noise)) < 0.01


def test_every_release_draws_noise_from_a_separate_generator() -> None:
    """The operating system seeds it: NumPy's global generator has no effect and is not used."""
    mechanism = GaussianMechanism(1.0).for_round(None, 1.0)
    noise = []
    for _ in range(2):
        np.random.seed(3)  # noqa: NPY002
        before = np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
        noise.append(mechanism.add_noise({"w": np.zeros(10)})["w"])
        after = np.random.get_state(legacy=False)["state"]["key"]  # noqa: NPY002
        assert np.array_equal(before, after)
    one, other = noise
    assert not np.array_equal(one, other)


def test_without_a_multiplier_there_is_no_noise() -> None:
    """Not even on the count."""
    mechanism = GaussianMechanism(0.0, adaptive_norm=AdaptiveClippingNorm())
    round_mechanism = mechanism.for_round(None, 1.0)
    assert np.array_equal(round_mechanism.add_noise({"w": np.ones(3)})["w"], np.ones(3))
    assert round_mechanism.compute_next_norm([True] * 5 + [False] * 5, 10) == 1.0


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.0])
def test_count_and_sum_together_are_as_private_as_one_release(quantile: float) -> None:
    """1 / z^2 is the sum of 1 / z_sum^2 and 1 / z_count^2."""
    adaptive_norm = AdaptiveClippingNorm(quantile, count_stddev=2.0)
    mechanism = GaussianMechanism(1.0, adaptive_norm=adaptive_norm)
    max_change = max(quantile, 1 - quantile)  # that one vote, b - gamma, moves the count by
    count_inverse = max_change / 2.0
    assert mechanism.update_multiplier**-2 + count_inverse**2 == pytest.approx(1.0)
    assert mechanism.update_multiplier > 1.0


def test_one_vote_moves_the_count_by_no_more_than_it_is_accounted_for() -> None:
    """With the client below or above the norm, compared to the votes without it."""
    adaptive_norm = AdaptiveClippingNorm(0.3, learning_rate=0.1, count_stddev=1.0)
    others = [True, False, True]

    def log_norm(votes: list[bool]) -> float:
        return math.log(adaptive_norm.update(1.0, votes, 4, make_seeded_generator()))

    max_change = 0.1 * max(0.3, 0.7) / 4
    without = log_norm(others)
    for vote in (True, False):
        assert abs(log_norm([*others, vote]) - without) <= max_change * (1 + 1e-9)


def test_the_norm_approaches_the_quantile() -> None:
    """Of ten clients with norms 0.1 to 1, 70 % have a norm of at most 0.7."""
    lengths = np.linspace(0.1, 1.0, 10)
    adaptive_norm = AdaptiveClippingNorm(0.7, learning_rate=0.2)
    norm = 5.0
    for _ in range(200):
        norm = adaptive_norm.update(norm, (lengths <= norm).tolist(), 10, make_seeded_generator())
    assert 0.65 < norm < 0.85


def test_a_norm_stays_usable() -> None:
    """With any noise on the count; without votes only the noise changes it."""
    adaptive_norm = AdaptiveClippingNorm(count_stddev=1e9)
    norms = [adaptive_norm.update(1.0, [], 0, np.random.default_rng(k)) for k in range(20)]
    assert all(0.0 < norm < 1e15 for norm in norms)
    assert AdaptiveClippingNorm().update(2.0, [], 4, make_seeded_generator()) == pytest.approx(2.0)


def test_a_count_must_be_more_private_than_the_round() -> None:
    """Its noise / the change by one vote is 2 for a noise of 1 client and the median."""
    with pytest.raises(ParameterError, match="noise_multiplier must be less than 2 "):
        GaussianMechanism(2.0, adaptive_norm=AdaptiveClippingNorm(count_stddev=1.0))
    GaussianMechanism(1.9, adaptive_norm=AdaptiveClippingNorm(count_stddev=1.0))


def test_weights_above_the_bound() -> None:
    """Apart from rounding, no weight may exceed the bound of the noise."""
    round_mechanism = GaussianMechanism().for_round(None, 0.25)
    assert round_mechanism.covers(np.array([0.25 * (1 + 1e-12), 0.1]))
    assert round_mechanism.covers(np.zeros(0))
    assert not round_mechanism.covers(np.array([0.1, 0.26]))


def test_clients_receive_the_norm_if_they_clip() -> None:
    """The norm of the round, or of the first round."""
    mechanism = GaussianMechanism(clipping_norm=2.0)
    assert mechanism.for_round(0.5, 1.0).client_norm is None
    clients_clip = replace(mechanism, clients_clip=True)
    assert clients_clip.for_round(0.5, 1.0).client_norm == 0.5
    assert clients_clip.for_round(None, 1.0).client_norm == 2.0


def test_a_model_with_integer_arrays_is_refused() -> None:
    """The message names the array."""
    check_model({"w": np.zeros(2, dtype=np.float16)})
    with pytest.raises(ParameterError, match="whole numbers, as in 'count'"):
        check_model({"w": np.zeros(2), "count": np.array(3)})
