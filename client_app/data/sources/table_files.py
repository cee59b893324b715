"""Read the files of one table: one or several CSV or Parquet files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from client_app.data.base import Labels
from client_app.data.sources.file_rows import FileRows
from client_app.data.sources.prepared import describe_missing_file
from client_app.data.sources.table_formats import read_table_file

PARQUET_SUFFIX = ".parquet"
TABLE_SUFFIXES = (".csv", PARQUET_SUFFIX)


@dataclass(frozen=True)
class TableFiles:
    """The files from which the rows of a table were read.

    Parameters
    ----------
    path : Path
        ``data.path``: a file, a folder or a pattern.
    parts : tuple of FileRows
        The files and their rows, in the order of the table.
    """

    path: Path
    parts: tuple[FileRows, ...]

    @property
    def has_several(self) -> bool:
        """Whether the path is a folder or a pattern, which may match a single file."""
        return [part.file for part in self.parts] != [self.path]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of rows of each file."""
        return tuple(part.table.num_rows for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The files' names without folder and suffix."""
        return tuple(part.file.stem for part in self.parts)

    @property
    def file_indices(self) -> Labels:
        """The index in ``parts`` of each row's file, (n,)."""
        return np.repeat(np.arange(len(self.parts), dtype=np.int64), self.counts)

    def check_rows(self, rows: int | None) -> None:
        """Raise ValueError if ``data.expected_rows`` is set and differs from the number of rows."""
        if rows not in {None, sum(self.counts)}:
            raise ValueError(f"it must have data.expected_rows {rows}, got {sum(self.counts)}")

    def describe_row(self, row: int) -> str:
        """Return the place of a row in words: its line from 1, and the file if there are several.

        Empty lines of a CSV file count as lines, but are not rows.
        """
        before = np.cumsum((0, *self.counts))
        index = int(np.searchsorted(before, row, side="right")) - 1
        part = self.parts[index]
        location = part.describe_row(row - int(before[index]))
        return location if len(self.parts) == 1 else f"{location} of {part.file.name}"


def read_files(path: Path) -> tuple[TableFiles, Any]:
    """Return the files of a path, and their rows in one Arrow table.

    A folder means all .csv and .parquet files directly in it, and a pattern with ``*`` all files
    that it matches, in the order of their names. All must have the same columns. All columns of a
    CSV file are text, see ``read_csv_file``; those of a Parquet file keep their types, and their
    text is treated alike. A column of several types becomes text.

    Raises
    ------
    ValueError
        If the files are missing, or are no table.
    """
    files = _find_files(path)
    parts = tuple(read_table_file(file) if file == path else _read_named(file) for file in files)
    tables = [part.table for part in parts]
    names = tables[0].column_names
    for file, table in zip(files, tables, strict=True):
        if other := set(table.column_names) ^ set(names):
            raise ValueError(
                f"all files must have the same columns, got {min(other)} in one of "
                f"{files[0].name} and {file.name} only"
            )
    merged = pa.table({name: _merge_column([table[name] for table in tables]) for name in names})
    return TableFiles(path, parts), merged


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


def _read_named(file: Path) -> FileRows:
    """Return the table of one of several files; errors name the file."""
    try:
        return read_table_file(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file.name}: {error}") from None


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
