"""Fields of JSON records: what is written is read, to the bit."""

import json
import math
import struct
from typing import Any

import pytest
from fedquorum.decisions import LateReply
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

NUMBERS = (
    *(0.0, -0.0, 5e-324, -5e-324, 1e-300, 0.1, 1 / 3, 1e100, 1e120, -1e120, 2.0**53 + 2),
    *(1.7976931348623157e308, -1.7976931348623157e308, math.inf, -math.inf),
)


def through_json(value: FieldCodec, given: Any) -> Any:
    """Return a value once it was written and read."""
    text = json.dumps({"name": value.to_json(given)}, allow_nan=False)
    return value.read_field(json.loads(text), "name")


@pytest.mark.parametrize("value", [NUMBER, OPTIONAL_NUMBER], ids=["number", "optional"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_read_to_the_bit(value: FieldCodec, number: float) -> None:
    """Infinities, the sign of 0 and numbers below the normal ones are among them."""
    assert struct.pack("<d", through_json(value, number)) == struct.pack("<d", number)


def test_nan_and_null_differ_where_both_are_possible() -> None:
    """A number that must be there is NaN where it is not defined."""
    assert math.isnan(through_json(NUMBER, math.nan))
    assert NUMBER.to_json(math.nan) is None
    assert math.isnan(through_json(OPTIONAL_NUMBER, math.nan))
    assert through_json(OPTIONAL_NUMBER, None) is None


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (COUNT, 2**53),
        (CLIENT_ID_LIST, (0, 7, 2**31 - 1)),
        (LATE_REPLIES, (LateReply(1, 2, 0.5), LateReply(2, 3, math.inf))),
        (optional_choice(("one", "other")), "other"),
        (optional_choice(("one", "other")), None),
    ],
)
def test_other_values_are_read_as_they_were(value: FieldCodec, given: Any) -> None:
    """Counts, ids, replies and words."""
    assert through_json(value, given) == given


@pytest.mark.parametrize(
    ("value", "given", "problem"),
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
def test_what_is_no_such_value_is_named(value: FieldCodec, given: Any, problem: str) -> None:
    """In one line with the field."""
    with pytest.raises(CorruptRecordError, match=f"^{problem}$"):
        value.read_field({"a": given}, "a")


def test_a_field_that_a_record_lacks_is_named() -> None:
    """Every record has all fields."""
    with pytest.raises(CorruptRecordError, match=r"^a is missing$"):
        COUNT.read_field({}, "a")
