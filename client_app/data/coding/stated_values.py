"""Find cells that are equal to values of the settings."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from client_app.data.base import Labels
from client_app.data.coding.cell_forms import match_cells
from client_app.data.coding.cells import Cells
from client_app.data.coding.values import format_value

PLAIN_NUMBER = r"[+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?"
"""A number without leading zeros or an exponent, to which a number of the settings may be equal."""


def match_values(texts: pa.Array, values: Sequence[Any]) -> Labels:
    """Return the index in ``values`` of each text, -1 for none.

    A text of the settings matches the same text. A number n matches the texts that are equal to it
    as plain numbers: 1 matches ``1`` and ``1.0``, but not ``01`` or ``1E0``. True and false match
    these words in any case.
    """
    exact: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for i, value in enumerate(values):
        if isinstance(value, bool):
            exact |= dict.fromkeys((str(value), str(value).lower(), str(value).upper()), i)
        elif isinstance(value, str):
            exact[value] = i
        elif value is not None:
            numbers[_trim_zeros(f"{Decimal(repr(value)):f}")] = i
    indices = pc.index_in(texts, value_set=pa.array([*exact], pa.string()))
    found: Labels = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False)
    found = np.array([*exact.values(), -1], dtype=np.int64)[found]
    if numbers:
        is_plain = match_cells(texts, PLAIN_NUMBER) & (found < 0)
        plain = pc.if_else(pa.array(is_plain), texts, pa.scalar(None, pa.string()))
        floats = plain.cast(pa.float64()).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(is_plain & np.isin(floats, [*map(float, numbers)])).tolist():
            found[row] = numbers.get(_trim_zeros(texts[row].as_py()), -1)
    return found


def _trim_zeros(number: str) -> str:
    """Return a plain number without a plus sign and without zeros at its end."""
    trimmed = number.removeprefix("+")
    return trimmed.rstrip("0").rstrip(".") if "." in trimmed else trimmed


def drop_missing_values(table: Any, values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return a table with null for the values of ``data.missing``, and those that do not occur."""
    occurring: set[int] = set()
    for i, name in enumerate(table.column_names if values else ()):
        column = table[name]
        if pa.types.is_nested(column.type):
            continue
        cells = Cells.encode(column)
        indices = match_values(cells.texts, values)
        if (indices >= 0).any():
            occurring |= {*indices.tolist()}
            is_missing = pa.array(cells.expand(indices >= 0, missing=False))
            column = pc.if_else(is_missing, pa.scalar(None, column.type), column)
            table = table.set_column(i, name, column)
    return table, [value for i, value in enumerate(values) if i not in occurring]


def replace_values(column: Any, pairs: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    """Return a column as text with the values of ``data.replace``, and those that do not occur.

    A new value of None is an empty cell.
    """
    cells = Cells.encode(column)
    old, new = [*pairs], [*map(_to_cell, pairs.values())]
    indices = match_values(cells.texts, old)
    texts = [
        text if index < 0 else new[index]
        for text, index in zip(cells.texts.to_pylist(), indices.tolist(), strict=True)
    ]
    replaced = pa.array(texts, pa.string()).take(pa.array(cells.codes, mask=cells.codes < 0))
    return replaced, [value for i, value in enumerate(old) if i not in indices]


def _to_cell(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else format_value(value)
