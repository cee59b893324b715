"""A table of the user's own, in CSV and Parquet files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, suggest_name, to_one_line
from fedquorum.sanitize import sanitize
from numpy.typing import NDArray

from client_app.data.base import Inputs, Labels, Targets
from client_app.data.sources.column_types import MIN_ROWS, find_exclusion_reason
from client_app.data.sources.table_files import TableFiles, is_number_type, read_files
from conf.schema.data import CsvSettings

MAX_CLASSES_UNQUESTIONED = 10
MIN_ROWS_PER_CLASS = 100
"""More classes than the one, with fewer rows each than the other, may be meant as numbers."""

MAX_NAMED_CLIENTS = 5

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class TableSchema:
    """The columns and classes that all clients of a table share: ``data.columns``.

    Attributes
    ----------
    numbers : tuple of str
        The columns of numbers, in the order of the inputs.
    categories : dict of str to tuple
        The columns of categories, and the values of each; None for a missing one.
    classes : tuple of str
        The values of the target, none where it is a number.
    """

    numbers: tuple[str, ...]
    categories: dict[str, tuple[str | None, ...]]
    classes: tuple[str, ...]

    @classmethod
    def from_settings(cls, columns: Any) -> "TableSchema":
        """Return the columns in ``data.columns``, which ``conf.schema.checks`` has checked."""
        return cls(
            tuple(columns.get("numbers", [])),
            {
                name: tuple(None if value is None else _format_cell(value) for value in values)
                for name, values in columns.get("categories", {}).items()
            },
            tuple(_format_cell(value) for value in columns.get("classes", [])),
        )

    @property
    def description(self) -> str:
        """The kinds of columns in words."""
        categories = [f"{name}: {len(values)}" for name, values in self.categories.items()]
        kinds = {"numbers": list(self.numbers), "categories": categories}
        return ", ".join(
            f"{len(names)} column{'' if len(names) == 1 else 's'} of {kind} ({_format_names(names)})"
            for kind, names in kinds.items()
            if names
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the input columns."""
        flags = [
            f"{name}={'' if value is None else value}"
            for name, values in self.categories.items()
            for value in values
        ]
        return (*self.numbers, *flags)


