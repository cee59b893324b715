"""Columns that are no inputs: dates, texts, and names of rows.

As categories they would be a column of 0 and 1 for nearly every row, which a model learns by heart.
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pandas.tseries.api import guess_datetime_format

from client_app.data.base import Labels

ENOUGH_ROWS = 20
"""Of fewer rows nothing can be said of how often a value returns."""

TEXT_WORDS = 5
"""A value of at least so many words, on average, is a text."""

TEXT_VALUES = 20
"""More different texts than these are no answers to choose from."""

NUMBERS_ROWS = re.compile(r"(^|[_\W])(?i:id|nr|no|number|index|key)$|[a-z](Id|ID|Nr|No)$")
"""How a column of whole numbers is called that numbers the rows."""

DAYS = (1900_01_01, 2100_12_31)
"""The first and the last day that a whole number is taken for."""

DATES, TIMES, TEXTS, NAMES = "dates", "times", "texts", "another value in nearly every row"
NUMBERED = "a number for each row of a client"


def why_no_input(name: str, column: Any, clients: Labels | None = None) -> str | None:
    """Return why a column is not an input; None for numbers and categories.

    Parameters
    ----------
    name : str
        The column's name.
    column : pyarrow.ChunkedArray
        Its cells, null where they are missing.
    clients : array of int64, optional
        The client of each row, where there are several.
    """
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return DATES
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return TIMES
    if pa.types.is_string(kind):
        known: list[str] = column.drop_null().to_pylist()
        return DATES if _are_dates(known) else _kind_of_words(known)
    if pa.types.is_integer(kind):
        return _kind_of_whole_numbers(name, column, clients)
    return None


def _are_dates(values: Sequence[str]) -> bool:
    """Say whether all values are dates in one format, that of the first."""
    if not values:
        return False
    for day_first in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of days that come first, or do not
            style = guess_datetime_format(values[0], dayfirst=day_first)
        if style is None:
            return False
        if pd.to_datetime(pd.Series(values), format=style, errors="coerce").notna().all():
            return True
    return False


def _kind_of_words(values: Sequence[str]) -> str | None:
    if len(values) < ENOUGH_ROWS:
        return None
    different = len(set(values))
    texts = np.mean([len(value.split()) for value in values]) >= TEXT_WORDS
    if texts and different > TEXT_VALUES:
        return TEXTS
    return NAMES if different > len(values) / 2 else None


def _kind_of_whole_numbers(name: str, column: Any, clients: Labels | None) -> str | None:
    """Return what numbers that name rows or days are.

    Whole numbers that differ in all rows may well be amounts. They number the rows if they leave no
    gap, or if the column is called so. Files of several clients often number their own rows each.
    Days are written as 20261122.
    """
    known = column.drop_null()
    if len(known) < ENOUGH_ROWS:
        return None
    ends = pc.min_max(known)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    days = low >= DAYS[0] and high <= DAYS[1]
    if days and _are_dates([str(n) for n in known.to_pylist()]):
        return DATES
    if len(known) < len(column):
        return None
    numbers, called_so = known.to_numpy(), NUMBERS_ROWS.search(name) is not None
    if _number_rows(numbers, called_so=called_so):
        return NAMES
    if clients is None or len(numbers) < ENOUGH_ROWS * (int(clients.max()) + 1):
        return None
    parts = np.split(numbers[np.argsort(clients, kind="stable")], np.cumsum(np.bincount(clients)))
    each = (_number_rows(part, called_so=called_so) for part in parts if len(part))
    return NUMBERED if all(each) else None


def _number_rows(numbers: NDArray[np.int64], *, called_so: bool) -> bool:
    """Say whether all numbers differ, and leave no gap or are called a number of rows."""
    without_gap = int(numbers.max()) - int(numbers.min()) == len(numbers) - 1
    return len(np.unique(numbers)) == len(numbers) and (without_gap or called_so)
