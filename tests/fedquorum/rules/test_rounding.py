"""Rounding: fractions of a count as in decimals, despite binary floats."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.rules.rounding import round_half_even, round_up
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("fraction", "count", "up", "nearest"),
    [
        ("0.55", 100, 55, 55),
        ("0.07", 100, 7, 7),
        ("0.28", 25, 7, 7),
        ("0.14", 50, 7, 7),
        ("0.575", 100, 58, 58),  # 57.49999999999999
        ("0.145", 100, 15, 14),  # 14.499999999999998, and 14 is even
        ("0.5", 5, 3, 2),
        ("0.5", 7, 4, 4),
        ("1e-10", 1, 1, 0),
        ("1", 3, 3, 3),
        ("0", 3, 0, 0),
        ("0.3", 0, 0, 0),
    ],
)
def test_fractions_are_read_as_written(fraction: str, count: int, up: int, nearest: int) -> None:
    """A whole decimal product is its own ceiling and nearest number; a half rounds to even."""
    assert (round_up(float(fraction), count), round_half_even(float(fraction), count)) == (
        up,
        nearest,
    )
    assert round_up(np.float64(fraction), count) == up


@given(numerator=st.integers(0, 10**6), digits=st.integers(0, 6), count=st.integers(0, 10**6))
def test_decimals_are_rounded_exactly(numerator: int, digits: int, count: int) -> None:
    """Every decimal in [0, 1] of up to six digits agrees with exact fractions."""
    numerator = min(numerator, 10**digits)
    exact = Fraction(numerator, 10**digits) * count
    fraction = float(f"{numerator}e-{digits}")
    assert round_up(fraction, count) == math.ceil(exact)
    assert round_half_even(fraction, count) == round(exact)


@given(whole=st.integers(0, 10**5), rest=st.integers(0, 10**5))
def test_quotients_are_rounded_exactly(whole: int, rest: int) -> None:
    """The fraction m / n of n is m, although 5 / 6 is rounded up and 1 / 7 down."""
    count = max(1, whole + rest)
    assert round_up(whole / count, count) == round_half_even(whole / count, count) == whole


@given(fraction=st.floats(0, 1), count=st.integers(0, 10**6))
def test_every_float_is_rounded_closely(fraction: float, count: int) -> None:
    """Both functions agree with the exact product up to a rounding error."""
    exact = Fraction(fraction) * count
    assert -Fraction(1, 10**9) < round_up(fraction, count) - exact < 1
    assert abs(round_half_even(fraction, count) - exact) < Fraction(1, 2) + Fraction(1, 10**9)
