"""Read one file of a table in any of its formats, which its first bytes tell."""

import gzip
import importlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from client_app.data.coding.cells import clean_column
from client_app.data.sources.csv_text import GZIP_BEGIN, read_csv_file
from client_app.data.sources.file_rows import NUM_FIRST_ROWS, FileRows, check_title, name_columns

PARQUET_SUFFIXES = (".parquet", ".pq")
PARQUET_BEGIN = b"PAR1"
NO_ROWS = "it has no rows"
ZIP_BEGIN = b"PK\x03\x04"
FOREIGN_FORMATS = {
    "an old Excel file (.xls); save it as CSV UTF-8": (b"\xd0\xcf\x11\xe0",),
    "a compressed file; unpack it": (b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"),
    "an archive; unpack it": (b"7z\xbc\xaf", b"Rar!"),
    "a file of SPSS; save it as CSV UTF-8": (b"$FL2", b"$FL3"),
    "a file of Stata; save it as CSV UTF-8": (b"<stata_dta>",),
    "a file of SAS; save it as CSV UTF-8": (
        b"\0\0\0\0\0\0\0\0\0\0\0\0\xc2\xea\x81\x60",
        b"HEADER RECORD***",
    ),
    "a file of R; save it by write.csv": (b"RDX2\n", b"RDX3\n", b"X\n\0\0\0", b"A\n3\n"),
    "a database; save its table as CSV UTF-8": (b"SQLite format 3",),
    "an Arrow or Feather file; save it as Parquet": (b"ARROW1", b"FEA1"),
    "an Avro file; save it as Parquet": (b"Obj\x01",),
    "an HDF5 file; save its table as CSV or Parquet": (b"\x89HDF",),
    "a NumPy file; data=npz takes arrays in an .npz file": (b"\x93NUMPY",),
    "a pickle; save it by to_csv or to_parquet": (b"\x80\x04\x95", b"\x80\x05\x95"),
    "a PDF; save its table as CSV UTF-8": (b"%PDF",),
    "a text document; save its table as CSV UTF-8": (b"{\\rtf",),
    "a JSON file; save it as CSV or Parquet": (b"{", b"[{", b"[[", b"[\n"),
    "an HTML or XML file (a failed download?); save it as CSV UTF-8": (
        b"<!",
        b"<?",
        b"<h",
        b"<H",
        b"<t",
    ),
    "a pointer of Git LFS; git lfs pull downloads the file": (b"version https://git-lfs",),
    "an ARFF file; save it as CSV UTF-8": (b"@relation", b"@RELATION"),
}
"""What files begin with that are no tables of this program, and what to do with them."""

NUM_FIRST_BYTES = 32


def read_table_file(file: Path) -> FileRows:
    """Return the rows of a CSV, Parquet or Excel file.

    Raises
    ------
    ValueError
        If the file is no such table.
    """
    first = _read_first_bytes(file)
    if first.startswith(PARQUET_BEGIN) or file.suffix.lower() in PARQUET_SUFFIXES:
        rows = _read_parquet(file)
    elif first.startswith(ZIP_BEGIN):
        rows = _read_archive(file)
    else:
        text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
        for what, begins in FOREIGN_FORMATS.items():
            if first.startswith(begins) or text.startswith(begins):
                raise ValueError(f"it is {what}")
        rows = read_csv_file(file)
    if not rows.table.num_rows:
        raise ValueError(NO_ROWS)
    return rows


def _read_first_bytes(file: Path) -> bytes:
    """Return the first bytes of a file, unpacked."""
    with file.open("rb") as stream:
        first = stream.read(NUM_FIRST_BYTES)
    if not first.startswith(GZIP_BEGIN):
        return first
    with gzip.open(file) as unpacked:
        return unpacked.read(NUM_FIRST_BYTES)


def _read_parquet(file: Path) -> FileRows:
    table = pq.ParquetFile(file).read()
    return name_columns(FileRows(file, _build_table(table.columns)), table.column_names)


def _build_table(columns: Sequence[Any]) -> Any:
    """Return a table of converted columns, without names yet."""
    names = [str(i) for i in range(len(columns))]
    return pa.table([_convert_column(column) for column in columns], names)


def _convert_column(column: Any) -> Any:
    """Convert a column to clean text or numbers, with null for missing values."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_large_string(column.type) or types.is_string_view(column.type):
        column = column.cast(pa.string())
    if types.is_decimal(column.type) or types.is_float16(column.type):
        column = column.cast(pa.float64())
    if types.is_string(column.type):
        return clean_column(column)
    if types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _read_archive(file: Path) -> FileRows:
    """Return the rows of an Excel file; raise ValueError for another archive."""
    try:
        members = zipfile.ZipFile(file).namelist()
    except zipfile.BadZipFile:
        members = []
    if "xl/workbook.xml" in members:
        return _read_excel(file)
    if "content.xml" in members:
        raise ValueError("it is an OpenDocument file (.ods); save it as CSV UTF-8")
    raise ValueError("it is a .zip archive; unpack it, and give a .csv or .parquet file")


def _read_excel(file: Path) -> FileRows:
    """Return the rows of the only sheet with cells; its first row names the columns."""
    try:
        openpyxl: Any = importlib.import_module("openpyxl")
    except ModuleNotFoundError:
        raise ValueError(
            'it is an Excel file; save it as CSV UTF-8 or install "fedquorum-app[excel]"'
        ) from None
    try:
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    except Exception as error:
        raise ValueError(f"it is a damaged Excel file: {error}") from None
    sheets = {sheet.title: _list_rows(sheet) for sheet in book.worksheets}
    book.close()
    filled = {title: rows for title, rows in sheets.items() if rows}
    if len(filled) != 1:
        raise ValueError(
            f"it must have one sheet with cells, got {', '.join(filled) or 'none'}; save the one "
            "sheet as CSV UTF-8"
        )
    ((_, rows),) = filled.items()
    first_rows = [
        (f"row {number}", ["" if cell is None else str(cell) for cell in cells])
        for number, cells in rows[:NUM_FIRST_ROWS]
    ]
    check_title(first_rows)
    if len(rows) == 1:
        raise ValueError(NO_ROWS)
    columns = [_build_column(cells) for cells in zip_longest(*(cells for _, cells in rows[1:]))]
    numbers = tuple(number for number, _ in rows[1:])
    return name_columns(_ExcelRows(file, _build_table(columns), numbers=numbers), first_rows[0][1])


@dataclass(frozen=True)
class _ExcelRows(FileRows):
    """The rows of a sheet, and their numbers, among which may be empty ones."""

    numbers: tuple[int, ...] = ()

    def describe_row(self, row: int) -> str:
        """Return the number of a row in the sheet."""
        return f"row {self.numbers[row]}"


def _list_rows(sheet: Any) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the rows with cells, and their numbers from 1."""
    rows = enumerate(sheet.iter_rows(values_only=True), 1)
    return [(number, cells) for number, cells in rows if any(cell is not None for cell in cells)]


def _build_column(cells: Sequence[Any]) -> Any:
    """Return cells of one kind with their type, and others as text."""
    present = [cell for cell in cells if cell is not None]
    for kinds in ((bool,), (int,), (int, float), (datetime, date), (time,)):
        if present and all(type(cell) in kinds for cell in present):
            return pa.chunked_array([pa.array(cells, from_pandas=True)])
    texts = [None if cell is None else _format_cell(cell) for cell in cells]
    return pa.chunked_array([pa.array(texts, pa.string())])


def _format_cell(cell: Any) -> str:
    """Return a cell as in a CSV file."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)
