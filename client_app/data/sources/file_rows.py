"""Name the columns of one file's rows, whatever the format of the file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from client_app.data.coding.cells import clean_text

INDEX_NAMES = {"Unnamed: 0", "__index_level_0__", "level_0"}
"""The names that pandas gives to an index without one."""

NUM_FIRST_ROWS = 10
"""The rows among which the header is searched."""

MAX_SHOWN = 60
"""Longer cells are cut in messages."""


@dataclass(frozen=True)
class FileRows:
    """The rows of one file.

    Parameters
    ----------
    file : Path
    table : pyarrow.Table
        The rows; text is trimmed and in NFC, and an empty cell is null.
    dropped_columns : mapping of str to str
        The columns without a name that were left out, and what they seem to hold.
    """

    file: Path
    table: Any
    dropped_columns: Mapping[str, str] = field(default_factory=dict)

    def describe_row(self, row: int) -> str:
        """Return the place of a row in the file, from 1, in words."""
        return f"row {row + 1}"


Rows = TypeVar("Rows", bound=FileRows)


def check_title(first_rows: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raise ValueError if the first row is a title above the header.

    Parameters
    ----------
    first_rows : sequence of (str, sequence of str)
        The place and the cells of the first rows.
    """
    rows = [(place, [clean_text(cell) for cell in cells]) for place, cells in first_rows]
    first_place, first_cells = rows[0]
    title = [cell for cell in first_cells if cell]
    for place, cells in rows[1:] if first_cells[0] else []:
        may_be_header = all(cells) and len(set(cells)) == len(cells) > max(len(title), 1)
        if may_be_header and not any(map(_is_number, cells)):
            raise ValueError(
                f"{first_place} is no header: {shorten(' '.join(title))} (delete the lines above "
                f"the names of the columns, which seem to be in {place})"
            )


def name_columns(rows: Rows, header: Sequence[str]) -> Rows:
    """Return the rows with the columns that have a name.

    Columns without one are left out if they are empty, as behind trailing commas, or if they count
    the rows, as the index of pandas and R does.

    Parameters
    ----------
    rows : FileRows
        Its columns have no names yet, and may be more than those of the header.
    header : sequence of str

    Raises
    ------
    ValueError
        If another column has no name, two have the same one, or the header is repeated below.
    """
    names = [clean_text(name) for name in header]
    names += [""] * (rows.table.num_columns - len(names))
    _check_repeated_header(rows, names)
    dropped = {}
    for i, name in enumerate(names):
        column = rows.table[i]
        if name and name not in INDEX_NAMES:
            continue
        shown = name or f"column {i + 1} without a name"
        if (not i or name) and _counts_rows(column):
            dropped[i] = (shown, "row numbers")
        elif not name and column.null_count == len(column):
            dropped[i] = (shown, "no cells")
        elif not name:
            raise ValueError(f"column {i + 1} of its header has no name")
    kept = [i for i in range(len(names)) if i not in dropped]
    repeated = [name for name, n in Counter(names[i] for i in kept).items() if n > 1]
    if repeated:
        raise ValueError(f"its header has {', '.join(repeated)} more than once")
    table = pa.table([rows.table[i] for i in kept], [names[i] for i in kept])
    return replace(rows, table=table, dropped_columns=dict(dropped.values()))


def _check_repeated_header(rows: FileRows, names: Sequence[str]) -> None:
    """Raise ValueError if a row has the names of the columns, as in files joined by ``cat``."""
    first = rows.table[0]
    if len(names) == 1 or not names[0] or not pa.types.is_string(first.type):
        return
    for row in np.flatnonzero(pc.equal(first, names[0]).fill_null(False).to_numpy()):
        cells = [column[row].as_py() for column in rows.table.columns]
        if [cell or "" for cell in cells] == names:
            raise ValueError(f"{rows.describe_row(int(row))} repeats the header; delete it")


def _counts_rows(column: Any) -> bool:
    """Return whether whole numbers differ in all rows, or start again after counting up."""
    if column.null_count or not len(column):
        return False
    try:
        numbers = column.cast(pa.int64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    steps = (np.diff(numbers) == 1) | (numbers[1:] == numbers[0])
    return len(np.unique(numbers)) == len(numbers) or bool(steps.all())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def shorten(text: str) -> str:
    """Return a text in one line, cut for a message."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + ".."