def _format_cell(value: Any) -> str:
    """Return a cell as text: whole numbers without a point, whichever way they are written."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True)
class ClientTable:
    """n rows with p numbers and q flags of 0 or 1, and the client of each row.

    Attributes
    ----------
    clients : array of int64
        (n,), from 0.
    client_names : tuple of str
        What the clients are called in the file, by id.
    labels : array of int64 or float32
        (n,), the position of the target in ``classes``; the target itself where it is a number.
    classes : tuple of str
        The targets that there are, ascending; none where the target is a number.
    numbers : array of float64
        (n, p), NaN where a number is missing.
    categories : array of float32
        (n, q), 1 where the row has this category of this column.
    columns : tuple of str
        The names of the p and then of the q columns, those as ``column=category``.
    schema : Agreed
        The same in the form of ``data.columns``.
    target : str
        The name of the column that is predicted.
    dropped_clients : mapping of str to int
        The clients with fewer rows than ``data.min_samples``, and how many they have.
    dropped_columns : mapping of str to str
        The columns that were taken for no inputs, and why.
    warnings : tuple of str
        What may be meant otherwise than it was taken.
    """

    clients: Labels
    client_names: tuple[str, ...]
    labels: Targets
    classes: tuple[str, ...]
    numbers: Numbers
    categories: Inputs
    columns: tuple[str, ...]
    schema: TableSchema
    target: str = ""
    dropped_clients: Mapping[str, int] = field(default_factory=dict)
    dropped_columns: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def drop_small_clients(self, min_rows: int) -> "ClientTable":
        """Return the rows of clients with enough rows, and the clients left out."""
        counts = np.bincount(self.clients, minlength=len(self.client_names))
        few = {
            name: int(count)
            for name, count in zip(self.client_names, counts, strict=True)
            if count < min_rows
        }
        if not few:
            return self
        is_kept = (counts >= min_rows)[self.clients]
        return replace(
            self,
            clients=np.unique(self.clients[is_kept], return_inverse=True)[1].astype(np.int64),
            client_names=tuple(name for name in self.client_names if name not in few),
            labels=self.labels[is_kept],
            numbers=self.numbers[is_kept],
            categories=self.categories[is_kept],
            dropped_clients=few,
        )


def read_csv_table(settings: CsvSettings) -> ClientTable:
    """Return the table of ``data.path``, CSV files in UTF-8 with a header and commas, or Parquet.

    Several files are a folder, or a pattern; see ``read_files``. A cell is missing if it is empty
    or one of ?, NA, N/A, NaN, nan, NULL, null. A column is of numbers if all others of its cells
    are (true and false are 1 and 0), or else of categories; one of which more than half are numbers
    is refused, as a slip of the pen would make it so.
    A column of categories becomes one of 0 and 1 for each category in the whole file, ascending,
    and if cells are missing a last one for these, ``column=``. What is 0 in a column of
    ``data.zero_as_missing`` is missing. Dates, long texts and names of rows are left out, see
    ``find_exclusion_reason``, unless ``data.columns`` names them.

    Clients and classes are the distinct values of ``data.client_column`` and ``data.target``,
    ascending: numbers as numbers, all else as text. Both columns, and those of
    ``data.drop_columns``, are no inputs. Where ``data.client_column`` is empty, each of several
    files has the rows of one client, who is called like the file. Clients with fewer rows than
    ``data.min_samples`` are left out. Numbers that are not whole are no classes. With
    ``data.regression`` the target is a number itself.

    A device that has the rows of one client only cannot tell from these which categories and
    classes there are elsewhere. So ``data.columns`` may say it for all: ``{numbers: [column, ..],
    categories: {column: [value, ..]}, classes: [value, ..]}``, null among the values for a missing
    cell. Then these columns, in this order, are the inputs, no others, and a value that is not
    among the agreed ones is refused. ``data.client_column`` null makes all rows those of one
    client, with the name of no client.

    Raises
    ------
    DataError
        If there is no such file, or no such table in it.
    """
    path = Path(settings.path).expanduser().resolve()
    try:
        files, table = read_files(path)
        files.check_rows(settings.expected_rows)
    except Exception as error:
        raise DataError(
            "data.path must be a .csv file with a header or a .parquet file, or a folder of such, "
            f"got {path}: {sanitize(to_one_line(error))}"
        ) from None
    return _TableReader(files, table).build_table(settings)


def _suggest_column(name: str, names: Sequence[str]) -> str:
    """Return " (...)" with the column that was perhaps meant, "" if none is alike."""
    hint = suggest_name(name, names)
    return f" ({hint})" if hint else ""


@dataclass(frozen=True)
class _TableReader:
    """A table as read, and where from."""

    files: TableFiles
    arrow: Any

    @property
    def path(self) -> Path:
        """What ``data.path`` says, for messages."""
        return self.files.path

    def build_table(self, settings: CsvSettings) -> ClientTable:
        client_column = settings.client_column
        by_file = client_column == "" and self.files.has_several
        for key, names in (
            ("client_column", [] if client_column is None or by_file else [client_column]),
            ("target", [settings.target]),
            ("drop_columns", settings.drop_columns),
        ):
            self._check_names(key, names, self.arrow.schema.names)
        client_names: tuple[str, ...] = ("",)
        clients = np.zeros(self.arrow.num_rows, dtype=np.int64)
        if by_file:
            client_names, clients = self.files.names, self.files.file_indices
        elif client_column is not None:
            client_names, clients = self._find_distinct("client_column", client_column)
        no_inputs = self._find_excluded_columns(settings, clients)
        agreed = self._build_schema(settings, no_inputs)
        labels = self._read_target(settings, agreed)
        if len(agreed.classes) == 1:
            raise DataError(
                f"data.target must be a column of different values in {self.path}, got "
                f"{settings.target}, which is always {agreed.classes[0]}"
            )
        numbers, categories = self._read_inputs(settings, agreed)
        table = ClientTable(
            clients,
            client_names,
            labels,
            agreed.classes,
            numbers,
            categories,
            agreed.columns,
            agreed,
            settings.target,
            dropped_columns=no_inputs,
            warnings=self._find_warnings(settings.target, agreed),
        )
        return table if client_column is None else self._drop_small_clients(table, settings)

    def _drop_small_clients(self, table: ClientTable, settings: CsvSettings) -> ClientTable:
        """Return the table without the clients of whom ``data.min_samples`` asks for more rows."""
        remaining = table.drop_small_clients(settings.min_samples or 1)
        counts = np.bincount(remaining.clients)
        if not len(counts):
            raise DataError(
                "data.min_samples must be at most the number of rows of the largest client, "
                f"{max(table.dropped_clients.values(), default=max(np.bincount(table.clients)))}, got "
                f"{settings.min_samples}"
            )
        single_row = [
            name for name, n in zip(remaining.client_names, counts, strict=True) if n == 1
        ]
        if single_row:
            raise DataError(
                f"data.min_samples must be at least 2 where clients have a single row of "
                f"{self.path} (one row is for training, another for testing), got null; 2 leaves "
                f"out {_format_names(single_row)}"
            )
        return remaining

    def _find_excluded_columns(self, settings: CsvSettings, clients: Labels) -> dict[str, str]:
        """Return the columns that are taken for no inputs, and why; none where all are agreed."""
        if settings.columns is not None:
            return {}
        found = {
            name: find_exclusion_reason(name, self.arrow[name], clients)
            for name in self._list_candidates(settings)
        }
        return {name: why for name, why in found.items() if why is not None}

    def _list_candidates(self, settings: CsvSettings) -> list[str]:
        """Return the columns that nobody said to be no inputs."""
        others = {settings.client_column, settings.target, *settings.drop_columns}
        return [name for name in self.arrow.schema.names if name not in others]

    def _find_warnings(self, target: str, schema: TableSchema) -> tuple[str, ...]:
        """Return what the target may be meant for, if it is of many whole numbers."""
        count, rows = len(schema.classes), self.arrow.num_rows
        few = count <= MAX_CLASSES_UNQUESTIONED or rows >= MIN_ROWS_PER_CLASS * count
        if few or not is_number_type(self.arrow.schema.field(target).type):
            return ()
        doubt = (
            f"the {count} different numbers of {target} are taken as classes, in {rows:,} rows; "
            "data.regression=true predicts them as numbers"
        )
        return (doubt,)

    def _check_names(self, key: str, wanted: Sequence[str], names: Sequence[str]) -> None:
        for name in wanted:
            if name not in names:
                kind = "columns of numbers" if key == "zero_as_missing" else "columns"
                raise DataError(
                    f"data.{key} must be one of the {kind} of {self.path}, which are "
                    f"{', '.join(names) or 'none'}, got {name!r}{_suggest_column(name, names)}"
                )

    def _find_distinct(self, key: str, name: str) -> tuple[tuple[str, ...], Labels]:
        """Return the distinct values of a column without missing ones, and their positions."""
        values = self.arrow[name].to_pylist()
        if None in values:
            raise DataError(
                f"data.{key} must be a column without missing values, got {name}, which is missing "
                f"in {self._describe_row(values.index(None))} of {self.path}"
            )
        distinct = sorted(set(values))
        position = {value: i for i, value in enumerate(distinct)}
        return tuple(map(_format_cell, distinct)), np.array(
            [position[v] for v in values], dtype=np.int64
        )

    def _read_target(self, settings: CsvSettings, schema: TableSchema) -> Targets:
        """Return the position of the target among the classes, or the target."""
        name = settings.target
        if settings.regression:
            if not is_number_type(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.target must be a column of numbers in {self.path} where data.regression "
                    f"is true, got {name}"
                )
            numbers = self._read_numbers(name, zero_as_missing=False)
            if np.isnan(numbers).any():
                self._find_distinct("target", name)  # says where one is missing
            return numbers.astype(np.float32)
        values = [
            None if one is None else _format_cell(one) for one in self.arrow[name].to_pylist()
        ]
        return self._find_indices("target", name, values, schema.classes)

    def _build_schema(self, settings: CsvSettings, excluded: Mapping[str, str]) -> TableSchema:
        """Return what the settings say of columns and classes, or what the file has."""
        if settings.columns is not None:
            return TableSchema.from_settings(settings.columns)
        names = [name for name in self._list_candidates(settings) if name not in excluded]
        if not names:
            taken = "".join(f", {name} has {why}" for name, why in excluded.items())
            raise DataError(
                f"data.drop_columns must leave columns of {self.path} as inputs, got none{taken}"
            )
        self._check_kinds(names)
        numeric = [name for name in names if is_number_type(self.arrow.schema.field(name).type)]
        categories: dict[str, tuple[str | None, ...]] = {}
        for name in names:
            if name not in numeric:
                values = self._read_text(name)
                self._check_category(name, values)
                distinct = sorted({one for one in values if one is not None})
                categories[name] = (*distinct, *([None] if None in values else []))
        classes: tuple[str, ...] = ()
        if not settings.regression:
            self._check_classes(settings.target)
            classes, _ = self._find_distinct("target", settings.target)
        return TableSchema(tuple(numeric), categories, classes)

    def _check_kinds(self, names: Sequence[str]) -> None:
        """Refuse the columns of a Parquet file that a table of numbers and words cannot have."""
        for name in names:
            kind = self.arrow.schema.field(name).type
            # Words of a CSV file that are not in UTF-8 are binary, and refused by name later.
            if not (is_number_type(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
                raise DataError(
                    f"data.drop_columns must have the columns of {self.path} that are neither "
                    f"numbers nor words, got none of {name}, which is of type {kind}"
                )

    def _check_classes(self, name: str) -> None:
        """Refuse what is no class: numbers that are not whole, or a value for nearly every row."""
        column = self.arrow[name]
        different = len(column.unique())
        if len(column) >= MIN_ROWS and different > len(column) / 2:
            numbers = (
                " (data.regression=true predicts numbers)" if is_number_type(column.type) else ""
            )
            raise DataError(
                f"data.target must be a column of classes in {self.path}, got {name}, which has "
                f"{different} different values in {len(column)} rows{numbers}"
            )
        if not pa.types.is_floating(self.arrow.schema.field(name).type):
            return
        for row, value in enumerate(self.arrow[name].to_pylist()):
            if value is not None and not value.is_integer():
                raise DataError(
                    f"data.target must be a column of classes in {self.path} where "
                    f"data.regression is false, got {name}, which is {value:g} in "
                    f"{self._describe_row(row)} (data.regression=true predicts numbers)"
                )

    def _find_indices(
        self, key: str, name: str, values: Sequence[str | None], allowed: Sequence[str | None]
    ) -> Labels:
        """Return the position of each cell of a column among the known values."""
        position = {value: i for i, value in enumerate(allowed)}
        for row, value in enumerate(values):
            if value not in position:
                location, listed = (
                    self._describe_row(row),
                    ", ".join("null" if v is None else v for v in allowed),
                )
                raise DataError(
                    f"data.{key} must lead to one of the agreed values {listed} in each row, got "
                    f"{'a missing one' if value is None else repr(value)} of {name} in {location} "
                    f"of {self.path}"
                )
        return np.array([position[value] for value in values], dtype=np.int64)

    def _read_inputs(self, settings: CsvSettings, schema: TableSchema) -> tuple[Numbers, Inputs]:
        self._check_names("columns", [*schema.numbers, *schema.categories], self.arrow.schema.names)
        self._check_names("zero_as_missing", settings.zero_as_missing, schema.numbers)
        numbers = np.empty((self.arrow.num_rows, len(schema.numbers)))
        for i, name in enumerate(schema.numbers):
            if not is_number_type(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.columns must have columns of numbers in {self.path} as numbers, got "
                    f"{name}, where {self._describe_non_number(name)}"
                )
            numbers[:, i] = self._read_numbers(
                name, zero_as_missing=name in settings.zero_as_missing
            )
        flags = np.zeros(
            (self.arrow.num_rows, len(schema.columns) - len(schema.numbers)), np.float32
        )
        first = 0
        for name, values in schema.categories.items():
            column = self._find_indices("columns", name, self._read_text(name), values)
            flags[np.arange(len(column)), first + column] = 1
            first += len(values)
        return numbers, flags

    def _check_category(self, name: str, values: Sequence[str | None]) -> None:
        """Refuse a column of numbers in which a word would make each number a category."""
        present = [value for value in values if value is not None]
        num_numeric = sum(map(_is_numeric_text, present))
        if num_numeric > len(present) / 2:
            raise DataError(
                f"data.path must be a .csv file whose columns are either numbers or categories, "
                f"got {self.path}: {name} has {num_numeric} numbers, and {self._describe_non_number(name)} "
                "(correct it, leave the column out by data.drop_columns, or name all columns in "
                "data.columns)"
            )

    def _describe_row(self, row: int) -> str:
        return self.files.describe_row(row)

    def _describe_non_number(self, name: str) -> str:
        """Say which cell of a column is no number, and where."""
        for row, value in enumerate(self._read_text(name)):
            if value is not None and not _is_numeric_text(value):
                return f"{self._describe_row(row)} has {value!r}"
        return "cells are of several kinds"

    def _read_numbers(self, name: str, *, zero_as_missing: bool) -> Numbers:
        column = self.arrow[name]
        missing = column.is_null().to_numpy()
        values = np.where(missing, np.nan, column.cast(pa.float64(), safe=False).to_numpy())
        with np.errstate(over="ignore"):
            wrong = ~missing & ~np.isfinite(values.astype(np.float32))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"data.path must be a .csv file of numbers that are finite in float32, got "
                f"{self.path}: {name} is {values[row]:g} in {self._describe_row(row)}"
            )
        if zero_as_missing:
            values[values == 0] = np.nan
        return values

    def _read_text(self, name: str) -> list[str | None]:
        try:
            values: list[str | None] = self.arrow[name].cast(pa.string()).to_pylist()
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data.path must be a .csv file in UTF-8, got {self.path}: {name}: "
                f"{to_one_line(error)}"
            ) from None
        return values


def _format_names(names: Sequence[str]) -> str:
    """Return the clients that a message names, the first of many."""
    more = f" and {len(names) - MAX_NAMED_CLIENTS} more" if len(names) > MAX_NAMED_CLIENTS else ""
    return ", ".join(names[:MAX_NAMED_CLIENTS]) + more


def _is_numeric_text(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
