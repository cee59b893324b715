"""Describe cells of columns of numbers that are no numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError

from client_app.data.coding.cell_forms import describe_cell
from client_app.data.coding.cells import Column
from client_app.data.overrides import format_override
from client_app.data.sources.client_table import abbreviate_names
from client_app.data.sources.table_files import TableOrigin
from conf.schema.data import CsvSettings

MAX_CELLS = 5
MAX_COLUMNS = 3
MAX_FORMS = 3
"""How many cells of how many columns an error shows, and in how many forms."""

MAX_CELLS_READ = 1000


def count_invalid_cells(
    columns: Mapping[str, Column], settings: CsvSettings, table: Any, files: TableOrigin
) -> dict[str, int]:
    """Return how many odd cells of each column of numbers ``data.invalid_cells`` makes missing.

    Raises
    ------
    DataError
        If it refuses such cells, or most cells of a column would be missing and ``data.numbers``
        does not name it.
    """
    odd = {name: column for name, column in columns.items() if column.num_odd}
    most = {
        name: column
        for name, column in odd.items()
        if column.num_odd > column.num_numbers and name not in settings.numbers
    }
    refused = odd if settings.invalid_cells == "error" else most
    if not refused:
        return {name: column.num_odd for name, column in odd.items()}
    names = [*refused][:MAX_COLUMNS]
    advice = [f"{format_override('drop_columns', names)} leaves them out"]
    if settings.columns is None:
        advice.insert(0, f"{format_override('categories', names)} takes them as categories")
    if not most:
        advice.insert(0, "data.invalid_cells=missing takes such cells as missing")
    raise DataError(
        f"data.path must have columns of numbers without other cells, got {files.path}: "
        f"{describe_odd_cells(refused, table, files)}. {', '.join(advice)}"
    )


def describe_odd_cells(columns: Mapping[str, Column], table: Any, files: TableOrigin) -> str:
    """Return the first odd cells of each column with their lines, forms and corrections.

    Parameters
    ----------
    columns : mapping of str to Column
        Columns of numbers with odd cells.
    table : pyarrow.Table
        The cells as read.
    files : TableOrigin
    """
    shown = [*columns][:MAX_COLUMNS]
    parts = [_describe_column(name, columns[name], table[name], files) for name in shown]
    others = [name for name in columns if name not in shown]
    if others:
        parts.append(f"and cells of {abbreviate_names(others)}")
    return "; ".join(parts)


def _describe_column(name: str, column: Column, texts: Any, files: TableOrigin) -> str:
    rows = np.flatnonzero([] if column.odd is None else column.odd)
    cells = texts.take(pa.array(rows[:MAX_CELLS_READ])).to_pylist()
    lines = ", ".join(
        f"{files.describe_row(int(row))} has {cell!r}"
        for row, cell in zip(rows[:MAX_CELLS], cells, strict=False)
    )
    more = f", ... ({len(rows):,} cells in all)" if len(rows) > MAX_CELLS else ""
    forms: dict[str, str] = {}
    for cell in dict.fromkeys(cells):
        form, advice = describe_cell(cell, name)
        forms.setdefault(form, f"{cell} {form}: {advice}")
    return f"{name}: {lines}{more}: {'; '.join([*forms.values()][:MAX_FORMS])}"
