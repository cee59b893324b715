"""Read tables that are in memory as files are read in training, with pandas and pyarrow."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from fedquorum.errors import DataError
from fedquorum.sanitize import sanitize

from client_app.data.base import Labels
from client_app.data.coding.cell_forms import describe_cell
from client_app.data.coding.cells import Cells, clean_column, clean_text, parse_column
from client_app.data.coding.stated_values import drop_missing_values, match_values, replace_values
from client_app.data.coding.values import UNKNOWN, Value, format_value
from client_app.data.moments import Numbers

ROWS_REQUIRED = (
    "the rows must be a DataFrame, a dict of columns, the dict of a row, or a list of such"
)


def build_frame(rows: Any) -> Any:
    """Return rows as a pandas DataFrame whose column names are trimmed.

    Raises
    ------
    DataError
        If they are no table.
    """
    if isinstance(rows, pd.Series):
        rows = rows.to_frame().T
    elif isinstance(rows, Mapping):
        is_row = all(
            isinstance(cell, str) or not hasattr(cell, "__len__") for cell in rows.values()
        )
        rows = [rows] if is_row else dict(rows)
    listed = rows if isinstance(rows, pd.DataFrame | dict) else _list_dicts(rows)
    try:
        frame = pd.DataFrame(listed)
    except ValueError as error:  # columns of different lengths
        raise DataError(f"{ROWS_REQUIRED}, got {type(rows).__name__}: {error}") from None
    return frame.set_axis([clean_text(format_value(name)) for name in frame.columns], axis=1)


def _list_dicts(rows: Any) -> list[Mapping[Any, Any]]:
    listed = list(rows) if isinstance(rows, list | tuple) else []
    if not listed or not all(isinstance(row, Mapping) for row in listed):
        raise DataError(f"{ROWS_REQUIRED}, got {type(rows).__name__}")
    return listed


def read_columns(
    frame: Any,
    names: Sequence[str],
    missing: Sequence[Value],
    replacements: Mapping[str, Mapping[Any, Any]],
) -> Any:
    """Return the columns of a DataFrame as an Arrow table, as it is after the reading of a file.

    Numbers and truth values keep their type; everything else is text, trimmed and in NFC, and null
    if it is empty. ``missing`` values are null too, and ``replacements`` are made.
    """
    table = pa.table({name: _read_column(frame[name]) for name in names})
    table, _ = drop_missing_values(table, missing)
    for name in replacements.keys() & {*names}:
        column, _ = replace_values(table[name], replacements[name])
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def _read_column(values: Any) -> Any:
    dtype = values.dtype
    if pd.api.types.is_bool_dtype(dtype) or pd.api.types.is_integer_dtype(dtype):
        return pa.Array.from_pandas(values)
    if pd.api.types.is_float_dtype(dtype):
        return pa.Array.from_pandas(values.astype("float64"))
    return clean_column(pa.array(map(_to_text, values.tolist()), pa.string()))


def _to_text(cell: Any) -> str | None:
    """Return a cell as text; None if it is None, NaN, or pandas' NA or NaT."""
    if isinstance(cell, str):
        return cell.encode(errors="replace").decode()
    is_nan = isinstance(cell, float | np.floating) and math.isnan(cell)
    if cell is None or is_nan or type(cell).__name__ in {"NAType", "NaTType"}:
        return None
    return format_value(cell.item() if isinstance(cell, np.generic) else cell)


def read_numbers(name: str, texts: Any, *, odd_as_missing: bool) -> Numbers:
    """Return a column of numbers (n,), NaN where one is missing.

    Raises
    ------
    DataError
        If a cell is no number, unless ``odd_as_missing``, or none that is finite in float32.
    """
    column = parse_column(texts, "numbers")
    found = column.values  # noqa: PD011 - Arrow's
    missing = found.is_null().to_numpy(zero_copy_only=False)
    numbers = found.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    values: Numbers = np.where(missing, np.nan, numbers)
    with np.errstate(over="ignore"):
        is_wrong = ~missing & ~np.isfinite(values.astype(np.float32))
    if column.odd is not None and not odd_as_missing:
        is_wrong |= column.odd
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        cell = texts[row].as_py()
        form, advice = describe_cell(cell, name) if isinstance(cell, str) else ("", "")
        hint = f" ({form}: {advice})" if advice.startswith("write ") else ""
        raise DataError(
            f"{sanitize(name)} must be a number that is finite in float32, as in training, "
            f"got {sanitize(repr(cell))} in row {row + 1}{hint}"
        )
    return values


def find_categories(column: Any, values: Sequence[Value]) -> tuple[Labels, list[str]]:
    """Return the place in ``values`` of each cell (n,), and the cells that are not there.

    Such cells have the place ``UNKNOWN``, and empty ones -1 if None is not among the values.
    """
    cells = Cells.encode(column)
    found = match_values(cells.texts, values)
    typed = cells.values  # noqa: PD011 - Arrow's
    if not pa.types.is_string(typed.type):  # a typed 3.0 is the category "3" or "3.0"
        names = pa.array(["" if value is None else format_value(value) for value in values])
        for i in np.flatnonzero(found < 0).tolist():
            equal = np.flatnonzero(match_values(names, [typed[i].as_py()]) >= 0)
            found[i] = equal[0] if len(equal) else -1
    unknown = [cells.texts[i].as_py() for i in np.flatnonzero(found < 0).tolist()]
    found[found < 0] = UNKNOWN
    empty = values.index(None) if None in values else -1
    places: Labels = cells.expand(found, empty)
    return places, unknown
