"""Detect columns that are not inputs: dates, texts, and row identifiers.

As categories they would give a column of 0 and 1 for nearly every row, which a model memorizes.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from client_app.data.base import Labels
from client_app.data.coding.cells import Cells, Column, match_dates

MIN_ROWS = 20
"""With fewer rows the frequency of values is not conclusive."""

MIN_TEXT_WORDS = 5
"""Values with at least this mean number of words are texts."""

MAX_TEXT_CHOICES = 20
"""More distinct texts than this are not categories."""

ROW_NUMBER_NAME = re.compile(r"(^|[_\W])(?i:id|nr|no|number|index|key)$|[a-z](Id|ID|Nr|No)$")
"""Names of columns of whole numbers that number the rows."""

DATE_RANGE = (1900_01_01, 2100_12_31)
"""The first and the last whole number that may be a day, as YYYYMMDD."""

DATES, TIMES, TEXTS, NAMES = "dates", "times", "texts", "another value in nearly every row"
ROW_NUMBERS = "a number for each row of a client"


def find_exclusion_reason(name: str, column: Column, clients: Labels | None = None) -> str | None:
    """Return why a column is not an input, or None for numbers and categories.

    Parameters
    ----------
    name : str
        The column's name.
    column : Column
        Its cells.
    clients : array of int64, optional
        The client of each row, if there are several clients.
    """
    kind = column.values.type
    if column.kind in {"dates", "times"}:
        reason = DATES if column.kind == "dates" else TIMES
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        reason = DATES
    elif pa.types.is_time(kind) or pa.types.is_duration(kind):
        reason = TIMES
    elif pa.types.is_string(kind):
        return _infer_text_kind(Cells.encode(column.values))
    elif pa.types.is_integer(kind):
        return _infer_integer_kind(name, column, clients)
    else:
        return None
    return _name_odd_cells(reason, column)


def _name_odd_cells(reason: str, column: Column) -> str:
    odd = column.num_odd
    return f"{reason}, beside {odd:,} other cell{'' if odd == 1 else 's'}" if odd else reason


def _infer_text_kind(cells: Cells) -> str | None:
    rows, different = int(cells.counts.sum()), len(cells.texts)
    if rows < MIN_ROWS:
        return None
    words = pc.count_substring_regex(cells.texts, r"\S+").to_numpy(zero_copy_only=False)
    texts = words @ cells.counts / rows >= MIN_TEXT_WORDS
    if texts and different > MAX_TEXT_CHOICES:
        return TEXTS
    return NAMES if different > rows / 2 else None


def _infer_integer_kind(name: str, parsed: Column, clients: Labels | None) -> str | None:
    """Return the kind of whole numbers that are dates or row numbers, or None.

    Whole numbers that differ in all rows may be amounts. They number the rows if they leave no gap,
    or if the column's name matches. Files of several clients often number the rows of each file.
    Days are written as 20261122.
    """
    column = parsed.values
    values = column.drop_null()
    if len(values) < MIN_ROWS:
        return None
    ends = pc.min_max(values)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    days = low >= DATE_RANGE[0] and high <= DATE_RANGE[1]
    if days and match_dates(values.unique().cast(pa.string())).all():
        return _name_odd_cells(DATES, parsed)
    if len(values) < len(column):
        return None
    numbers, name_matches = values.to_numpy(), ROW_NUMBER_NAME.search(name) is not None
    if _is_row_number(numbers, name_matches=name_matches):
        return NAMES
    if clients is None or len(numbers) < MIN_ROWS * (int(clients.max()) + 1):
        return None
    by_client = np.split(
        numbers[np.argsort(clients, kind="stable")], np.cumsum(np.bincount(clients))
    )
    matches = (
        _is_row_number(client_numbers, name_matches=name_matches)
        for client_numbers in by_client
        if len(client_numbers)
    )
    return ROW_NUMBERS if all(matches) else None


def _is_row_number(numbers: NDArray[np.int64], *, name_matches: bool) -> bool:
    """Return whether all numbers differ, and leave no gap or have a matching column name."""
    without_gap = int(numbers.max()) - int(numbers.min()) == len(numbers) - 1
    return len(np.unique(numbers)) == len(numbers) and (without_gap or name_matches)
