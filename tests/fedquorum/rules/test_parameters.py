"""Ranges: their allowed values, and their messages."""

import math

import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.parameters import ClientIds, Interval, ListOf, OneOf, Range
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("allowed", "text"),
    [
        (Interval(low=0), "a number >= 0"),
        (Interval(low=0, open_low=True), "a number > 0"),
        (Interval(low=0, high=1), "a number >= 0 and <= 1"),
        (Interval(low=0, high=1, open_high=True), "a number >= 0 and < 1"),
        (Interval(low=1, integer=True), "a whole number >= 1"),
        (Interval(low=0, infinite=True), "a number >= 0 (inf allowed)"),
        (OneOf(("a", "b")), "one of a, b"),
        (
            ClientIds(3),
            "a list of at least one client, each once, an id from 0 to 2 or a name in quotes",
        ),
        (ClientIds(), "a list of at least one client, each once, an id or a name in quotes"),
        (ListOf(Interval(low=0)), "a list of at least one value, each a number >= 0"),
    ],
)
def test_ranges_describe_themselves(allowed: Range, text: str) -> None:
    """The description follows "must be" in an error message."""
    assert allowed.describe() == text
    with pytest.raises(ParameterError) as caught:
        allowed.check("x", -1)
    assert str(caught.value) == f"x must be {text}, got -1"


@pytest.mark.slow
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_numbers(value: float) -> None:
    """Bounds are closed unless said otherwise; NaN never passes, infinity only when allowed."""
    finite = math.isfinite(value)
    assert Interval(low=0, high=1).contains(value) == (finite and 0 <= value <= 1)
    assert Interval(low=0, open_low=True).contains(value) == (finite and value > 0)
    assert Interval(high=1, open_high=True).contains(value) == (finite and value < 1)
    assert Interval(low=0, infinite=True).contains(value) == (not math.isnan(value) and value >= 0)
    assert not Interval(integer=True).contains(value)


@pytest.mark.parametrize("value", [True, "1", None, [1]])
def test_other_types_are_no_numbers(value: object) -> None:
    """Booleans and text are not numbers, although Python would compare some of them."""
    assert not Interval().contains(value)


@pytest.mark.parametrize("value", [[], [3], [-1], [0, 0], [True], "01", 1, [0.0], [" "]])
def test_no_client_ids(value: object) -> None:
    """Empty, doubled, unknown or otherwise odd lists are refused."""
    assert not ClientIds(3).contains(value)


def test_clients_by_id_and_by_name() -> None:
    """Without the number of clients any id may exist; whether a name does, the data knows."""
    assert ClientIds(3).contains([2, "North"])
    assert ClientIds().contains([7])
    assert not ClientIds().contains(["North", "North"])


@pytest.mark.parametrize(
    ("value", "allowed"),
    [([1], True), ((3, 1, 1), True), ([], False), ([1, 0], False), ([1.0], False)]
    + [(value, False) for value in (1, "1", None, [True], ["1"])],
)
def test_lists_of_counts(value: object, allowed: bool) -> None:
    """Every value of the list must be in the range; an empty list or no list is refused."""
    assert ListOf(Interval(low=1, integer=True)).contains(value) == allowed
