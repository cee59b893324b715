"""A table of the user's own, in one CSV file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from client_app.data.base import Inputs, Labels, one_line
from conf.errors import DataError
from conf.schema import CsvSettings

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")
HEADER = 1

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """n rows with p numbers and q of 0 or 1, and whose each row is.

    Attributes
    ----------
    clients : array of int64
        (n,), from 0.
    client_names : tuple of str
        What the clients are called in the file, by id.
    labels : array of int64
        (n,), the position of the target in ``classes``.
    classes : tuple of str
        The targets that there are, ascending.
    numbers : array of float64
        (n, p), NaN where a number is missing.
    categories : array of float32
        (n, q), 1 where the row has this category of this column.
    columns : tuple of str
        The names of the p and then of the q columns, those as ``column=category``.
    """

    clients: Labels
    client_names: tuple[str, ...]
    labels: Labels
    classes: tuple[str, ...]
    numbers: Numbers
    categories: Inputs
    columns: tuple[str, ...]


def csv_table(settings: CsvSettings) -> Table:
    """Return the table of ``data.path``, a CSV file in UTF-8 with a header and commas.

    A cell is missing if it is empty or one of ?, NA, N/A, NaN, nan, NULL, null. A column is of
    numbers if all others of its cells are (true and false are 1 and 0), or else of categories.
    A column of categories becomes one of 0 and 1 for each category in the whole file, ascending,
    and if cells are missing a last one for these, ``column=``. What is 0 in a column of
    ``data.zero_is_missing`` is missing.

    Clients and classes are the distinct values of ``data.client_column`` and ``data.target``,
    ascending: numbers as numbers, all else as text. Both columns, and those of ``data.drop``,
    are no inputs.

    Raises
    ------
    DataError
        If there is no such file, or no such table in it.
    """
    path = Path(settings.path).expanduser().resolve()
    try:
        table = _read(path)
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


def _read(path: Path) -> Any:
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
    return table


@dataclass(frozen=True)
class _Columns:
    """A table as read, and where from."""

    path: Path
    arrow: Any

    def table(self, settings: CsvSettings) -> Table:
        for key, names in (
            ("client_column", [settings.client_column]),
            ("target", [settings.target]),
            ("drop", settings.drop),
        ):
            self._check(key, names, self.arrow.schema.names)
        client_names, clients = self._distinct("client_column", settings.client_column)
        classes, labels = self._distinct("target", settings.target)
        if len(classes) == 1:
            raise DataError(
                f"data.target must be a column of different values in {self.path}, got "
                f"{settings.target}, which is always {classes[0]}"
            )
        for name, count in zip(client_names, np.bincount(clients), strict=True):
            if count == 1:
                raise DataError(
                    f"data.client_column must be a column whose every value is in at least 2 rows "
                    f"of {self.path}, for training and for testing, got {settings.client_column}, "
                    f"where {name} is in 1"
                )
        return Table(clients, client_names, labels, classes, *self._inputs(settings))

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
        return tuple(map(str, distinct)), np.array([position[v] for v in values], dtype=np.int64)

    def _inputs(self, settings: CsvSettings) -> tuple[Numbers, Inputs, tuple[str, ...]]:
        others = {settings.client_column, settings.target, *settings.drop}
        names = [name for name in self.arrow.schema.names if name not in others]
        if not names:
            raise DataError(f"data.drop must leave columns of {self.path} as inputs, got none")
        of_numbers = [name for name in names if _is_number(self.arrow.schema.field(name).type)]
        self._check("zero_is_missing", settings.zero_is_missing, of_numbers)
        numbers = np.empty((self.arrow.num_rows, len(of_numbers)))
        for i, name in enumerate(of_numbers):
            numbers[:, i] = self._numbers(name, zero_is_missing=name in settings.zero_is_missing)
        flags, columns = [], list(of_numbers)
        for name in names:
            if name not in of_numbers:
                values = self._text(name)
                known: list[str | None] = [*sorted({one for one in values if one is not None})]
                for category in known + [None] * (None in values):
                    flags.append([value == category for value in values])
                    columns.append(f"{name}={'' if category is None else category}")
        shape = (len(flags), self.arrow.num_rows)
        categories = np.array(flags, dtype=np.float32).reshape(shape).T
        return numbers, categories, tuple(columns)

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


def _is_number(kind: Any) -> bool:
    types = pa.types
    return any(
        belongs(kind)
        for belongs in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    )
