"""Read the files of one table: one or several CSV or Parquet files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from client_app.data.base import Labels
from client_app.data.sources.prepared import describe_missing_file

MISSING_VALUES = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")
NUM_HEADER_LINES = 1
PARQUET_SUFFIX = ".parquet"
TABLE_SUFFIXES = (".csv", PARQUET_SUFFIX)
FOREIGN_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Column separators of other formats."""


@dataclass(frozen=True)
class TableFiles:
    """The files from which the rows of a table were read.

    Parameters
    ----------
    path : Path
        ``data.path``: a file, a folder or a pattern.
    files : tuple of Path
        The files, in the order of the rows.
    counts : tuple of int
        The number of rows of each file.
    """

    path: Path
    files: tuple[Path, ...]
    counts: tuple[int, ...]

    @property
    def has_several(self) -> bool:
        """Whether the path is a folder or a pattern, which may match a single file."""
        return self.files != (self.path,)

    @property
    def names(self) -> tuple[str, ...]:
        """The files' names without folder and suffix."""
        return tuple(file.stem for file in self.files)

    @property
    def file_indices(self) -> Labels:
        """The index in ``files`` of each row's file, (n,)."""
        return np.repeat(np.arange(len(self.files), dtype=np.int64), self.counts)

    def check_rows(self, rows: int | None) -> None:
        """Raise ValueError if ``data.expected_rows`` is set and differs from the number of rows."""
        if rows not in {None, sum(self.counts)}:
            raise ValueError(f"it must have data.expected_rows {rows}, got {sum(self.counts)}")

    def describe_row(self, row: int) -> str:
        """Return a row's line number, from 1, in words; empty lines of a CSV file are not rows."""
        before = np.cumsum((0, *self.counts))
        file = int(np.searchsorted(before, row, side="right")) - 1
        location = _describe_row(self.files[file], row - int(before[file]))
        return location if len(self.files) == 1 else f"{location} of {self.files[file].name}"


def _describe_row(file: Path, row: int) -> str:
    if file.suffix == PARQUET_SUFFIX:
        return f"row {row + 1}"
    with file.open(encoding="utf-8", errors="replace") as lines:
        filled = (number for number, line in enumerate(lines, 1) if line.strip("\n"))
        return f"line {next(islice(filled, NUM_HEADER_LINES + row, None))}"


def read_files(path: Path) -> tuple[TableFiles, Any]:
    """Return the files of a path, and their rows in one Arrow table.

    A folder means all .csv and .parquet files directly in it, and a pattern with ``*`` all files
    that it matches, in the order of their names. All must have the same columns. If a column has
    numbers in one file and text in another, all its cells become text.

    Raises
    ------
    ValueError
        If the files are missing, or are no table.
    """
    files = _find_files(path)
    tables = [_read(file) if file == path else _read_named(file) for file in files]
    names = tables[0].column_names
    for file, table in zip(files, tables, strict=True):
        if other := set(table.column_names) ^ set(names):
            raise ValueError(
                f"all files must have the same columns, got {min(other)} in one of "
                f"{files[0].name} and {file.name} only"
            )
    merged = pa.table({name: _merge_column([table[name] for table in tables]) for name in names})
    return TableFiles(path, files, tuple(map(len, tables))), merged


def _find_files(path: Path) -> tuple[Path, ...]:
    if path.is_file():
        return (path,)
    pattern = path / "*" if path.is_dir() else path
    matching = Path(path.anchor).glob(str(pattern.relative_to(path.anchor)))
    found = sorted(file for file in matching if file.suffix in TABLE_SUFFIXES)
    if not found:
        raise ValueError(describe_missing_file(path))
    repeated = [stem for stem, count in Counter(file.stem for file in found).items() if count > 1]
    if repeated:
        raise ValueError(f"there are several files called {repeated[0]}")
    return tuple(found)


def _read_named(file: Path) -> Any:
    """Return the table of one of several files; errors name the file."""
    try:
        return _read(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name}: {error}") from None


def _read(file: Path) -> Any:
    table = _read_parquet(file) if file.suffix == PARQUET_SUFFIX else _read_csv(file)
    names = table.schema.names
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"its header has {', '.join(repeated)} more than once")
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} of its header has no name")
    if not table.num_rows:
        raise ValueError("it has no rows")
    return table


def _read_csv(file: Path) -> Any:
    _check_header(file)
    # One block, so that the type of a column depends on all its cells; one thread, so that errors
    # name the row.
    block = min(file.stat().st_size + 1, 2**31 - 1)
    return csv.read_csv(
        file,
        read_options=csv.ReadOptions(use_threads=False, block_size=block),
        convert_options=csv.ConvertOptions(
            null_values=list(MISSING_VALUES), strings_can_be_null=True
        ),
    )


def _check_header(file: Path) -> None:
    """Raise ValueError for another column separator, as spreadsheets in many countries use."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        header = lines.readline()
    for sign, name in FOREIGN_SEPARATORS.items():
        if sign in header and "," not in header:
            raise ValueError(
                f"its columns must be separated by commas, got {name} in the header (numbers need "
                "a decimal point)"
            )


def _read_parquet(file: Path) -> Any:
    """Return a Parquet table with the column types of a CSV file."""
    table = pq.ParquetFile(file).read()
    return pa.table({name: _convert_column(table[name]) for name in table.column_names})


def _convert_column(column: Any) -> Any:
    """Convert a Parquet column to text or numbers, with null for missing values."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_large_string(column.type) or types.is_string_view(column.type):
        column = column.cast(pa.string())
    if types.is_decimal(column.type) or types.is_float16(column.type):
        column = column.cast(pa.float64())
    if types.is_string(column.type):
        missing = pc.is_in(column, value_set=pa.array(MISSING_VALUES))
        return pc.if_else(missing, pa.scalar(None, pa.string()), column)
    if types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _merge_column(columns: Sequence[Any]) -> Any:
    """Concatenate a column of all files, in a type that holds the values of each."""
    types = {column.type for column in columns} - {pa.null()}
    if len(types) > 1:
        common = pa.float64() if all(map(is_number_type, types)) else pa.string()
        columns = [column.cast(common) for column in columns]
    elif types:
        columns = [column.cast(*types) for column in columns]
    return pa.chunked_array(
        [chunk for column in columns for chunk in column.chunks], columns[0].type
    )


def is_number_type(kind: Any) -> bool:
    """Return whether a column type holds numbers; true and false are 1 and 0."""
    types = pa.types
    return any(
        matches(kind)
        for matches in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    )
