"""Read Parquet files of a run, which are untrusted.

A small file can claim many rows, repeat one long text in all of them, or hold types that the table
does not have. Such a file is refused before its rows are unpacked.
"""

from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import RunError, to_one_line
from .columns import TableColumn
from .safe_files import SafeRunDir, format_table_file

MAX_READ_ROWS = 20_000_000
MAX_UNPACKED_BYTES = 2**30
"""Of one file: a few bytes of a hostile file can unpack to more than the memory."""


def read_parquet_file(
    run: SafeRunDir,
    names: Sequence[str],
    columns: Sequence[TableColumn],
    wanted: Sequence[str] | None = None,
) -> pa.Table:
    """Return a Parquet file of a run, with the types and within the ranges of ``columns``.

    Other columns are left out.

    Parameters
    ----------
    run : SafeRunDir
        The run's directory.
    names : sequence of str
        The file's folders below it, and its name.
    columns : sequence of TableColumn
        The columns of the table.
    wanted : sequence of str, optional
        The names of the columns to read; all by default.

    Raises
    ------
    RunError
        If the file is missing, a link, damaged, too large, or not such a table.
    """
    path = run.path.joinpath(*names)
    with run.open(*names) as file:
        if file is None:
            raise RunError(f"expected a file of a run, got {path} (No such file or directory)")
        try:
            return _read_table(file, [c for c in columns if wanted is None or c.name in wanted])
        except (pa.ArrowException, OSError, ValueError, KeyError, RunError) as error:
            raise RunError(f"{path}: {to_one_line(error)}") from None


def count_rows(run: SafeRunDir, table: str) -> int:
    """Return the number of a table's rows before its first missing or damaged file.

    Raises
    ------
    RunError
        If the folder or a file is a link, or cannot be read.
    """
    rows = 0
    for number, name in enumerate(run.list_table_files(table)):
        if name != format_table_file(number):
            break
        with run.open(table, name) as file:
            try:
                rows += 0 if file is None else pq.read_metadata(file).num_rows
            except (pa.ArrowException, OSError):
                break
    return rows


def read_columns(file: BinaryIO, columns: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return columns of an open Parquet file.

    Only the calling thread reads: a thread of Arrow's that still holds a Python file when the
    interpreter ends aborts the process (https://github.com/apache/arrow/issues/34314).

    Parameters
    ----------
    file : binary file
    columns : sequence of str
    texts : sequence of str
        The columns of texts and bytes: they stay dictionary-encoded, so that a long recurring one
        is stored once.

    Raises
    ------
    RunError
        If the file claims to hold more than the limits.
    """
    parquet = pq.ParquetFile(file, read_dictionary=list(texts), pre_buffer=False)
    _check_size(parquet.metadata)
    return parquet.read(columns=list(columns), use_threads=False)


def _check_size(metadata: Any) -> None:
    """Refuse a file that claims more rows or bytes than the limits."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    if rows > MAX_READ_ROWS or size > MAX_UNPACKED_BYTES:
        raise RunError(
            f"expected at most {MAX_READ_ROWS:,} rows and {MAX_UNPACKED_BYTES // 2**20} MiB, got "
            f"{rows:,} rows and {size // 2**20} MiB"
        )


def _read_table(file: BinaryIO, wanted: Sequence[TableColumn]) -> pa.Table:
    found = pq.read_schema(file).names
    if len(set(found)) < len(found):
        raise RunError("expected columns with different names")
    missing = [column for column in wanted if column.name not in found]
    if not all(column.is_optional for column in missing):
        raise RunError(f"expected a column {missing[0].name}")
    present = [column for column in wanted if column not in missing]
    texts = [column.name for column in present if column.has_length]
    table = read_columns(file, [column.name for column in present], texts)
    return pa.table(
        {
            column.name: pa.chunked_array([pa.nulls(table.num_rows, column.type)])
            if column in missing
            else _cast_values(table[column.name], column)
            for column in wanted
        }
    )


def _cast_values(given: pa.ChunkedArray, column: TableColumn) -> pa.ChunkedArray:
    """Return the values of a column in the column's type, checked."""
    if column.has_length:
        _check_length(given, column)
    values = given.cast(column.type)
    column.check(values)
    return values


def _check_length(values: pa.ChunkedArray, column: TableColumn) -> None:
    """Refuse texts or bytes whose total length exceeds the limit."""
    kind = f"{'bytes' if pa.types.is_binary(column.type) else 'texts'} in {column.name}"
    length = 0
    for chunk in values.chunks:
        if not pa.types.is_dictionary(chunk.type):
            raise RunError(f"expected {kind}, got {chunk.type}")
        lengths = pc.binary_length(chunk.dictionary).cast(pa.int64())
        length += pc.sum(lengths.take(chunk.indices)).as_py() or 0
    if length > MAX_UNPACKED_BYTES:
        raise RunError(f"expected at most {MAX_UNPACKED_BYTES // 2**20} MiB of {kind}, got more")
