"""Check the settings that say how to read the cells of a table."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from fedquorum.errors import SettingsError

from conf.schema.data import CsvSettings, HfSettings

_PLAIN_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?")
REPLACE_FORM = "a mapping such as {column: {old: new}}, or a list of [column, old, new]"


def check_cells(data: CsvSettings | HfSettings) -> None:
    """Check the kinds of columns, the missing values and the replaced values.

    Raises
    ------
    SettingsError
        If a column has two kinds, or a value may mean two things.
    """
    _check_kinds(data)
    if isinstance(data, CsvSettings) and data.columns is not None:
        _check_twins("columns.classes", data.columns.get("classes", []))
        for name, categories in data.columns.get("categories", {}).items():
            _check_twins(f"columns.categories.{name}", categories)
    values: Any = data.missing
    if not all(map(_is_value, values)) or any(isinstance(value, bool) for value in values):
        raise SettingsError(
            "data.missing must be a list of numbers and texts, words such as nan, null and true in "
            f"quotes, got {values!r}"
        )
    _check_twins("missing", values)
    _check_replacements(data.replace)


def _check_kinds(data: CsvSettings | HfSettings) -> None:
    for key, other in (("numbers", "categories"), ("categories", "numbers")):
        names = getattr(data, key)
        if names and getattr(data, "columns", None) is not None:
            raise SettingsError(
                f"data.{key} must be empty where data.columns names the columns, got {names}"
            )
        others = {data.client_column, data.target, *data.drop_columns, *getattr(data, other)}
        if taken := others & {*names}:
            raise SettingsError(
                f"data.{key} must be columns other than data.client_column, data.target and those "
                f"of data.drop_columns and data.{other}, got {min(taken)!r}"
            )


def _check_replacements(value: Any) -> None:
    if value is None:
        return
    triples: list[Any] = value if isinstance(value, list) else [()]
    if isinstance(value, dict) and all(isinstance(pairs, dict) for pairs in value.values()):
        triples = [(name, old, new) for name, each in value.items() for old, new in each.items()]
    is_valid = all(
        isinstance(triple, Sequence)
        and not isinstance(triple, str)
        and len(triple) == len(("column", "old", "new"))
        and isinstance(triple[0], str)
        and _is_value(triple[1])
        and (triple[2] is None or _is_value(triple[2]))
        for triple in triples
    )
    if not is_valid:
        raise SettingsError(f"data.replace must be {REPLACE_FORM}, got {value!r}")
    for name in {triple[0] for triple in triples}:
        _check_twins(f"replace of {name}", [old for column, old, _ in triples if column == name])


def _is_value(value: Any) -> bool:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return is_number or (isinstance(value, str) and bool(value.strip()))


def _check_twins(key: str, values: Iterable[Any]) -> None:
    """Refuse values that match the same cells, such as 1 and "1"."""
    listed = [value for value in values if not isinstance(value, bool | None)]
    texts = [value for value in listed if isinstance(value, str)]
    numbers = [float(value) for value in listed if not isinstance(value, str)]
    numbers += {float(text) for text in texts if _PLAIN_NUMBER.fullmatch(text)} & {*numbers}
    if len({*texts}) < len(texts) or len({*numbers}) < len(numbers):
        raise SettingsError(
            f"data.{key} must be values that match different cells, got {[*listed]}; a number "
            "matches all cells that are equal to it, a text in quotes the same text"
        )
