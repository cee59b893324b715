"""Read a user's table from CSV and Parquet files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, suggest_name, to_one_line
from fedquorum.sanitize import sanitize

from client_app.data.base import Inputs, Labels, Targets
from client_app.data.coding.table import encode_flags
from client_app.data.scaling import Numbers
from client_app.data.sources.column_types import MIN_ROWS, find_exclusion_reason
from client_app.data.sources.table_files import TableFiles, is_number_type, read_files
from conf.schema.data import CsvSettings

MAX_CLASSES_UNQUESTIONED = 10
MIN_ROWS_PER_CLASS = 100
"""More classes than the first, with fewer rows each than the second, may be numbers."""

MAX_NAMED_CLIENTS = 5


@dataclass(frozen=True)
class TableSchema:
    """The columns and classes that all clients of a table share: ``data.columns``.

    Attributes
    ----------
    numbers : tuple of str
        The columns of numbers, in the order of the inputs.
    categories : dict of str to tuple
        The columns of categories, and the values of each; None for a missing value.
    classes : tuple of str
        The values of the target; empty if it is a number.
    """

    numbers: tuple[str, ...]
    categories: dict[str, tuple[str | None, ...]]
    classes: tuple[str, ...]

    @classmethod
    def from_settings(cls, columns: Any) -> "TableSchema":
        """Build the schema from ``data.columns``, which ``conf.schema.checks`` has checked."""
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
            f"{len(names)} column{'' if len(names) == 1 else 's'} of {kind} "
            f"({_format_names(names)})"
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
    """Return a cell as text, whole numbers without a decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True)
