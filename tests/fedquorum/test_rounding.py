"""Rounding: shares of a count as in decimals, whatever binary floats make of them."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.rounding import round_down_in_binary, round_half_even, round_up
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("share", "count", "up", "nearest"),
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
def test_shares_are_those_written(share: str, count: int, up: int, nearest: int) -> None:
    """Of a whole product in decimals, ceiling and nearest are itself; of a half, the even one."""
    assert (round_up(float(share), count), round_half_even(float(share), count)) == (up, nearest)
    assert round_up(np.float64(share), count) == up


@given(numerator=st.integers(0, 10**6), digits=st.integers(0, 6), count=st.integers(0, 10**6))
def test_decimals_are_rounded_exactly(numerator: int, digits: int, count: int) -> None:
    """Every decimal in [0, 1] of up to six digits agrees with arithmetic of fractions."""
    numerator = min(numerator, 10**digits)
    exact = Fraction(numerator, 10**digits) * count
    share = float(f"{numerator}e-{digits}")
    assert round_up(share, count) == math.ceil(exact)
    assert round_half_even(share, count) == round(exact)


@given(whole=st.integers(0, 10**5), more=st.integers(0, 10**5))
def test_quotients_are_rounded_exactly(whole: int, more: int) -> None:
    """The share m / n of n is m, though 5 / 6 is a little more and 1 / 7 a little less."""
    count = max(1, whole + more)
    assert round_up(whole / count, count) == round_half_even(whole / count, count) == whole


@given(share=st.floats(0, 1), count=st.integers(0, 10**6))
def test_every_float_is_rounded_closely(share: float, count: int) -> None:
    """Neither function leaves its side of the exact product by more than a rounding error."""
    exact = Fraction(share) * count
    assert -Fraction(1, 10**9) < round_up(share, count) - exact < 1
    assert abs(round_half_even(share, count) - exact) < Fraction(1, 2) + Fraction(1, 10**9)


def test_flower_cuts_what_floats_make() -> None:
    """0.29 of 100 is 28.999999999999996, of which Flower asks 28."""
    assert round_down_in_binary(0.29, 100) == 28
    assert round_down_in_binary(0.5, 5) == 2
