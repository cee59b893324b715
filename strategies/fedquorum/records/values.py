"""Encode and decode the fields of JSON records; writer and reader use the same codecs.

JSON has no NaN and no infinity. An infinite number is the text ``inf`` or ``-inf``. An undefined
number is null, or the text ``nan`` if null means that there is no number. All other float64 numbers
are restored bit by bit.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..rules.decisions import LateReply
from ..sanitize import sanitize

MAX_COUNT = 2**53
"""The largest whole number of a record; a float64 holds each up to it."""

MAX_NAME_BYTES = 200
"""The longest name, in bytes."""

_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


class CorruptRecordError(Exception):
    """A record is invalid; the message does not say where it is."""


@dataclass(frozen=True)
class FieldCodec:
    """The encoding of a record's field in JSON.

    Parameters
    ----------
    to_json : callable
        Encodes a value.
    from_json : callable
        Decodes a value, given the JSON and the field's name; raises CorruptRecordError.
    """

    to_json: Callable[[Any], Any]
    from_json: Callable[[Any, str], Any]

    def read_field(self, fields: Mapping[str, Any], name: str) -> Any:
        """Return the value of the field ``name`` of a record.

        Raises
        ------
        CorruptRecordError
            If the field is missing or invalid.
        """
        return self.from_json(get_field(fields, name), name)


def json_field(codec: FieldCodec, **options: Any) -> Any:
    """Return a dataclass field with this codec."""
    return field(metadata={"value": codec}, **options)


# --- numbers -----------------------------------------------------------------------------------


def to_json_number(value: float) -> float | str | None:
    """Return a number as JSON, null for NaN."""
    if math.isfinite(value):
        return value if isinstance(value, int) else float(value)
    return None if math.isnan(value) else f"{value:g}"


def read_number(given: Any, name: str) -> float:
    """Return a number; null is NaN.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no number, or a whole number that no float64 holds.
    """
    if given is None:
        return math.nan
    if isinstance(given, str) and given in _INFINITIES:
        return _INFINITIES[given]
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise CorruptRecordError(
            f"{name} must be a number, null or inf, got {describe_value(given)}"
        )
    try:
        return float(given)
    except OverflowError:
        raise CorruptRecordError(
            f"{name} must be a number of at most 1.8e308, got a larger one"
        ) from None


def _to_json_optional(value: float | None) -> float | str | None:
    if value is None:
        return None
    return "nan" if math.isnan(value) else to_json_number(value)


def _read_optional(given: Any, name: str) -> float | None:
    if given is None:
        return None
    return math.nan if given == "nan" else read_number(given, name)


def read_count(given: Any, name: str) -> int:
    """Return a whole number from 0 to ``MAX_COUNT``.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no such number.
    """
    value = read_nonnegative_int(given, name)
    if value > MAX_COUNT:
        raise CorruptRecordError(f"{name} must be a whole number <= {MAX_COUNT}, got a larger one")
    return value


def read_nonnegative_int(given: Any, name: str) -> int:
    """Return a whole number >= 0, however large.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no such number.
    """
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise CorruptRecordError(f"{name} must be a whole number >= 0, got {describe_value(given)}")
    return given


def _read_client_ids(given: Any, name: str) -> tuple[int, ...]:
    return tuple(read_count(value, name) for value in read_list(given, name))


COUNT = FieldCodec(int, read_count)
"""A whole number."""

NUMBER = FieldCodec(to_json_number, read_number)
"""A number, NaN if undefined."""

OPTIONAL_NUMBER = FieldCodec(_to_json_optional, _read_optional)
"""A number or None."""

CLIENT_ID_LIST = FieldCodec(lambda value: [int(k) for k in value], _read_client_ids)
"""Client ids."""


# --- texts, lists and objects ------------------------------------------------------------------


def optional_choice(choices: Collection[str]) -> FieldCodec:
    """Return the codec of one of these texts, or None."""

    def read(given: Any, name: str) -> str | None:
        if given is not None and (not isinstance(given, str) or given not in choices):
            allowed = ", ".join(f"'{choice}'" for choice in choices)
            raise CorruptRecordError(
                f"{name} must be null or one of {allowed}, got {describe_value(given)}"
            )
        return given

    return FieldCodec(lambda value: value, read)


def _to_json_replies(replies: Sequence[LateReply]) -> list[dict[str, Any]]:
    return [
        {
            "round": reply.round,
            "client": reply.client,
            "reply_seconds": to_json_number(reply.reply_seconds),
        }
        for reply in replies
    ]


def _read_replies(given: Any, name: str) -> tuple[LateReply, ...]:
    replies = (read_object(reply, name) for reply in read_list(given, name))
    return tuple(
        LateReply(
            COUNT.read_field(reply, "round"),
            COUNT.read_field(reply, "client"),
            NUMBER.read_field(reply, "reply_seconds"),
        )
        for reply in replies
    )


LATE_REPLIES = FieldCodec(_to_json_replies, _read_replies)
"""Replies to earlier rounds."""


def to_json_numbers(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers by name as JSON."""
    return {name: to_json_number(value) for name, value in numbers.items()}


def read_numbers(given: Any, name: str) -> dict[str, float]:
    """Return numbers by name.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no JSON object, or one of its values is no number.
    """
    numbers = read_object(given, name)
    return {key: read_number(value, key) for key, value in numbers.items()}


def read_text(given: Any, name: str) -> str:
    """Return a text.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no text.
    """
    if not isinstance(given, str):
        raise CorruptRecordError(f"{name} must be a text, got {describe_value(given)}")
    return given


def read_name(given: Any, name: str) -> str:
    """Return a text that can be a heading or part of a file's name.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no such text.
    """
    value = read_text(given, name)
    if not value.isprintable() or len(value.encode()) > MAX_NAME_BYTES:
        raise CorruptRecordError(
            f"{name} must be one line of at most {MAX_NAME_BYTES} bytes, "
            f"got {describe_value(value)}"
        )
    return value


def read_object(given: Any, name: str = "a record") -> Mapping[str, Any]:
    """Return a JSON object.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no object.
    """
    if not isinstance(given, dict):
        raise CorruptRecordError(f"{name} must be a JSON object, got {describe_value(given)}")
    return given


def read_list(given: Any, name: str) -> Sequence[Any]:
    """Return a JSON list.

    Raises
    ------
    CorruptRecordError
        If ``given`` is no list.
    """
    if not isinstance(given, list):
        raise CorruptRecordError(f"{name} must be a list, got {describe_value(given)}")
    return given


def get_field(fields: Mapping[str, Any], name: str) -> Any:
    """Return the value of a record's field.

    Raises
    ------
    CorruptRecordError
        If the field is missing.
    """
    if name not in fields:
        raise CorruptRecordError(f"{name} is missing")
    return fields[name]


def describe_value(value: object) -> str:
    """Return an invalid value as text that fits in one line."""
    try:
        return sanitize(repr(value))
    except RecursionError:
        return "something deeply nested"