class ClientTable:
    """n rows with p numbers and q flags of 0 or 1, and the client of each row.

    Attributes
    ----------
    clients : array of int64
        (n,), from 0.
    client_names : tuple of str
        The clients' names in the file, by id.
    labels : array of int64 or float32
        (n,), the index of the target in ``classes``, or the target itself if it is a number.
    classes : tuple of str
        The values of the target, ascending; empty if it is a number.
    numbers : array of float64
        (n, p), NaN for a missing number.
    categories : array of float32
        (n, q), 1 if the row has this category in this column.
    columns : tuple of str
        The names of the p columns, and then of the q as ``column=category``.
    schema : TableSchema
        The columns in the form of ``data.columns``.
    target : str
        The name of the target column.
    dropped_clients : mapping of str to int
        The clients with fewer rows than ``data.min_samples``, and their number of rows.
    dropped_columns : mapping of str to str
        The columns that were automatically excluded from the inputs, and why.
    warnings : tuple of str
        Possible misinterpretations of the table.
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
        """Return the table without clients that have fewer than ``min_rows`` rows."""
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

    A folder or a pattern means several files; see ``read_files``. A cell is missing if it is empty
    or one of ?, NA, N/A, NaN, nan, NULL, null. A column holds numbers if all its other cells are
    numbers (true and false are 1 and 0), and otherwise categories. A column in which more than half
    of the cells are numbers is refused: a typo must not turn it into categories. A column of
    categories becomes one of 0 and 1 for each category in the whole file, ascending, and a last
    one, ``column=``, if cells are missing. In columns of ``data.zero_as_missing``, 0 is missing.
    Dates, long texts and row identifiers are excluded, see ``find_exclusion_reason``, unless
    ``data.columns`` names them.

    Clients and classes are the distinct values of ``data.client_column`` and ``data.target``,
    ascending: numbers as numbers, all else as text. These two columns and those of
    ``data.drop_columns`` are not inputs. If ``data.client_column`` is empty, each of several files
    holds one client, named after the file. Clients with fewer rows than ``data.min_samples`` are
    left out. Classes must not be fractional numbers. With ``data.regression`` the target is a
    number.

    A device with the rows of one client does not know the categories and classes of the others, so
    ``data.columns`` may define them for all: ``{numbers: [column, ..], categories: {column: [value,
    ..]}, classes: [value, ..]}``, with null for a missing cell. Then exactly these columns, in this
    order, are the inputs, and other values are refused. If ``data.client_column`` is null, all rows
    belong to one client without a name.

    Raises
    ------
    DataError
        If the file is missing, or is no such table.
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
    """Return a hint " (...)" with a similar column name, or "" if there is none."""
    hint = suggest_name(name, names)
    return f" ({hint})" if hint else ""


@dataclass(frozen=True)
class _TableReader:
    """Builds a client table from an Arrow table and its files."""

    files: TableFiles
    arrow: Any

    @property
    def path(self) -> Path:
        """``data.path``, for messages."""
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
        excluded = self._find_excluded_columns(settings, clients)
        schema = self._build_schema(settings, excluded)
        labels = self._read_target(settings, schema)
        if len(schema.classes) == 1:
            raise DataError(
                f"data.target must be a column of different values in {self.path}, got "
                f"{settings.target}, which is always {schema.classes[0]}"
            )
        numbers, categories = self._read_inputs(settings, schema)
        table = ClientTable(
            clients,
            client_names,
            labels,
            schema.classes,
            numbers,
            categories,
            schema.columns,
            schema,
            settings.target,
            dropped_columns=excluded,
            warnings=self._find_warnings(settings.target, schema),
        )
        return table if client_column is None else self._drop_small_clients(table, settings)

    def _drop_small_clients(self, table: ClientTable, settings: CsvSettings) -> ClientTable:
        """Return the table without clients that have fewer rows than ``data.min_samples``."""
        remaining = table.drop_small_clients(settings.min_samples or 1)
        counts = np.bincount(remaining.clients)
        if not len(counts):
            largest = max(table.dropped_clients.values(), default=max(np.bincount(table.clients)))
            raise DataError(
                "data.min_samples must be at most the number of rows of the largest client, "
                f"{largest}, got {settings.min_samples}"
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
        """Return the automatically excluded columns, and why; none with ``data.columns``."""
        if settings.columns is not None:
            return {}
        reasons = {
            name: find_exclusion_reason(name, self.arrow[name], clients)
            for name in self._list_candidates(settings)
        }
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def _list_candidates(self, settings: CsvSettings) -> list[str]:
        """Return the columns that the settings do not exclude from the inputs."""
        others = {settings.client_column, settings.target, *settings.drop_columns}
        return [name for name in self.arrow.schema.names if name not in others]

    def _find_warnings(self, target: str, schema: TableSchema) -> tuple[str, ...]:
        """Return a warning if the target has many whole numbers, which may be meant as numbers."""
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
        """Return the distinct values of a column, and the index of each row's value."""
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
        """Return the index of each row's class, or the targets themselves in a regression."""
        name = settings.target
        if settings.regression:
            if not is_number_type(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.target must be a column of numbers in {self.path} where data.regression "
                    f"is true, got {name}"
                )
            numbers = self._read_numbers(name, zero_as_missing=False)
            if np.isnan(numbers).any():
                self._find_distinct("target", name)  # raises with the first missing row
            return numbers.astype(np.float32)
        values = [
            None if cell is None else _format_cell(cell) for cell in self.arrow[name].to_pylist()
        ]
        return self._find_indices("target", name, values, schema.classes)

    def _build_schema(self, settings: CsvSettings, excluded: Mapping[str, str]) -> TableSchema:
        """Return the columns and classes of the settings, or those of the file."""
        if settings.columns is not None:
            return TableSchema.from_settings(settings.columns)
        names = [name for name in self._list_candidates(settings) if name not in excluded]
        if not names:
            reasons = "".join(f", {name} has {reason}" for name, reason in excluded.items())
            raise DataError(
                f"data.drop_columns must leave columns of {self.path} as inputs, got none{reasons}"
            )
        self._check_kinds(names)
        numeric = [name for name in names if is_number_type(self.arrow.schema.field(name).type)]
        categories: dict[str, tuple[str | None, ...]] = {}
        for name in names:
            if name not in numeric:
                values = self._read_text(name)
                self._check_category(name, values)
                distinct = sorted({value for value in values if value is not None})
                categories[name] = (*distinct, *([None] if None in values else []))
        classes: tuple[str, ...] = ()
        if not settings.regression:
            self._check_classes(settings.target)
            classes, _ = self._find_distinct("target", settings.target)
        return TableSchema(tuple(numeric), categories, classes)

    def _check_kinds(self, names: Sequence[str]) -> None:
        """Refuse columns of a Parquet file that are neither numbers nor text."""
        for name in names:
            kind = self.arrow.schema.field(name).type
            # Text of a CSV file that is not in UTF-8 is binary, and refused by name later.
            if not (is_number_type(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
                raise DataError(
                    f"data.drop_columns must have the columns of {self.path} that are neither "
                    f"numbers nor words, got none of {name}, which is of type {kind}"
                )

    def _check_classes(self, name: str) -> None:
        """Refuse a target with fractional numbers, or with a value for nearly every row."""
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
        """Return the index in ``allowed`` of each cell of a column."""
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
        flags = [np.zeros((self.arrow.num_rows, 0), np.float32)]
        for name, values in schema.categories.items():
            indices = self._find_indices("columns", name, self._read_text(name), values)
            flags.append(encode_flags(indices, len(values)))
        return numbers, np.concatenate(flags, axis=1)

    def _check_category(self, name: str, values: Sequence[str | None]) -> None:
        """Refuse a column of mostly numbers, in which a typo would make each number a category."""
        present = [value for value in values if value is not None]
        num_numeric = sum(map(_is_numeric_text, present))
        if num_numeric > len(present) / 2:
            raise DataError(
                f"data.path must be a .csv file whose columns are either numbers or categories, "
                f"got {self.path}: {name} has {num_numeric} numbers, and "
                f"{self._describe_non_number(name)} (correct it, leave the column out by "
                "data.drop_columns, or name all columns in data.columns)"
            )

    def _describe_row(self, row: int) -> str:
        return self.files.describe_row(row)

    def _describe_non_number(self, name: str) -> str:
        """Return the first cell of a column that is not a number, and its row, in words."""
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
    """Join names with commas, at most ``MAX_NAMED_CLIENTS`` of them."""
    more = f" and {len(names) - MAX_NAMED_CLIENTS} more" if len(names) > MAX_NAMED_CLIENTS else ""
    return ", ".join(names[:MAX_NAMED_CLIENTS]) + more


def _is_numeric_text(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
