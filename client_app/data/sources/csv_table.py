"""A table of the user's own, in CSV and Parquet files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, did_you_mean, one_line
from fedquorum.intake import shown
from numpy.typing import NDArray

from client_app.data.base import Inputs, Labels, Targets
from client_app.data.sources.column_kinds import ENOUGH_ROWS, why_no_input
from client_app.data.sources.table_files import TableFiles, is_number, read_files
from conf.schema.data import CsvSettings

FEW_CLASSES = 10
ROWS_OF_A_CLASS = 100
"""More classes than the one, with fewer rows each than the other, may be meant as numbers."""

MOST_NAMED = 5

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Agreed:
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
    def of_settings(cls, columns: Any) -> "Agreed":
        """Return the columns in ``data.columns``, which ``conf.schema.checks`` has checked."""
        return cls(
            tuple(columns.get("numbers", [])),
            {
                name: tuple(None if value is None else _word(value) for value in values)
                for name, values in columns.get("categories", {}).items()
            },
            tuple(_word(value) for value in columns.get("classes", [])),
        )

    @property
    def words(self) -> str:
        """The kinds of columns in words."""
        categories = [f"{name}: {len(known)}" for name, known in self.categories.items()]
        kinds = {"numbers": list(self.numbers), "categories": categories}
        return ", ".join(
            f"{len(names)} column{'' if len(names) == 1 else 's'} of {kind} ({_such(names)})"
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


def _word(value: Any) -> str:
    """Return a cell as text: whole numbers without a point, whichever way they are written."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@dataclass(frozen=True)
class Table:
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
    agreed : Agreed
        The same in the form of ``data.columns``.
    target : str
        The name of the column that is predicted.
    left_out : mapping of str to int
        The clients with fewer rows than ``data.min_samples``, and how many they have.
    columns_left_out : mapping of str to str
        The columns that were taken for no inputs, and why.
    doubts : tuple of str
        What may be meant otherwise than it was taken.
    """

    clients: Labels
    client_names: tuple[str, ...]
    labels: Targets
    classes: tuple[str, ...]
    numbers: Numbers
    categories: Inputs
    columns: tuple[str, ...]
    agreed: Agreed
    target: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    columns_left_out: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()

    def with_at_least(self, rows: int) -> "Table":
        """Return the rows of clients with enough rows, and the clients left out."""
        counts = np.bincount(self.clients, minlength=len(self.client_names))
        few = {
            name: int(count)
            for name, count in zip(self.client_names, counts, strict=True)
            if count < rows
        }
        if not few:
            return self
        kept = (counts >= rows)[self.clients]
        return replace(
            self,
            clients=np.unique(self.clients[kept], return_inverse=True)[1].astype(np.int64),
            client_names=tuple(name for name in self.client_names if name not in few),
            labels=self.labels[kept],
            numbers=self.numbers[kept],
            categories=self.categories[kept],
            left_out=few,
        )


def csv_table(settings: CsvSettings) -> Table:
    """Return the table of ``data.path``, CSV files in UTF-8 with a header and commas, or Parquet.

    Several files are a folder, or a pattern; see ``read_files``. A cell is missing if it is empty
    or one of ?, NA, N/A, NaN, nan, NULL, null. A column is of numbers if all others of its cells
    are (true and false are 1 and 0), or else of categories; one of which more than half are numbers
    is refused, as a slip of the pen would make it so.
    A column of categories becomes one of 0 and 1 for each category in the whole file, ascending,
    and if cells are missing a last one for these, ``column=``. What is 0 in a column of
    ``data.zero_as_missing`` is missing. Dates, long texts and names of rows are left out, see
    ``why_no_input``, unless ``data.columns`` names them.

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
            f"got {path}: {shown(one_line(error))}"
        ) from None
    return _Columns(files, table).table(settings)


def _meant(name: str, names: Sequence[str]) -> str:
    """Return " (...)" with the column that was perhaps meant, "" if none is alike."""
    hint = did_you_mean(name, names)
    return f" ({hint})" if hint else ""


