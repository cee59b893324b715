"""Fairness numbers against cases worked by hand."""

import math

import numpy as np
import pytest
from fedquorum.records.fairness import (
    compute_dispersion,
    compute_weighted_dispersion,
    exact_mean,
    exact_sum,
    weighted_mean,
)
from hypothesis import given
from hypothesis import strategies as st


def test_three_clients_by_hand() -> None:
    """x = 0.2, 0.4, 0.9: Gini (-2*0.2 + 0*0.4 + 2*0.9) / (3*1.5), Jain 1.5^2 / (3*1.01)."""
    got = compute_dispersion([0.9, 0.2, 0.4])
    assert got == pytest.approx(
        {
            "average": 0.5,
            "worst": 0.2,
            "best": 0.9,
            "worst10": 0.2,
            "best10": 0.9,
            "gini": 1.4 / 4.5,
            "std": math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 3),
            "jain": 2.25 / 3.03,
        }
    )


def test_worst_and_best_tenth() -> None:
    """Of 25 clients the tenth is two clients, their unweighted mean."""
    got = compute_dispersion([k / 100 for k in range(25)])
    assert got["worst10"] == pytest.approx(0.005)
    assert got["best10"] == pytest.approx(0.235)


def test_all_zero() -> None:
    """No client has anything: Gini 0 and Jain 1 by definition."""
    got = compute_dispersion([0.0, 0.0])
    assert (got["gini"], got["jain"]) == (0.0, 1.0)


def test_one_client_has_all() -> None:
    """The Gini of n clients of whom one has everything is (n - 1) / n, Jain is 1 / n."""
    got = compute_dispersion([0.0, 0.0, 0.0, 1.0])
    assert got["gini"] == pytest.approx(3 / 4)
    assert got["jain"] == pytest.approx(1 / 4)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=50), st.floats(0.1, 10))
def test_gini_and_jain_ignore_scale(values: list[float], scale: float) -> None:
    """Both measure shares, so a common factor changes nothing."""
    one, other = compute_dispersion(values), compute_dispersion([scale * x for x in values])
    assert other["gini"] == pytest.approx(one["gini"], abs=1e-9)
    assert other["jain"] == pytest.approx(one["jain"], abs=1e-9)
    assert 0 <= one["gini"] < 1


def test_negative_values_have_no_shares() -> None:
    """Of an R2 below 0 Gini and Jain are not defined, and all else is."""
    found = compute_dispersion([-0.5, 0.5, 0.9])
    assert math.isnan(found["gini"])
    assert math.isnan(found["jain"])
    assert (found["worst"], found["best"]) == (-0.5, 0.9)


def test_an_infinite_loss_has_no_shares() -> None:
    """A client whose model diverged: the mean and the worst are infinite, and nobody is equal."""
    found = compute_dispersion([0.5, 0.7, math.inf], higher_is_better=False)
    assert (found["average"], found["worst"], found["worst10"]) == (math.inf,) * 3
    assert (found["best"], found["best10"]) == (0.5, 0.5)
    assert all(math.isnan(found[name]) for name in ("gini", "std", "jain"))
    lowest = compute_dispersion([-math.inf, 0.5])
    assert (lowest["average"], lowest["worst"], lowest["best"]) == (-math.inf, -math.inf, 0.5)
    assert all(math.isnan(lowest[name]) for name in ("gini", "std", "jain"))
    both = compute_dispersion([-math.inf, math.inf])
    assert math.isnan(both["average"])
    assert all(
        math.isnan(compute_dispersion([math.inf] * 3)[name]) for name in ("gini", "std", "jain")
    )


def test_a_value_that_is_not_defined_has_no_spread() -> None:
    """All numbers are NaN, instead of some of the other clients alone."""
    found = compute_dispersion([0.5, math.nan])
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e150, 1e200, 2.0**1020])
def test_no_size_of_the_values_is_too_small_or_too_large(scale: float) -> None:
    """Squares neither overflow nor vanish: shares are those of ordinary values."""
    plain, found = (
        compute_dispersion([1.0, 2.0, 5.0]),
        compute_dispersion([scale, 2 * scale, 5 * scale]),
    )
    assert found["gini"] == pytest.approx(plain["gini"])
    assert found["jain"] == pytest.approx(plain["jain"])
    assert found["std"] / scale == pytest.approx(plain["std"])
    assert found["average"] / scale == pytest.approx(plain["average"])
    assert weighted_mean([scale, 5 * scale], [1e6, 1e6]) / scale == pytest.approx(3.0)


def test_no_values() -> None:
    """Nothing to describe is an error, not a NaN."""
    with pytest.raises(ValueError, match="no values"):
        compute_dispersion([])


def test_weighted_mean() -> None:
    """sum w x / sum w; NaN without weight."""
    assert weighted_mean([1.0, 4.0], [3.0, 1.0]) == pytest.approx(1.75)
    assert math.isnan(weighted_mean([1.0], [0.0]))
    assert weighted_mean([1.0, math.inf], [1.0, 1.0]) == math.inf
    assert weighted_mean([1.0, -math.inf], [1.0, 1.0]) == -math.inf
    assert math.isnan(weighted_mean([math.inf, -math.inf], [1.0, 1.0]))
    assert math.isnan(weighted_mean([1.0, math.inf], [1.0, 0.0]))
    assert math.isnan(weighted_mean([1.0, math.nan], [1.0, 1.0]))


def test_means_by_test_rows() -> None:
    """The average and the tenths of ``spread``, weighted; with equal rows they are the same."""
    values = np.array([0.5, 0.9, 0.1, 0.7, 0.2, 0.6, 0.4, 0.8, 0.3, 1.0] * 2)
    rows = np.arange(1.0, 21.0)
    found = compute_weighted_dispersion(values, rows)
    assert found["average"] == pytest.approx(float(values @ rows) / 210)
    assert found["worst10"] == pytest.approx(0.1)
    assert found["best10"] == pytest.approx(1.0)
    tenth = compute_weighted_dispersion([0.0, 1.0, *[2.0] * 18], [3, 1, *[1] * 18])
    assert tenth["worst10"] == 0.25
    losses = compute_weighted_dispersion(
        [0.0, 1.0, *[2.0] * 18], [3, 1, *[1] * 18], higher_is_better=False
    )
    assert (losses["best10"], losses["worst10"]) == (0.25, 2.0)
    equal, plain = compute_weighted_dispersion(values, np.ones(20)), compute_dispersion(values)
    assert equal == pytest.approx({name: plain[name] for name in equal})


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([0.1] * 10, 1.0),
        ([1e308, 1e308], math.inf),
        ([-1.7e308] * 3, -math.inf),
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([], 0.0),
    ],
)
def test_a_sum_of_any_numbers_is_one(values: list[float], total: float) -> None:
    """Rounded once, and infinite or NaN where the exact sum is no float64."""
    assert exact_sum(values) == pytest.approx(total, rel=0.0, abs=0.0, nan_ok=True)
    mean = exact_mean(values)
    assert mean is None if not values else mean == pytest.approx(total / len(values), nan_ok=True)


def test_the_spread_of_any_numbers_is_computed() -> None:
    """Sums beyond float64 lose no mean, and nothing is raised."""
    found = compute_dispersion([1e300, 1.7e308, 1.7e308])
    assert (found["worst"], found["best"]) == (1e300, 1.7e308)
    assert found["average"] == pytest.approx(1.7e308 / 3 * 2, rel=1e-7)
