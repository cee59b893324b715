"""Exact sums of numbers and of their squares."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.data import moments as moments_module
from client_app.data.moments import Moments, Numbers, add_moments

NUMBERS = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


def as_column(values: list[float]) -> Numbers:
    return np.array(values, dtype=np.float64)[:, None]


@pytest.mark.slow
@given(NUMBERS, st.data())
def test_sums_are_exact_in_any_grouping(values: list[float], data: st.DataObject) -> None:
    """Sums equal those of fractions, however the rows are divided and ordered."""
    exact = [Fraction(value) for value in values]
    whole = Moments.measure(as_column(values))
    assert whole == Moments(
        (len(values),), (sum(exact, Fraction()),), (sum((x * x for x in exact), Fraction()),)
    )
    order = data.draw(st.permutations(values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    parts = np.split(as_column(order), cuts)
    assert add_moments(map(Moments.measure, parts)) == whole


@given(NUMBERS)
def test_means_and_deviations_are_rounded_once(values: list[float]) -> None:
    """Each is the float64 number nearest to the exact one; equal numbers have deviation 0."""
    exact = [Fraction(value) for value in values]
    mean = sum(exact, Fraction()) / len(exact)
    variance = sum(((x - mean) ** 2 for x in exact), Fraction()) / len(exact)
    found = Moments.measure(as_column(values))
    assert found.compute_means().tolist() == [float(mean)]
    (deviation,) = found.compute_deviations().tolist()
    assert (deviation == 0) == (variance == 0) or variance < Fraction(5e-324) ** 2
    below, above = (Fraction(math.nextafter(deviation, to)) for to in (0.0, math.inf))
    half_below, half_above = (Fraction(deviation) + below) / 2, (Fraction(deviation) + above) / 2
    assert half_below**2 <= variance <= half_above**2


def test_missing_numbers_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column has its own count, also where the cells are read in several parts."""
    numbers = np.array([[1.0, np.nan, np.nan], [2.5, np.nan, 4.0], [-1.0, np.nan, np.nan]])
    monkeypatch.setattr(moments_module, "CELLS_AT_ONCE", 3)
    found = Moments.measure(numbers)
    assert found.counts == (3, 0, 1)
    assert found.compute_means()[[0, 2]].tolist() == [2.5 / 3, 4.0]
    assert np.isnan([found.compute_means()[1], found.compute_deviations()[1]]).all()
    assert Moments.measure(np.empty((0, 2))).counts == (0, 0)


def test_seconds_of_the_clock_keep_their_digits() -> None:
    """A spread of a millionth of the mean is exact, where float32 would have none."""
    seconds = 1.7e9 + np.arange(1000.0)[:, None]
    found = Moments.measure(seconds)
    assert found.compute_means().tolist() == [1.7e9 + 499.5]
    np.testing.assert_allclose(found.compute_deviations(), math.sqrt((1000**2 - 1) / 12), 1e-15)
