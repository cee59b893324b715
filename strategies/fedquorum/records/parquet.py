"""Read Parquet files of a run, which may come from anybody.

A small file can claim many rows, repeat one long text in all of them, or hold other types than the
table has. Each is refused before the rows are unpacked.
"""

from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import RunError, one_line
from .folder import RunFolder

MOST_ROWS = 20_000_000  # of one file
MOST_BYTES = 2**30  # of one file, unpacked
LARGEST_NUMBER = 1e100  # sums and squares of such numbers are finite
LARGEST_COUNT = 2**53  # so that a double holds each
_COUNTS = ("round", "client", "num_examples", "test_num_examples", "draws")


def read_file(
    run: RunFolder, names: Sequence[str], schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return a Parquet file of a run, with the types of ``schema``.

    Columns that the schema lacks are left out, and so are those that the file lacks where they may
    be null: an older version did not write them.

    Parameters
    ----------
    run : RunFolder
        The run's directory.
    names : sequence of str
        The file's folders below it, and its name.
    schema : pyarrow.Schema
        The columns that there are, and their types.
    columns : sequence of str, optional
        Which columns; all by default.

    Raises
    ------
    RunError
        If there is no such file, or it is a link, damaged, too large, or not such a table.
    """
    path = run.path.joinpath(*names)
    with run.opened(*names) as file:
        if file is None:
            raise RunError(f"expected a file of a run, got {path} (No such file or directory)")
        try:
            wanted = schema.names if columns is None else columns
            return _read(file, [field for field in schema if field.name in wanted])
        except (pa.ArrowException, OSError, ValueError, KeyError, RunError) as error:
            raise RunError(f"{path}: {one_line(error)}") from None


def read_columns(file: BinaryIO, columns: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return columns of an open Parquet file.

    The calling thread reads, alone: a thread of Arrow's that still holds a Python file when the
    interpreter ends aborts the process (https://github.com/apache/arrow/issues/34314).

    Parameters
    ----------
    file : binary file
        The file.
    columns : sequence of str
        Which columns.
    texts : sequence of str
        The columns that stay encoded as in the file, where a long text that recurs is stored once.

    Raises
    ------
    RunError
        If the file claims to hold more than is unpacked at most.
    """
    parquet = pq.ParquetFile(file, read_dictionary=list(texts), pre_buffer=False)
    _check_size(parquet.metadata)
    return parquet.read(columns=list(columns), use_threads=False)


def _check_size(metadata: Any) -> None:
    """Compare what a file claims to hold with what is unpacked at most."""
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise RunError(
            f"expected at most {MOST_ROWS:,} rows and {MOST_BYTES // 2**20} MiB, got "
            f"{rows:,} rows and {size // 2**20} MiB"
        )


def _read(file: BinaryIO, wanted: Sequence[pa.Field]) -> pa.Table:
    found = pq.read_schema(file).names
    if len(set(found)) < len(found):
        raise RunError("expected columns with different names")
    missing = [f.name for f in wanted if f.name not in found and not f.nullable]
    if missing:
        raise RunError(f"expected a column {missing[0]}")
    there = [field for field in wanted if field.name in found]
    texts = [field.name for field in there if pa.types.is_string(field.type)]
    table = read_columns(file, [field.name for field in there], texts)
    return pa.table({field.name: _column(table[field.name], field) for field in there})


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if column.null_count and not field.nullable:
        raise RunError(f"expected {field.name} in every row")
    if pa.types.is_string(field.type):
        _check_length(column, field.name)
    checked = column.cast(field.type)
    if pa.types.is_floating(field.type):
        _check_range(checked, field.name, -LARGEST_NUMBER, LARGEST_NUMBER)
    elif pa.types.is_list(field.type):
        _check_range(pc.list_flatten(checked), field.name, -1.0, 1.0)
    elif field.name in _COUNTS:
        _check_range(checked, field.name, 0, LARGEST_COUNT)
    return checked


def _check_length(column: pa.ChunkedArray, name: str) -> None:
    """Compare the length of all texts together with what is unpacked at most."""
    length = 0
    for chunk in column.chunks:
        if not pa.types.is_dictionary(chunk.type):
            raise RunError(f"expected texts in {name}, got {chunk.type}")
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
        length += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    if length > MOST_BYTES:
        raise RunError(f"expected at most {MOST_BYTES // 2**20} MiB of texts in {name}, got more")


def _check_range(column: pa.ChunkedArray, name: str, low: float, high: float) -> None:
    """Compare the numbers with their range; NaN stands for a number that is not defined."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    extremes = pc.min_max(column).as_py()
    least, most = extremes["min"], extremes["max"]
    if least is not None and not (low <= least and most <= high):
        worst = least if least < low else most
        raise RunError(f"expected numbers from {low:g} to {high:g} in {name}, got {worst:g}")
