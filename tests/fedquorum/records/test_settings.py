"""Tests of reading, writing and comparing recorded settings."""

import math
from typing import Any

import pytest
from fedquorum.records.settings import (
    CorruptSettingsError,
    dump_settings,
    find_setting_changes,
    flatten_settings,
    load_settings,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-05", 1e-05),
        ("-2e3", -2000.0),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("3.", 3.0),
        ("10", 10),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("null", None),
        ("", None),
        ("true", True),
        ("2026-01-02", "2026-01-02"),
        ("'1e-05'", "1e-05"),
        ("in-process", "in-process"),
        ("1e", "1e"),
        ("=", "="),
    ],
)
def test_scalars_are_read_as_omegaconf_wrote_them(text: str, value: object) -> None:
    """Short forms are numbers, unlike in YAML 1.1, and no text is a date."""
    found = load_settings(f"a: {text}\n")["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [
        *("1e5", ".5", "1:30", "1_0.5", "true", "2026-01-02", "null", "=", "~", "\x1b\u2028 a", ""),
        *(1e-320, 1e120, -0.0, math.inf, -math.inf, 2**70, [1e5, "1e5", None], {"1e5": {3: 0.5}}),
    ],
)
def test_settings_are_read_as_they_were_written(value: object) -> None:
    """A text that looks like a number stays a text."""
    settings = {"a": value, "b": value}
    found = load_settings(dump_settings(settings))
    assert repr(found) == repr(settings)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: [", 2, "expected YAML that can be read"),
        ("a: &a [1]\nb: *a", 2, "found undefined alias 'a'"),
        ("a: 1\nb: 2\na: 3", 3, "duplicate key a"),
        ("a: {0: 1, 0: 2}", 1, "duplicate key 0"),
        ("a: !!python/object/apply:os.getcwd []", 1, "could not determine a constructor"),
        ("a: !!binary aGk=", 1, "could not determine a constructor"),
        ("{[1]: 2}", 1, "found unhashable key"),
        ("[" * 5000, None, "expected YAML that can be read"),
        (f"a: {'1' * 5000}", None, "expected YAML that can be read"),
        ("a: \0", None, "expected YAML that can be read"),
        ("- 1", None, "expected settings by name, got list"),
        ("a", None, "expected settings by name, got str"),
    ],
)
def test_invalid_settings_are_refused(text: str, line: int | None, problem: str) -> None:
    """The error says in one line what is wrong and where."""
    with pytest.raises(CorruptSettingsError, match=problem) as error:
        load_settings(text)
    assert error.value.line == line
    assert "\n" not in str(error.value)


def test_an_empty_file_has_no_settings() -> None:
    """It is read as an empty mapping."""
    assert load_settings("") == {}


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ({"x": {"age": 1}}, {"x": {"age": 1}}, None),
        ({"x": {1: 0.5}}, {"x": {"1": 0.5}}, None),
        ({"x": math.nan, "y": [math.nan]}, {"x": math.nan, "y": [math.nan]}, None),
        ({"x": {"a": math.nan, "b": 1}}, {"x": {"b": 1, "a": math.nan}}, None),
        ({"x": 1}, {"x": 1, "later": 2}, None),
        ({"x": 1}, {}, (1, None)),
        ({"x": {}}, {"x": {"a": 1}}, ({}, {"a": 1})),
        ({"x": {"a": 1}}, {"x": {"a": 1, "b": 2}}, ({"a": 1}, {"a": 1, "b": 2})),
        ({"x": {"a": {"b": 1}}}, {"x": None}, ({"a.b": 1}, None)),
        ({"x": [{"a": 1}]}, {"x": [{"a": 2}]}, ([{"a": 1}], [{"a": 2}])),
        ({"x": 1, "ignored": 3}, {"x": 2, "ignored": 4}, (1, 2)),
    ],
)
def test_whole_settings_are_compared(
    then: Any, now: Any, expected: tuple[object, object] | None
) -> None:
    """Mappings have all their keys, NaN equals itself; newer settings are not compared."""
    before, after = (flatten_settings({"data": settings}) for settings in (then, now))
    found = list(find_setting_changes(before, after, lambda setting: setting != "data.ignored"))
    assert found == ([] if expected is None else [("data.x", *expected)])


def test_flat_settings_are_json_values() -> None:
    """Keys are joined by dots, tuples become lists, and an empty mapping is retained."""
    nested = {"a": {"b": (1, 2), "c": {0: 0.5}, "d": {}}, "e": None}
    assert flatten_settings(nested) == {"a.b": [1, 2], "a.c.0": 0.5, "a.d": {}, "e": None}
