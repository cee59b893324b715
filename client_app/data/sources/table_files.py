"""Read the files of one table: one or several CSV, Parquet or Excel files."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from client_app.data.base import Labels
from client_app.data.coding.cells import clean_text, is_number_type
from client_app.data.sources.file_rows import FileRows
from client_app.data.sources.find_files import (
    MAX_LISTED,
    FoundFile,
    FoundFiles,
    find_files,
    find_test_file,
)
from client_app.data.sources.table_formats import read_table_file


class TableOrigin(Protocol):
    """Where the rows of a table come from."""

    @property
    def path(self) -> Path:
        """``data.path``."""

    @property
    def has_several(self) -> bool:
        """Whether each of several files may be a client."""

    @property
    def names(self) -> tuple[str, ...]:
        """The clients that files and folders tell."""

    @property
    def client_indices(self) -> Labels:
        """The index in ``names`` of each row's client, (n,)."""

    @property
    def client_key(self) -> str | None:
        """The column that folders name."""

    @property
    def is_test(self) -> NDArray[np.bool_]:
        """Whether each row is one of ``data.test_path``, (n,)."""

    @property
    def dropped_columns(self) -> Mapping[str, str]:
        """The columns that were left out before the reading, and what they seem to hold."""

    @property
    def passed_over(self) -> Mapping[str, int]:
        """The files that were not read."""

    def list_doubts(self, *, named: bool) -> tuple[str, ...]:
        """Return doubts about the files, with their names if they may be named."""

    def describe_row(self, row: int) -> str:
        """Return the place of a row in words."""


@dataclass(frozen=True)
class TableFiles:
    """The files from which the rows of a table were read.

    Parameters
    ----------
    path : Path
        ``data.path``: a file, a folder or a pattern.
    found : FoundFiles
        The files, in the order of the rows.
    parts : tuple of FileRows
        Their rows.
    num_test_files : int
        How many of the files, the last ones, are those of ``data.test_path``.
    """

    path: Path
    found: FoundFiles
    parts: tuple[FileRows, ...]
    num_test_files: int = 0

    @property
    def has_several(self) -> bool:
        """Whether the path is a folder or a pattern, which may match a single file."""
        return self.parts[0].file != self.path

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of rows of each file."""
        return tuple(part.table.num_rows for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients that the names of files and folders tell, in the files' order."""
        return tuple(dict.fromkeys(clean_text(file.client) for file in self.found.files))

    @property
    def client_indices(self) -> Labels:
        """The index in ``names`` of each row's client, (n,)."""
        clients = [self.names.index(clean_text(file.client)) for file in self.found.files]
        return np.repeat(np.array(clients, dtype=np.int64), self.counts)

    @property
    def is_test(self) -> NDArray[np.bool_]:
        """Whether each row is one of ``data.test_path``, (n,)."""
        num_train_files = len(self.parts) - self.num_test_files
        return np.repeat(np.arange(len(self.parts)) >= num_train_files, self.counts)

    @property
    def client_key(self) -> str | None:
        """The column that the first folders name, as ``site=North`` does."""
        return next(iter(self.found.files[0].columns), None)

    @property
    def dropped_columns(self) -> Mapping[str, str]:
        """The columns without a name that were left out, and what they seem to hold."""
        return {name: why for part in self.parts for name, why in part.dropped_columns.items()}

    @property
    def passed_over(self) -> Mapping[str, int]:
        """The files that were not read; their kinds and numbers if there are many."""
        names = self.found.passed_over
        if len(names) > MAX_LISTED:
            names = tuple(Path(name).suffix or "without ending" for name in names)
        return {name: names.count(name) for name in sorted(set(names))}

    def list_doubts(self, *, named: bool) -> tuple[str, ...]:
        """Return a doubt about files for training and for testing; see ``TableOrigin``."""
        pair = find_test_file(self.names)
        if pair is None or self.num_test_files:
            return ()
        if not named:
            doubt = (
                "two files whose names say train and test are taken as parts of one table, or as "
                "two clients; data.path=TRAIN data.test_path=TEST tests on the latter"
            )
            return (doubt,)
        train, test = (
            next(file.path for file in self.found.files if clean_text(file.client) == name)
            for name in pair
        )
        if train.parent != test.parent:
            train, test = train.parent, test.parent
        doubt = (
            f"{pair[0]} and {pair[1]} are taken as two parts of one table, or as two clients; "
            f"data.path={train} data.test_path={test} tests on the latter"
        )
        return (doubt,)

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
        location = self.parts[index].describe_row(row - int(before[index]))
        return location if len(self.parts) == 1 else f"{location} of {self.found.files[index].name}"


