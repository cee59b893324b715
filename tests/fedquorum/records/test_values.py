"""Tests that fields of JSON records are restored bit by bit."""

import json
import math
import struct
from typing import Any

import pytest
from fedquorum.records.values import (
    CLIENT_ID_LIST,
    COUNT,
    LATE_REPLIES,
    NUMBER,
    OPTIONAL_NUMBER,
    CorruptRecordError,
    FieldCodec,
    optional_choice,
)
from fedquorum.rules.decisions import LateReply

NUMBERS = (
    *(0.0, -0.0, 5e-324, -5e-324, 1e-300, 0.1, 1 / 3, 1e100, 1e120, -1e120, 2.0**53 + 2),
    *(1.7976931348623157e308, -1.7976931348623157e308, math.inf, -math.inf),
)


def round_trip(codec: FieldCodec, value: Any) -> Any:
    """Return a value after writing and reading it."""
    text = json.dumps({"name": codec.to_json(value)}, allow_nan=False)
    return codec.read_field(json.loads(text), "name")


@pytest.mark.parametrize("codec", [NUMBER, OPTIONAL_NUMBER], ids=["number", "optional"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_restored_bit_by_bit(codec: FieldCodec, number: float) -> None:
    """Infinities, the sign of 0 and subnormal numbers are included."""
    assert struct.pack("<d", round_trip(codec, number)) == struct.pack("<d", number)


def test_nan_and_null_differ_if_both_are_possible() -> None:
    """A required number is NaN if it is undefined."""
    assert math.isnan(round_trip(NUMBER, math.nan))
    assert NUMBER.to_json(math.nan) is None
    assert math.isnan(round_trip(OPTIONAL_NUMBER, math.nan))
    assert round_trip(OPTIONAL_NUMBER, None) is None


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (COUNT, 2**53),
        (CLIENT_ID_LIST, (0, 7, 2**31 - 1)),
        (LATE_REPLIES, (LateReply(1, 2, 0.5), LateReply(2, 3, math.inf))),
        (optional_choice(("one", "other")), "other"),
        (optional_choice(("one", "other")), None),
    ],
)
def test_other_values_are_restored(codec: FieldCodec, value: Any) -> None:
    """Counts, ids, replies and choices."""
    assert round_trip(codec, value) == value


@pytest.mark.parametrize(
    ("codec", "value", "problem"),
    [
        (NUMBER, "nan", "a must be a number, null or inf, got 'nan'"),
        (NUMBER, True, "a must be a number, null or inf, got True"),
        (NUMBER, 10**400, "a must be a number of at most 1.8e308, got a larger one"),
        (OPTIONAL_NUMBER, [], r"a must be a number, null or inf, got \[\]"),
        (COUNT, -1, "a must be a whole number >= 0, got -1"),
        (COUNT, 2**53 + 1, "a must be a whole number <= 9007199254740992, got a larger one"),
        (CLIENT_ID_LIST, 5, "a must be a list, got 5"),
        (LATE_REPLIES, [{"round": 1}], "client is missing"),
        (
            optional_choice(("one", "other")),
            "o",
            "a must be null or one of 'one', 'other', got 'o'",
        ),
    ],
)
def test_an_invalid_value_is_named(codec: FieldCodec, value: Any, problem: str) -> None:
    """The error is one line with the field."""
    with pytest.raises(CorruptRecordError, match=f"^{problem}$"):
        codec.read_field({"a": value}, "a")


def test_a_missing_field_is_named() -> None:
    """Every record has all fields."""
    with pytest.raises(CorruptRecordError, match=r"^a is missing$"):
        COUNT.read_field({}, "a")