@dataclass(frozen=True)
class _Columns:
    """A table as read, and where from."""

    files: TableFiles
    arrow: Any

    @property
    def path(self) -> Path:
        """What ``data.path`` says, for messages."""
        return self.files.path

    def table(self, settings: CsvSettings) -> Table:
        client_column = settings.client_column
        by_file = client_column == "" and self.files.several
        for key, names in (
            ("client_column", [] if client_column is None or by_file else [client_column]),
            ("target", [settings.target]),
            ("drop_columns", settings.drop_columns),
        ):
            self._check(key, names, self.arrow.schema.names)
        client_names: tuple[str, ...] = ("",)
        clients = np.zeros(self.arrow.num_rows, dtype=np.int64)
        if by_file:
            client_names, clients = self.files.names, self.files.file_of_row
        elif client_column is not None:
            client_names, clients = self._distinct("client_column", client_column)
        no_inputs = self._no_inputs(settings, clients)
        agreed = self._agreed(settings, no_inputs)
        labels = self._target(settings, agreed)
        if len(agreed.classes) == 1:
            raise DataError(
                f"data.target must be a column of different values in {self.path}, got "
                f"{settings.target}, which is always {agreed.classes[0]}"
            )
        numbers, categories = self._inputs(settings, agreed)
        table = Table(
            clients,
            client_names,
            labels,
            agreed.classes,
            numbers,
            categories,
            agreed.columns,
            agreed,
            settings.target,
            columns_left_out=no_inputs,
            doubts=self._doubts(settings.target, agreed),
        )
        return table if client_column is None else self._of_clients(table, settings)

    def _of_clients(self, table: Table, settings: CsvSettings) -> Table:
        """Return the table without the clients of whom ``data.min_samples`` asks for more rows."""
        kept = table.with_at_least(settings.min_samples or 1)
        counts = np.bincount(kept.clients)
        if not len(counts):
            raise DataError(
                "data.min_samples must be at most the number of rows of the largest client, "
                f"{max(table.left_out.values(), default=max(np.bincount(table.clients)))}, got "
                f"{settings.min_samples}"
            )
        alone = [name for name, n in zip(kept.client_names, counts, strict=True) if n == 1]
        if alone:
            raise DataError(
                f"data.min_samples must be at least 2 where clients have a single row of "
                f"{self.path} (one row is for training, another for testing), got null; 2 leaves "
                f"out {_such(alone)}"
            )
        return kept

    def _no_inputs(self, settings: CsvSettings, clients: Labels) -> dict[str, str]:
        """Return the columns that are taken for no inputs, and why; none where all are agreed."""
        if settings.columns is not None:
            return {}
        found = {
            name: why_no_input(name, self.arrow[name], clients) for name in self._others(settings)
        }
        return {name: why for name, why in found.items() if why is not None}

    def _others(self, settings: CsvSettings) -> list[str]:
        """Return the columns that nobody said to be no inputs."""
        others = {settings.client_column, settings.target, *settings.drop_columns}
        return [name for name in self.arrow.schema.names if name not in others]

    def _doubts(self, target: str, agreed: Agreed) -> tuple[str, ...]:
        """Return what the target may be meant for, if it is of many whole numbers."""
        count, rows = len(agreed.classes), self.arrow.num_rows
        few = count <= FEW_CLASSES or rows >= ROWS_OF_A_CLASS * count
        if few or not is_number(self.arrow.schema.field(target).type):
            return ()
        doubt = (
            f"the {count} different numbers of {target} are taken as classes, in {rows:,} rows; "
            "data.regression=true predicts them as numbers"
        )
        return (doubt,)

    def _check(self, key: str, wanted: Sequence[str], names: Sequence[str]) -> None:
        for name in wanted:
            if name not in names:
                kind = "columns of numbers" if key == "zero_as_missing" else "columns"
                raise DataError(
                    f"data.{key} must be one of the {kind} of {self.path}, which are "
                    f"{', '.join(names) or 'none'}, got {name!r}{_meant(name, names)}"
                )

    def _distinct(self, key: str, name: str) -> tuple[tuple[str, ...], Labels]:
        """Return the distinct values of a column without missing ones, and their positions."""
        values = self.arrow[name].to_pylist()
        if None in values:
            raise DataError(
                f"data.{key} must be a column without missing values, got {name}, which is missing "
                f"in {self._place(values.index(None))} of {self.path}"
            )
        distinct = sorted(set(values))
        position = {value: i for i, value in enumerate(distinct)}
        return tuple(map(_word, distinct)), np.array([position[v] for v in values], dtype=np.int64)

    def _target(self, settings: CsvSettings, agreed: Agreed) -> Targets:
        """Return the position of the target among the classes, or the target."""
        name = settings.target
        if settings.regression:
            if not is_number(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.target must be a column of numbers in {self.path} where data.regression "
                    f"is true, got {name}"
                )
            numbers = self._numbers(name, zero_as_missing=False)
            if np.isnan(numbers).any():
                self._distinct("target", name)  # says where one is missing
            return numbers.astype(np.float32)
        values = [None if one is None else _word(one) for one in self.arrow[name].to_pylist()]
        return self._positions("target", name, values, agreed.classes)

    def _agreed(self, settings: CsvSettings, no_inputs: Mapping[str, str]) -> Agreed:
        """Return what the settings say of columns and classes, or what the file has."""
        if settings.columns is not None:
            return Agreed.of_settings(settings.columns)
        names = [name for name in self._others(settings) if name not in no_inputs]
        if not names:
            taken = "".join(f", {name} has {why}" for name, why in no_inputs.items())
            raise DataError(
                f"data.drop_columns must leave columns of {self.path} as inputs, got none{taken}"
            )
        self._check_kinds(names)
        of_numbers = [name for name in names if is_number(self.arrow.schema.field(name).type)]
        categories: dict[str, tuple[str | None, ...]] = {}
        for name in names:
            if name not in of_numbers:
                values = self._text(name)
                self._check_category(name, values)
                known = sorted({one for one in values if one is not None})
                categories[name] = (*known, *([None] if None in values else []))
        classes: tuple[str, ...] = ()
        if not settings.regression:
            self._check_classes(settings.target)
            classes, _ = self._distinct("target", settings.target)
        return Agreed(tuple(of_numbers), categories, classes)

    def _check_kinds(self, names: Sequence[str]) -> None:
        """Refuse the columns of a Parquet file that a table of numbers and words cannot have."""
        for name in names:
            kind = self.arrow.schema.field(name).type
            # Words of a CSV file that are not in UTF-8 are binary, and refused by name later.
            if not (is_number(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
                raise DataError(
                    f"data.drop_columns must have the columns of {self.path} that are neither "
                    f"numbers nor words, got none of {name}, which is of type {kind}"
                )

    def _check_classes(self, name: str) -> None:
        """Refuse what is no class: numbers that are not whole, or a value for nearly every row."""
        column = self.arrow[name]
        different = len(column.unique())
        if len(column) >= ENOUGH_ROWS and different > len(column) / 2:
            numbers = " (data.regression=true predicts numbers)" if is_number(column.type) else ""
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
                    f"{self._place(row)} (data.regression=true predicts numbers)"
                )

    def _positions(
        self, key: str, name: str, values: Sequence[str | None], known: Sequence[str | None]
    ) -> Labels:
        """Return the position of each cell of a column among the known values."""
        position = {value: i for i, value in enumerate(known)}
        for row, value in enumerate(values):
            if value not in position:
                place, words = (
                    self._place(row),
                    ", ".join("null" if v is None else v for v in known),
                )
                raise DataError(
                    f"data.{key} must lead to one of the agreed values {words} in each row, got "
                    f"{'a missing one' if value is None else repr(value)} of {name} in {place} "
                    f"of {self.path}"
                )
        return np.array([position[value] for value in values], dtype=np.int64)

    def _inputs(self, settings: CsvSettings, agreed: Agreed) -> tuple[Numbers, Inputs]:
        self._check("columns", [*agreed.numbers, *agreed.categories], self.arrow.schema.names)
        self._check("zero_as_missing", settings.zero_as_missing, agreed.numbers)
        numbers = np.empty((self.arrow.num_rows, len(agreed.numbers)))
        for i, name in enumerate(agreed.numbers):
            if not is_number(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.columns must have columns of numbers in {self.path} as numbers, got "
                    f"{name}, where {self._not_a_number(name)}"
                )
            numbers[:, i] = self._numbers(name, zero_as_missing=name in settings.zero_as_missing)
        flags = np.zeros(
            (self.arrow.num_rows, len(agreed.columns) - len(agreed.numbers)), np.float32
        )
        first = 0
        for name, known in agreed.categories.items():
            column = self._positions("columns", name, self._text(name), known)
            flags[np.arange(len(column)), first + column] = 1
            first += len(known)
        return numbers, flags

    def _check_category(self, name: str, values: Sequence[str | None]) -> None:
        """Refuse a column of numbers in which a word would make each number a category."""
        known = [value for value in values if value is not None]
        of_numbers = sum(map(_reads_as_number, known))
        if of_numbers > len(known) / 2:
            raise DataError(
                f"data.path must be a .csv file whose columns are either numbers or categories, "
                f"got {self.path}: {name} has {of_numbers} numbers, and {self._not_a_number(name)} "
                "(correct it, leave the column out by data.drop_columns, or name all columns in "
                "data.columns)"
            )

    def _place(self, row: int) -> str:
        return self.files.place(row)

    def _not_a_number(self, name: str) -> str:
        """Say which cell of a column is no number, and where."""
        for row, value in enumerate(self._text(name)):
            if value is not None and not _reads_as_number(value):
                return f"{self._place(row)} has {value!r}"
        return "cells are of several kinds"

    def _numbers(self, name: str, *, zero_as_missing: bool) -> Numbers:
        column = self.arrow[name]
        missing = column.is_null().to_numpy()
        values = np.where(missing, np.nan, column.cast(pa.float64(), safe=False).to_numpy())
        with np.errstate(over="ignore"):
            wrong = ~missing & ~np.isfinite(values.astype(np.float32))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"data.path must be a .csv file of numbers that are finite in float32, got "
                f"{self.path}: {name} is {values[row]:g} in {self._place(row)}"
            )
        if zero_as_missing:
            values[values == 0] = np.nan
        return values

    def _text(self, name: str) -> list[str | None]:
        try:
            values: list[str | None] = self.arrow[name].cast(pa.string()).to_pylist()
        except pa.ArrowInvalid as error:
            raise DataError(
                f"data.path must be a .csv file in UTF-8, got {self.path}: {name}: "
                f"{one_line(error)}"
            ) from None
        return values


def _such(names: Sequence[str]) -> str:
    """Return the clients that a message names, the first of many."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _reads_as_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
