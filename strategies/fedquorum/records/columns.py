"""What one column of a run's tables holds: one description, by which it is written and read.

A column of float64 holds every float64 there is, infinities and NaN included, and gives it back to
the bit, unless its numbers have a range. Null says that there is no value, and the column says why.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import RunError
from .values import MAX_COUNT

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Parameters
    ----------
    name : str
        Its name.
    type : pa.DataType
        The type of its values.
    null_meaning : str
        What it says that a value is null; empty if none may be.
    low, high : float
        The least and the greatest number. NaN is in every range.
    """

    name: str
    type: pa.DataType
    null_meaning: str = ""
    low: float = -math.inf
    high: float = math.inf

    @property
    def field(self) -> pa.Field:
        """The column as Arrow describes it."""
        return pa.field(self.name, self.type, nullable=bool(self.null_meaning))

    @property
    def is_text(self) -> bool:
        """Whether its values are texts."""
        return bool(pa.types.is_string(self.type))

    def check(self, values: pa.ChunkedArray) -> None:
        """Refuse values of the column's type that it does not hold.

        Raises
        ------
        RunError
            If one is null and may not be, or a number is outside its range.
        """
        if values.null_count and not self.null_meaning:
            raise RunError(f"expected {self.name} in every row")
        if (self.low, self.high) == (-math.inf, math.inf):
            return
        if pa.types.is_floating(self.type):
            values = pc.if_else(pc.is_nan(values), None, values)
        extremes = pc.min_max(values).as_py()
        least, most = extremes["min"], extremes["max"]
        if least is not None and not (self.low <= least and most <= self.high):
            worst = least if least < self.low else most
            raise RunError(
                f"expected numbers from {self.low:g} to {self.high:g} in {self.name}, got {worst:g}"
            )


TableColumns = tuple[TableColumn, ...]
"""The columns of a table."""


def build_schema(columns: Sequence[TableColumn]) -> pa.Schema:
    """Return columns as Arrow describes them."""
    return pa.schema([column.field for column in columns])


def build_table(columns: Sequence[TableColumn], values: Mapping[str, Any]) -> pa.Table:
    """Return a table that a reader takes.

    Parameters
    ----------
    columns : sequence of Column
        The columns.
    values : mapping
        The values of each.

    Raises
    ------
    RunError
        If a column does not hold its values.
    """
    return validate_columns(columns, pa.table(dict(values), schema=build_schema(columns)))


def validate_columns(columns: Sequence[TableColumn], table: pa.Table) -> pa.Table:
    """Return a table once each column holds its values.

    Raises
    ------
    RunError
        If one does not.
    """
    for column in columns:
        column.check(table[column.name])
    return table


def int_column(name: str, null_meaning: str = "", *, high: float = MAX_COUNT) -> TableColumn:
    """Return a column of whole numbers >= 0, in 32 bits where these are enough."""
    return TableColumn(name, pa.int32() if high <= MAX_INT32 else pa.int64(), null_meaning, 0, high)


def float_column(name: str, null_meaning: str = "") -> TableColumn:
    """Return a column of any numbers."""
    return TableColumn(name, pa.float64(), null_meaning)


def fraction_column(name: str, null_meaning: str = "") -> TableColumn:
    """Return a column of numbers from 0 to 1."""
    return TableColumn(name, pa.float64(), null_meaning, 0.0, 1.0)


def text_column(name: str, null_meaning: str = "") -> TableColumn:
    """Return a column of texts."""
    return TableColumn(name, pa.string(), null_meaning)


def bool_column(name: str, null_meaning: str = "") -> TableColumn:
    """Return a column of truth values."""
    return TableColumn(name, pa.bool_(), null_meaning)
