"""Describe the columns of a run's tables; writer and reader use the same description.

A float64 column holds every float64 value, infinities and NaN included, and restores it bit by bit,
unless the column has a range. Null means that there is no value; the column says why.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import RunError
from ..metrics.calibration import INVALID_BINS, are_valid_bins
from .values import MAX_COUNT

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    Parameters
    ----------
    name : str
    type : pa.DataType
    null_meaning : str
        What a null value means; empty if no value may be null.
    low, high : float
        The smallest and the largest allowed number. NaN is in every range.
    is_optional : bool
        Whether a table without any value may lack the column.
    """

    name: str
    type: pa.DataType
    null_meaning: str = ""
    low: float = -math.inf
    high: float = math.inf
    is_optional: bool = False

    @property
    def field(self) -> pa.Field:
        """The column as an Arrow field."""
        return pa.field(self.name, self.type, nullable=bool(self.null_meaning))

    @property
    def has_length(self) -> bool:
        """Whether the values are texts or bytes, of any length."""
        return bool(pa.types.is_string(self.type) or pa.types.is_binary(self.type))

    def check(self, values: pa.ChunkedArray) -> None:
        """Refuse values that the column does not allow.

        Raises
        ------
        RunError
            If a value is null and may not be, or a number is out of range.
        """
        if values.null_count and not self.null_meaning:
            raise RunError(f"expected {self.name} in every row")
        if pa.types.is_binary(self.type):
            if not are_valid_bins(values.drop_null().to_pylist()):
                raise RunError(f"{self.name} {INVALID_BINS}")
            return
        if (self.low, self.high) == (-math.inf, math.inf):
            return
        if pa.types.is_floating(self.type):
            values = pc.if_else(pc.is_nan(values), None, values)
        extremes = pc.min_max(values).as_py()
        lowest, highest = extremes["min"], extremes["max"]
        if lowest is not None and not (self.low <= lowest and highest <= self.high):
            worst = lowest if lowest < self.low else highest
            raise RunError(
                f"expected numbers from {self.low:g} to {self.high:g} in {self.name}, got {worst:g}"
            )


TableColumns = tuple[TableColumn, ...]
"""The columns of a table."""


def build_schema(columns: Sequence[TableColumn]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    return pa.schema([column.field for column in columns])


def build_table(columns: Sequence[TableColumn], values: Mapping[str, Any]) -> pa.Table:
    """Return a table that a reader accepts.

    Parameters
    ----------
    columns : sequence of TableColumn
    values : mapping
        The values of each column, by name.

    Raises
    ------
    RunError
        If a column does not allow its values.
    """
    return validate_columns(columns, pa.table(dict(values), schema=build_schema(columns)))


def validate_columns(columns: Sequence[TableColumn], table: pa.Table) -> pa.Table:
    """Return the table after checking the values of each column.

    Raises
    ------
    RunError
        If a column does not allow its values.
    """
    for column in columns:
        column.check(table[column.name])
    return table


def int_column(
    name: str, null_meaning: str = "", *, high: float = MAX_COUNT, is_optional: bool = False
) -> TableColumn:
    """Return a column of whole numbers >= 0, of 32 bits if ``high`` fits, otherwise of 64."""
    kind = pa.int32() if high <= MAX_INT32 else pa.int64()
    return TableColumn(name, kind, null_meaning, 0, high, is_optional=is_optional)


def float_column(name: str, null_meaning: str = "", *, is_optional: bool = False) -> TableColumn:
    """Return a column of unrestricted numbers."""
    return TableColumn(name, pa.float64(), null_meaning, is_optional=is_optional)


def fraction_column(name: str, null_meaning: str = "") -> TableColumn:
    """Return a column of numbers from 0 to 1."""
    return TableColumn(name, pa.float64(), null_meaning, 0.0, 1.0)


def text_column(name: str, null_meaning: str = "", *, is_optional: bool = False) -> TableColumn:
    """Return a column of texts."""
    return TableColumn(name, pa.string(), null_meaning, is_optional=is_optional)


def calibration_column(name: str, null_meaning: str) -> TableColumn:
    """Return a column of sums of bins of confidence, see ``fedquorum.metrics.calibration``."""
    return TableColumn(name, pa.binary(), null_meaning, is_optional=True)


def bool_column(name: str, null_meaning: str = "") -> TableColumn:
    """Return a column of truth values."""
    return TableColumn(name, pa.bool_(), null_meaning)
