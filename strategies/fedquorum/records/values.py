"""What one field of a JSON record holds: one description, by which it is written and read.

JSON has no NaN and no infinity. An infinite number is the word ``inf`` or ``-inf``; a number that
is not defined is null, and the word ``nan`` where null says that there is none. All other float64
numbers are written as they are and read back to the bit.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..intake import shown
from ..report import LateReply

LARGEST_COUNT = 2**53
"""The largest whole number of a record, so that a double holds each."""

LONGEST_NAME = 200
"""Of a name, in bytes."""

_WORDS = {"inf": math.inf, "-inf": -math.inf}


class DamagedError(Exception):
    """What is wrong with a record, without the place."""


@dataclass(frozen=True)
class Value:
    """How a field of a record is written and read.

    Parameters
    ----------
    written : callable
        Returns what JSON has, of the value.
    read : callable
        Returns the value, of what JSON has and of the field's name; raises DamagedError.
    """

    written: Callable[[Any], Any]
    read: Callable[[Any, str], Any]

    def of(self, fields: Mapping[str, Any], name: str) -> Any:
        """Return the value of the field ``name`` of a record.

        Raises
        ------
        DamagedError
            If it is missing or none of its values.
        """
        return self.read(given(fields, name), name)


def recorded(value: Value, **options: Any) -> Any:
    """Return the field of a dataclass that is recorded like this."""
    return field(metadata={"value": value}, **options)


# --- numbers -----------------------------------------------------------------------------------


def written_number(value: float) -> float | str | None:
    """Return a number as JSON has it, null for NaN."""
    if math.isfinite(value):
        return value if isinstance(value, int) else float(value)
    return None if math.isnan(value) else f"{value:g}"


def read_number(given: Any, name: str) -> float:
    """Return a number; null is NaN.

    Raises
    ------
    DamagedError
        If it is none, or a whole number that no float64 holds.
    """
    if given is None:
        return math.nan
    if isinstance(given, str) and given in _WORDS:
        return _WORDS[given]
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise DamagedError(f"{name} must be a number, null or inf, got {told(given)}")
    try:
        return float(given)
    except OverflowError:
        raise DamagedError(
            f"{name} must be a number of at most 1.8e308, got a larger one"
        ) from None


def _written_optional(value: float | None) -> float | str | None:
    if value is None:
        return None
    return "nan" if math.isnan(value) else written_number(value)


def _read_optional(given: Any, name: str) -> float | None:
    if given is None:
        return None
    return math.nan if given == "nan" else read_number(given, name)


def read_count(given: Any, name: str) -> int:
    """Return a whole number from 0 to ``LARGEST_COUNT``.

    Raises
    ------
    DamagedError
        If it is none.
    """
    value = read_whole(given, name)
    if value > LARGEST_COUNT:
        raise DamagedError(f"{name} must be a whole number <= {LARGEST_COUNT}, got a larger one")
    return value


def read_whole(given: Any, name: str) -> int:
    """Return a whole number >= 0, however large.

    Raises
    ------
    DamagedError
        If it is none.
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise DamagedError(f"{name} must be a whole number >= 0, got {told(given)}")
    return given


def _read_counts(given: Any, name: str) -> tuple[int, ...]:
    return tuple(read_count(value, name) for value in read_list(given, name))


COUNT = Value(int, read_count)
"""A whole number."""

NUMBER = Value(written_number, read_number)
"""A number, NaN where it is not defined."""

OPTIONAL = Value(_written_optional, _read_optional)
"""A number or None."""

CLIENTS = Value(lambda value: [int(k) for k in value], _read_counts)
"""Client ids."""


# --- what is made of them ----------------------------------------------------------------------


def one_of(words: Collection[str]) -> Value:
    """Return the description of one of these texts, or None."""

    def read(given: Any, name: str) -> str | None:
        if given is not None and (not isinstance(given, str) or given not in words):
            allowed = ", ".join(f"'{word}'" for word in words)
            raise DamagedError(f"{name} must be null or one of {allowed}, got {told(given)}")
        return given

    return Value(lambda value: value, read)


def _written_replies(replies: Sequence[LateReply]) -> list[dict[str, Any]]:
    return [
        {
            "round": one.round,
            "client": one.client,
            "reply_seconds": written_number(one.reply_seconds),
        }
        for one in replies
    ]


def _read_replies(given: Any, name: str) -> tuple[LateReply, ...]:
    replies = (read_object(one, name) for one in read_list(given, name))
    return tuple(
        LateReply(COUNT.of(one, "round"), COUNT.of(one, "client"), NUMBER.of(one, "reply_seconds"))
        for one in replies
    )


REPLIES = Value(_written_replies, _read_replies)
"""Replies to earlier rounds."""


def written_numbers(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers by name as JSON has them."""
    return {name: written_number(value) for name, value in numbers.items()}


def read_numbers(given: Any, name: str) -> dict[str, float]:
    """Return numbers by name.

    Raises
    ------
    DamagedError
        If it is no JSON object, or one of its values is no number.
    """
    numbers = read_object(given, name)
    return {key: read_number(value, key) for key, value in numbers.items()}


def read_text(given: Any, name: str) -> str:
    """Return a text.

    Raises
    ------
    DamagedError
        If it is none.
    """
    if not isinstance(given, str):
        raise DamagedError(f"{name} must be a text, got {told(given)}")
    return given


def read_name(given: Any, name: str) -> str:
    """Return a text that can be a heading or part of a file's name.

    Raises
    ------
    DamagedError
        If it is none.
    """
    value = read_text(given, name)
    if not value.isprintable() or len(value.encode()) > LONGEST_NAME:
        raise DamagedError(
            f"{name} must be one line of at most {LONGEST_NAME} bytes, got {told(value)}"
        )
    return value


def read_object(given: Any, name: str = "a record") -> Mapping[str, Any]:
    """Return a JSON object.

    Raises
    ------
    DamagedError
        If it is none.
    """
    if not isinstance(given, dict):
        raise DamagedError(f"{name} must be a JSON object, got {told(given)}")
    return given


def read_list(given: Any, name: str) -> Sequence[Any]:
    """Return a JSON list.

    Raises
    ------
    DamagedError
        If it is none.
    """
    if not isinstance(given, list):
        raise DamagedError(f"{name} must be a list, got {told(given)}")
    return given


def given(fields: Mapping[str, Any], name: str) -> Any:
    """Return what a record has for a field.

    Raises
    ------
    DamagedError
        If it has none.
    """
    if name not in fields:
        raise DamagedError(f"{name} is missing")
    return fields[name]


def told(value: object) -> str:
    """Return what a record has instead of what it should have, as far as a line can show it."""
    try:
        return shown(repr(value))
    except RecursionError:
        return "something deeply nested"
