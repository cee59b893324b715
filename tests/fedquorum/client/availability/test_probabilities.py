"""How often clients are available, by the classes of their data."""

import math

import numpy as np
import pytest
from fedquorum.client.availability.probabilities import (
    compute_class_distribution,
    compute_class_rate_probability,
    compute_correlated_probability,
    sample_class_contribution,
    sample_class_rates,
)

LABELS = np.array([0, 0, 2, 2, 2, 0, 2, 2])


def test_class_distribution() -> None:
    """It has the fraction of each class, 0 for a class without labels."""
    np.testing.assert_array_equal(compute_class_distribution(LABELS, 4), [3 / 8, 0, 5 / 8, 0])


def test_no_labels() -> None:
    """Without labels there is no distribution: an error instead of NaN."""
    with pytest.raises(ValueError, match="without training labels"):
        compute_class_distribution(LABELS[:0], 4)


@pytest.mark.parametrize(
    ("kappa", "mean", "minimum", "expected"),
    [
        ([1.0, 0.0, 0.0, 0.0], 0.1, 0.02, 0.2),  # 0.1 * 4 * 0.5
        ([0.25, 0.25, 0.25, 0.25], 0.1, 0.02, 0.1),
        ([0.5, 0.0, 0.5, 0.0], 0.1, 0.02, 0.14),
        ([0.0, 0.0, 0.0, 1.0], 0.1, 0.02, 0.02),
        ([0.0, 0.0, 0.0, 1.0], 0.1, 0.3, 0.3),
        ([1.0, 0.0, 0.0, 0.0], 0.9, 0.02, 1.0),
    ],
)
def test_correlated_probability_by_hand(
    kappa: list[float], mean: float, minimum: float, expected: float
) -> None:
    """p = clip(mean * L * <kappa, q>, minimum, 1)."""
    p = compute_correlated_probability(
        np.array(kappa), np.array([0.5, 0.3, 0.2, 0.0]), mean=mean, minimum=minimum
    )
    assert p == pytest.approx(expected, abs=1e-15)


def test_shapes_must_agree() -> None:
    """Distributions over different numbers of classes raise an error."""
    with pytest.raises(ValueError, match="mismatch"):
        compute_correlated_probability(np.ones(3) / 3, np.ones(4) / 4)


def test_contribution_is_a_dirichlet_draw_of_the_seed() -> None:
    """It is on the simplex, the same for a seed, with mean and variance of Dir(alpha)."""
    draws = np.array([sample_class_contribution(seed, 5, 0.1) for seed in range(4000)])
    np.testing.assert_allclose(draws.sum(axis=1), 1.0, atol=1e-12)
    assert (draws >= 0).all()
    np.testing.assert_array_equal(draws[7], sample_class_contribution(7, 5, 0.1))
    variance = 0.2 * 0.8 / (5 * 0.1 + 1)
    np.testing.assert_allclose(draws.mean(axis=0), 0.2, atol=4 * math.sqrt(variance / 4000))
    squared = (draws - 0.2) ** 2
    within = 4 * squared.std() / math.sqrt(4000)
    np.testing.assert_allclose(squared.mean(axis=0), variance, atol=within)
    even = sample_class_contribution(7, 5, 1e6)
    np.testing.assert_allclose(even, 0.2, atol=1e-2)


def test_mean_is_the_mean() -> None:
    """Over clients whose class distributions are Dir(0.1), p_n is ``mean`` on average."""
    rng = np.random.default_rng(0)
    q = sample_class_contribution(1, 10, 0.1)
    kappa = rng.dirichlet(np.full(10, 0.1), 20_000)
    p = np.array([compute_correlated_probability(one, q, mean=0.05, minimum=1e-9) for one in kappa])
    assert p.max() < 1
    assert p.mean() == pytest.approx(0.05, abs=4 * p.std() / math.sqrt(len(p)))


def test_rates_of_the_classes_are_uniform_draws_of_the_seed() -> None:
    """They are U(0, 1) for the first half of the classes, U(0, 0.5) for the others."""
    draws = np.array([sample_class_rates(seed, 10) for seed in range(2_000)])
    np.testing.assert_array_equal(draws[7], sample_class_rates(7, 10))
    assert draws.min() >= 0
    half = np.where(np.arange(10) < 5, 1.0, 0.5)
    assert (draws.max(axis=0) < half).all()
    within = 4 * half / np.sqrt(12 * 2_000)
    assert (np.abs(draws.mean(axis=0) - half / 2) < within).all()
    assert compute_class_rate_probability(
        np.array([0.25, 0.75]), np.array([1.0, 0.2])
    ) == pytest.approx(0.4, rel=1e-15)
