"""Read single cells of a table that comes after the training."""

import math
import unicodedata
from typing import Any

import numpy as np

from client_app.data.sources.table_files import MISSING_VALUES

TRUTH_VALUES = {"true": 1.0, "false": 0.0}


def normalize_text(text: str) -> str:
    """Return a text without blanks around it, in Unicode form NFC."""
    return unicodedata.normalize("NFC", text.strip())


def is_missing(cell: Any) -> bool:
    """Return whether a cell that is no text is missing: None, NaN, pandas' NA or NaT."""
    if isinstance(cell, float | np.floating):
        return math.isnan(cell)
    return cell is None or type(cell).__name__ in {"NAType", "NaTType"}


def read_number(cell: Any, missing: frozenset[str]) -> float:
    """Return the number in a cell, NaN if it is missing.

    Parameters
    ----------
    cell : Any
        A number, or its text; true and false are 1 and 0.
    missing : frozenset of str
        Further texts of a missing cell.

    Raises
    ------
    ValueError
        If the cell holds no number that is finite in float32.
    """
    if isinstance(cell, str):
        cell = normalize_text(cell)
        if cell in MISSING_VALUES or cell in missing:
            return np.nan
        number = TRUTH_VALUES.get(cell.lower())
        if number is None:
            number = float(cell.replace("_", "?"))  # Python's digit groups are no number elsewhere
    elif is_missing(cell) or format_cell(cell) in missing:
        return np.nan
    else:
        number = float(cell)
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(number)):
            raise ValueError(f"{number} is not finite in float32")
    return number


def read_category(cell: Any, missing: frozenset[str]) -> str | None:
    """Return the category in a cell as text, None if it is missing."""
    if not isinstance(cell, str):
        if is_missing(cell):
            return None
        cell = format_cell(cell)
    cell = normalize_text(cell)
    return None if cell in MISSING_VALUES or cell in missing else cell


def format_cell(value: Any) -> str:
    """Return a cell as text: whole numbers without a decimal point, truth in lower case."""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if is_whole else str(value)
