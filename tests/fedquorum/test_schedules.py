"""Schedules: how the threshold falls, and fractions of the rounds in exact decimals."""

from fractions import Fraction

import pytest
from fedquorum.schedules import epsilon_factor, rounds_in
from hypothesis import given
from hypothesis import strategies as st


@given(percent=st.integers(0, 100), num_rounds=st.integers(1, 2000))
def test_rounds_in_is_exact_in_decimal(percent: int, num_rounds: int) -> None:
    """The number of t with t < fraction * T is that of exact decimal arithmetic."""
    exact = Fraction(percent, 100) * num_rounds
    assert rounds_in(percent / 100, num_rounds) == sum(t < exact for t in range(num_rounds))


def test_unknown_schedule_is_refused() -> None:
    """A schedule that does not exist raises and names it."""
    with pytest.raises(ValueError, match="no epsilon schedule named 'lin'"):
        epsilon_factor("lin", 0, 10, 0.5, 5.0)
