"""Tests of the fairness numbers against examples computed by hand."""

import math

import numpy as np
import pytest
from fedquorum.metrics.fairness import (
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
    """For 25 clients, the tenth is the unweighted mean of two clients."""
    got = compute_dispersion([k / 100 for k in range(25)])
    assert got["worst10"] == pytest.approx(0.005)
    assert got["best10"] == pytest.approx(0.235)


def test_gini_and_jain_of_zeros() -> None:
    """If no client has anything, Gini is 0 and Jain 1 by definition."""
    got = compute_dispersion([0.0, 0.0])
    assert (got["gini"], got["jain"]) == (0.0, 1.0)


def test_gini_and_jain_if_one_client_has_everything() -> None:
    """Gini is then (n - 1) / n and Jain 1 / n for n clients."""
    got = compute_dispersion([0.0, 0.0, 0.0, 1.0])
    assert got["gini"] == pytest.approx(3 / 4)
    assert got["jain"] == pytest.approx(1 / 4)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=50), st.floats(0.1, 10))
def test_gini_and_jain_ignore_scale(values: list[float], scale: float) -> None:
    """Both compare fractions, so a common factor changes nothing."""
    one, other = compute_dispersion(values), compute_dispersion([scale * x for x in values])
    assert other["gini"] == pytest.approx(one["gini"], abs=1e-9)
    assert other["jain"] == pytest.approx(one["jain"], abs=1e-9)
    assert 0 <= one["gini"] < 1


def test_gini_and_jain_of_negative_values_are_nan() -> None:
    """For an R2 below 0, Gini and Jain are undefined, and other numbers are not."""
    found = compute_dispersion([-0.5, 0.5, 0.9])
    assert math.isnan(found["gini"])
    assert math.isnan(found["jain"])
    assert (found["worst"], found["best"]) == (-0.5, 0.9)


def test_gini_jain_and_std_of_infinite_losses_are_nan() -> None:
    """If a client's model diverged, the mean and the worst are infinite."""
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


def test_an_undefined_value_makes_every_number_nan() -> None:
    """The numbers do not cover only the other clients."""
    found = compute_dispersion([0.5, math.nan])
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e150, 1e200, 2.0**1020])
def test_extreme_magnitudes_neither_overflow_nor_underflow(scale: float) -> None:
    """The fractions are those of ordinary values."""
    plain, found = (
        compute_dispersion([1.0, 2.0, 5.0]),
        compute_dispersion([scale, 2 * scale, 5 * scale]),
    )
    assert found["gini"] == pytest.approx(plain["gini"])
    assert found["jain"] == pytest.approx(plain["jain"])
    assert found["std"] / scale == pytest.approx(plain["std"])
    assert found["average"] / scale == pytest.approx(plain["average"])
    assert weighted_mean([scale, 5 * scale], [1e6, 1e6]) / scale == pytest.approx(3.0)


def test_no_values_are_an_error() -> None:
    """The result is an error, not NaN."""
    with pytest.raises(ValueError, match="no values"):
        compute_dispersion([])


def test_weighted_mean() -> None:
    """It is sum w x / sum w, or NaN without weight."""
    assert weighted_mean([1.0, 4.0], [3.0, 1.0]) == pytest.approx(1.75)
    assert math.isnan(weighted_mean([1.0], [0.0]))
    assert weighted_mean([1.0, math.inf], [1.0, 1.0]) == math.inf
    assert weighted_mean([1.0, -math.inf], [1.0, 1.0]) == -math.inf
    assert math.isnan(weighted_mean([math.inf, -math.inf], [1.0, 1.0]))
    assert math.isnan(weighted_mean([1.0, math.inf], [1.0, 0.0]))
    assert math.isnan(weighted_mean([1.0, math.nan], [1.0, 1.0]))


def test_weighted_dispersion_by_test_rows() -> None:
    """The average and the tenths are weighted; with equal rows they are the unweighted ones."""
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
def test_exact_sum_of_any_numbers(values: list[float], total: float) -> None:
    """The sum is rounded once; it is infinite or NaN if no float64 holds it."""
    assert exact_sum(values) == pytest.approx(total, rel=0.0, abs=0.0, nan_ok=True)
    mean = exact_mean(values)
    assert mean is None if not values else mean == pytest.approx(total / len(values), nan_ok=True)


def test_dispersion_of_huge_values() -> None:
    """Sums beyond float64 lose no mean and raise nothing."""
    found = compute_dispersion([1e300, 1.7e308, 1.7e308])
    assert (found["worst"], found["best"]) == (1e300, 1.7e308)
    assert found["average"] == pytest.approx(1.7e308 / 3 * 2, rel=1e-7)
