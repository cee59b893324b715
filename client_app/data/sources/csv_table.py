"""A table of the user's own, in one CSV file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fedquorum.errors import DataError, one_line
from numpy.typing import NDArray
from pyarrow import csv

from client_app.data.base import Inputs, Labels, Targets
from conf.schema.data import CsvSettings

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")
HEADER = 1

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Agreed:
    """What all clients of a table have in common: ``data.columns``.

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
        """Return what ``data.columns`` says, which ``conf.schema.checks`` looked at."""
        return cls(
            tuple(columns.get("numbers", [])),
            {
                name: tuple(None if value is None else _word(value) for value in values)
                for name, values in columns.get("categories", {}).items()
            },
            tuple(_word(value) for value in columns.get("classes", [])),
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
    """n rows with p numbers and q of 0 or 1, and whose each row is.

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
    """

    clients: Labels
    client_names: tuple[str, ...]
    labels: Targets
    classes: tuple[str, ...]
    numbers: Numbers
    categories: Inputs
    columns: tuple[str, ...]
    agreed: Agreed


def csv_table(settings: CsvSettings) -> Table:
    """Return the table of ``data.path``, a CSV file in UTF-8 with a header and commas.

    A cell is missing if it is empty or one of ?, NA, N/A, NaN, nan, NULL, null. A column is of
    numbers if all others of its cells are (true and false are 1 and 0), or else of categories; one
    of which more than half are numbers is refused, as a slip of the pen would make it so.
    A column of categories becomes one of 0 and 1 for each category in the whole file, ascending,
    and if cells are missing a last one for these, ``column=``. What is 0 in a column of
    ``data.zero_is_missing`` is missing.

    Clients and classes are the distinct values of ``data.client_column`` and ``data.target``,
    ascending: numbers as numbers, all else as text. Both columns, and those of ``data.drop``,
    are no inputs. Numbers that are not whole are no classes. With ``data.regression`` the target
    is a number itself.

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
        table = _read(path, settings.rows)
    except Exception as error:
        raise DataError(
            f"data.path must be a .csv file with a header, got {path}: {one_line(error)}"
        ) from None
    return arrow_table(path, table, settings)


def arrow_table(path: Path, table: Any, settings: CsvSettings) -> Table:
    """Return an Arrow table that was read from ``path``, as ``csv_table`` does its own.

    Raises
    ------
    DataError
        If it has not what the settings ask for.
    """
    return _Columns(path, table).table(settings)


def _read(path: Path, rows: int | None) -> Any:
    if not path.is_file():
        raise ValueError("there is no such file")
    # One block, so that the kind of a column follows from all its cells; one thread, so that
    # messages have the row.
    block = min(path.stat().st_size + 1, 2**31 - 1)
    table = csv.read_csv(
        path,
        read_options=csv.ReadOptions(use_threads=False, block_size=block),
        convert_options=csv.ConvertOptions(null_values=list(MISSING), strings_can_be_null=True),
    )
    names = table.schema.names
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"its header has {', '.join(repeated)} more than once")
    if "" in names:
        raise ValueError(f"column {names.index('') + 1} of its header has no name")
    if not table.num_rows:
        raise ValueError("it has no rows")
    if rows not in {None, table.num_rows}:
        raise ValueError(f"it must have data.rows {rows}, got {table.num_rows}")
    return table


@dataclass(frozen=True)
class _Columns:
    """A table as read, and where from."""

    path: Path
    arrow: Any

    def table(self, settings: CsvSettings) -> Table:
        client_column = settings.client_column
        for key, names in (
            ("client_column", [client_column] if client_column is not None else []),
            ("target", [settings.target]),
            ("drop", settings.drop),
        ):
            self._check(key, names, self.arrow.schema.names)
        agreed = self._agreed(settings)
        client_names: tuple[str, ...] = ("",)
        clients = np.zeros(self.arrow.num_rows, dtype=np.int64)
        if client_column is not None:
            client_names, clients = self._distinct("client_column", client_column)
        labels = self._target(settings, agreed)
        if len(agreed.classes) == 1:
            raise DataError(
                f"data.target must be a column of different values in {self.path}, got "
                f"{settings.target}, which is always {agreed.classes[0]}"
            )
        for name, count in zip(client_names, np.bincount(clients), strict=True):
            if count == 1 and client_column is not None:
                raise DataError(
                    f"data.client_column must be a column whose every value is in at least 2 rows "
                    f"of {self.path}, for training and for testing, got {client_column}, where "
                    f"{name} is in 1"
                )
        numbers, categories = self._inputs(settings, agreed)
        return Table(
            clients,
            client_names,
            labels,
            agreed.classes,
            numbers,
            categories,
            agreed.columns,
            agreed,
        )

    def _check(self, key: str, wanted: Sequence[str], names: Sequence[str]) -> None:
        for name in wanted:
            if name not in names:
                kind = "columns of numbers" if key == "zero_is_missing" else "columns"
                raise DataError(
                    f"data.{key} must be of the {kind} of {self.path}, which are "
                    f"{', '.join(names) or 'none'}, got {name!r}"
                )

    def _distinct(self, key: str, name: str) -> tuple[tuple[str, ...], Labels]:
        """Return the distinct values of a column without missing ones, and their positions."""
        values = self.arrow[name].to_pylist()
        if None in values:
            raise DataError(
                f"data.{key} must be a column without missing values, got {name}, which is missing "
                f"in line {self._line(values.index(None))} of {self.path}"
            )
        distinct = sorted(set(values))
        position = {value: i for i, value in enumerate(distinct)}
        return tuple(map(_word, distinct)), np.array([position[v] for v in values], dtype=np.int64)

    def _target(self, settings: CsvSettings, agreed: Agreed) -> Targets:
        """Return the position of the target among the classes, or the target."""
        name = settings.target
        if settings.regression:
            if not _is_number(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.target must be a column of numbers in {self.path} where data.regression "
                    f"is true, got {name}"
                )
            numbers = self._numbers(name, zero_is_missing=False)
            if np.isnan(numbers).any():
                self._distinct("target", name)  # says where one is missing
            return numbers.astype(np.float32)
        values = [None if one is None else _word(one) for one in self.arrow[name].to_pylist()]
        return self._positions("target", name, values, agreed.classes)

    def _agreed(self, settings: CsvSettings) -> Agreed:
        """Return what the settings say of columns and classes, or what the file has."""
        if settings.columns is not None:
            return Agreed.of_settings(settings.columns)
        others = {settings.client_column, settings.target, *settings.drop}
        names = [name for name in self.arrow.schema.names if name not in others]
        if not names:
            raise DataError(f"data.drop must leave columns of {self.path} as inputs, got none")
        of_numbers = [name for name in names if _is_number(self.arrow.schema.field(name).type)]
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

    def _check_classes(self, name: str) -> None:
        """Refuse numbers that are not whole: they are no classes, but a target of regression."""
        if not pa.types.is_floating(self.arrow.schema.field(name).type):
            return
        for row, value in enumerate(self.arrow[name].to_pylist()):
            if value is not None and not value.is_integer():
                raise DataError(
                    f"data.target must be a column of classes in {self.path} where "
                    f"data.regression is false, got {name}, which is {value:g} in line "
                    f"{self._line(row)}"
                )

    def _positions(
        self, key: str, name: str, values: Sequence[str | None], known: Sequence[str | None]
    ) -> Labels:
        """Return the position of each cell of a column among the known values."""
        position = {value: i for i, value in enumerate(known)}
        for row, value in enumerate(values):
            if value not in position:
                line, words = self._line(row), ", ".join("null" if v is None else v for v in known)
                raise DataError(
                    f"data.{key} must lead to one of the agreed values {words} in each row, got "
                    f"{'a missing one' if value is None else repr(value)} of {name} in line {line} "
                    f"of {self.path}"
                )
        return np.array([position[value] for value in values], dtype=np.int64)

    def _inputs(self, settings: CsvSettings, agreed: Agreed) -> tuple[Numbers, Inputs]:
        self._check("columns", [*agreed.numbers, *agreed.categories], self.arrow.schema.names)
        self._check("zero_is_missing", settings.zero_is_missing, agreed.numbers)
        numbers = np.empty((self.arrow.num_rows, len(agreed.numbers)))
        for i, name in enumerate(agreed.numbers):
            if not _is_number(self.arrow.schema.field(name).type):
                raise DataError(
                    f"data.columns must have columns of numbers in {self.path} as numbers, got "
                    f"{name}, where {self._not_a_number(name)}"
                )
            numbers[:, i] = self._numbers(name, zero_is_missing=name in settings.zero_is_missing)
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
                "(correct it, leave the column out by data.drop, or name all columns in "
                "data.columns)"
            )

    def _not_a_number(self, name: str) -> str:
        """Say which cell of a column is no number, and where."""
        for row, value in enumerate(self._text(name)):
            if value is not None and not _reads_as_number(value):
                return f"line {self._line(row)} has {value!r}"
        return "cells are of several kinds"

    def _numbers(self, name: str, *, zero_is_missing: bool) -> Numbers:
        column = self.arrow[name]
        missing = column.is_null().to_numpy()
        values = np.where(missing, np.nan, column.cast(pa.float64(), safe=False).to_numpy())
        with np.errstate(over="ignore"):
            wrong = ~missing & ~np.isfinite(values.astype(np.float32))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"data.path must be a .csv file of numbers that are finite in float32, got "
                f"{self.path}: {name} is {values[row]:g} in line {self._line(row)}"
            )
        if zero_is_missing:
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

    def _line(self, row: int) -> int:
        """Return where in the file a row is, from 1; empty lines are no rows."""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            lines = (number for number, line in enumerate(file, 1) if line.strip("\n"))
            return next(islice(lines, HEADER + row, None))


def _reads_as_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_number(kind: Any) -> bool:
    types = pa.types
    return any(
        belongs(kind)
        for belongs in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    )