def read_files(path: Path) -> tuple[TableFiles, Any]:
    """Return the files of a path, see ``find_files``, and their rows in one Arrow table.

    All must have the same columns, among them those that the names of folders tell. All columns of
    a CSV file are text, see ``read_csv_file``; those of a Parquet or an Excel file keep their
    types, and their text is treated the same way. A column of several types becomes text.

    Raises
    ------
    ValueError
        If the files are missing, or are no table.
    """
    found = find_files(path)
    parts = tuple(_read_part(file, is_only=file.path == path) for file in found.files)
    return _merge(TableFiles(path, found, parts))


def add_test_files(files: TableFiles, test_path: Path) -> tuple[TableFiles, Any]:
    """Return the files of ``data.path`` and then those of ``data.test_path``, and all rows.

    Raises
    ------
    ValueError
        If the files are missing, are no table, or have other columns.
    """
    tests, _ = read_files(test_path)
    named = (replace(file, name=f"{test_path.name}/{file.name}") for file in tests.found.files)
    test_files = tests.found.files if not tests.has_several else tuple(named)
    found = FoundFiles(
        (*files.found.files, *test_files), (*files.found.passed_over, *tests.found.passed_over)
    )
    both = TableFiles(files.path, found, (*files.parts, *tests.parts), len(tests.parts))
    return _merge(both)


def _merge(files: TableFiles) -> tuple[TableFiles, Any]:
    """Return the files, and their rows in one table; raise ValueError if the columns differ."""
    found, parts = files.found, files.parts
    names = parts[0].table.column_names
    for file, part in zip(found.files, parts, strict=True):
        if set(part.table.column_names) != set(names):
            raise ValueError(
                "all files must have the same columns, got "
                + _describe_difference(
                    (found.files[0].name, names), (file.name, part.table.column_names)
                )
            )
    merged = pa.table({n: _merge_column([part.table[n] for part in parts]) for n in names})
    return files, merged


def _read_part(file: FoundFile, *, is_only: bool) -> FileRows:
    """Return the rows of a file, with the columns of its folders; errors name one of several."""
    try:
        part = read_table_file(file.path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{'' if is_only else f'{file.name}: '}{error}") from None
    table = part.table
    for name, value in file.columns.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array([value] * table.num_rows, pa.string()))
    return replace(part, table=table)


def _describe_difference(
    first: tuple[str, Sequence[str]], second: tuple[str, Sequence[str]]
) -> str:
    """Return the columns that only one of two files has, and those that may be the same ones."""
    texts = []
    for (file, names), (_, others) in ((first, second), (second, first)):
        own = [name for name in names if name not in others]
        more = f" and {len(own) - MAX_LISTED} more" if len(own) > MAX_LISTED else ""
        if own:
            texts.append(f"{', '.join(own[:MAX_LISTED])}{more} in {file} only")
    by_lower = {name.lower(): name for name in second[1] if name not in first[1]}
    for name in first[1]:
        near = difflib.get_close_matches(name.lower(), by_lower, n=1)
        if name not in second[1] and near:
            texts.append(f"(are {name} and {by_lower[near[0]]} the same?)")
            break
    return " and ".join(texts[:2]) + "".join(f" {text}" for text in texts[2:])


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
