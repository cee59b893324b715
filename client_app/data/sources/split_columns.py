"""Read the columns that divide a client's rows: groups that stay together, and times."""

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from fedquorum.errors import DataError
from pandas.tseries.api import guess_datetime_format

from client_app.data.base import Labels
from client_app.data.coding.cells import is_number_type
from client_app.data.sources.table_files import TableOrigin
from client_app.data.split import RowDivision
from conf.schema.data import CsvSettings

ISO = "ISO8601"
ISO_BEGIN = re.compile(r"\d{4}-\d")


def read_division(files: TableOrigin, table: Any, settings: CsvSettings) -> RowDivision:
    """Return what ``data.group_column``, ``order_column`` and ``test_path`` say of the rows.

    Raises
    ------
    DataError
        If a group or a time is missing or no time, or if a group has rows for training and rows
        for testing.
    """
    groups = order = None
    is_test = None if settings.test_path is None else files.is_test
    if settings.group_column is not None:
        column = _get_complete_column(files, table, "group_column", settings.group_column)
        groups = read_groups(column)
        if is_test is not None:
            both = np.intersect1d(groups[is_test], groups[~is_test])
            if len(both):
                rows = [
                    int(np.flatnonzero((groups == both[0]) & part)[0])
                    for part in (~is_test, is_test)
                ]
                places = " and ".join(map(files.describe_row, rows))
                raise DataError(
                    "data.test_path must have other values of data.group_column than data.path, "
                    f"got {settings.group_column} {column[rows[0]].as_py()} in {places}"
                )
    if settings.order_column is not None:
        column = _get_complete_column(files, table, "order_column", settings.order_column)
        order = read_order(column, settings.order_column, files.describe_row)
    return RowDivision(groups, order, is_test)


def _get_complete_column(files: TableOrigin, table: Any, key: str, name: str) -> Any:
    column = table[name]
    if column.null_count:
        missing = np.flatnonzero(column.is_null().to_numpy())
        raise DataError(
            f"data.{key} must be a column without missing values, got {name}, which is missing in "
            f"{files.describe_row(int(missing[0]))} of {files.path}"
            + (f" and in {len(missing) - 1:,} more rows" if len(missing) > 1 else "")
        )
    return column


def read_groups(column: Any) -> Labels:
    """Return a number for each row, the same for equal cells, (n,)."""
    codes = pc.rank(column.combine_chunks(), tiebreaker="dense")
    return np.asarray(codes).astype(np.int64)


def read_order(column: Any, name: str, describe_row: Callable[[int], str]) -> Labels:
    """Return the rank of each row's time, (n,), for numbers or dates in one format.

    Raises
    ------
    DataError
        If a cell is no time, or if days and months cannot be told apart.
    """
    if pa.types.is_string(column.type):
        times = _read_times(column.to_pylist(), name, describe_row)
    elif is_number_type(column.type) or pa.types.is_temporal(column.type):
        times = column.to_pandas().to_numpy()
    else:
        raise DataError(
            f"data.order_column must be a column of dates or numbers, got {name} of type "
            f"{column.type}"
        )
    ranks: Labels = np.unique(times, return_inverse=True)[1].astype(np.int64)
    return ranks


def _read_times(cells: Sequence[str], name: str, describe_row: Callable[[int], str]) -> Any:
    series = pd.Series(cells, dtype=object)
    numbers = pd.to_numeric(series, errors="coerce")
    readings = [numbers] if np.isfinite(numbers).all() else []
    if not readings:
        readings = [_parse_dates(series, date_format) for date_format in _guess_formats(cells[0])]
    complete = [reading for reading in readings if reading.notna().all()]
    if not complete:
        best = max([numbers, *readings], key=lambda reading: int(reading.notna().sum()))
        row = int(np.flatnonzero(best.isna())[0])
        raise DataError(
            "data.order_column must be a column of numbers, or of dates in one format such as "
            f"2026-03-01, got {name}, which is {cells[row]!r} in {describe_row(row)}"
        )
    for other in complete[1:]:
        if not np.array_equal(
            np.argsort(other, kind="stable"), np.argsort(complete[0], kind="stable")
        ):
            raise DataError(
                "data.order_column must be a column of dates whose days and months can be told "
                f"apart, such as 2026-03-01, got {name}, which begins with {cells[0]!r}"
            )
    return complete[0].to_numpy()


def _guess_formats(cell: str) -> list[str]:
    """Return the formats that a date may have: ISO 8601, and with the day or the month first."""
    formats = [ISO]
    for day_first in () if ISO_BEGIN.match(cell) else (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the order of day and month
            guess = guess_datetime_format(cell, dayfirst=day_first)
        dotted = cell.count(".") == len(("day", "month")) and not day_first
        if guess is not None and guess not in formats and not dotted:
            formats.append(guess)
    return formats


def _parse_dates(series: Any, date_format: str) -> Any:
    return pd.to_datetime(series, format=date_format, errors="coerce", utc=True)
