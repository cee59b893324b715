"""Read one CSV file as a table of text; ``csv_table`` interprets its cells."""

import csv
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv as arrow_csv

from client_app.data.coding.cells import clean_column, clean_text
from client_app.data.sources.file_rows import (
    NUM_FIRST_ROWS,
    FileRows,
    check_title,
    name_columns,
    shorten,
)

GZIP_BEGIN = b"\x1f\x8b"
UNCLEAN_SIGNS = (b" ", b"\t", b"\v", b"\f", b'"')
"""Without one of these, a cell in ASCII has nothing to trim."""

NUM_FIRST_BYTES = 200
"""The bytes by which text differs from something else."""

FOREIGN_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Column separators of other formats."""

SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE | re.DOTALL)
"""The first line of a file for Excel, which names the separator."""


class CsvRows(FileRows):
    """The rows of a CSV file, found by their lines."""

    def describe_row(self, row: int) -> str:
        """Return the line at which a row begins: blank lines and lines within quotes count."""
        rows = _iterate_filled_rows(_read_text(self.file))
        return f"line {next(islice(rows, row + 1, None)).line}"


@dataclass(frozen=True)
class _TextRow:
    """A row of a CSV file: its cells, its first and last line from 1, and the offset behind it."""

    cells: list[str]
    line: int
    last_line: int
    end: int
    text: str


def read_csv_file(file: Path) -> CsvRows:
    """Return the rows of a CSV file in UTF-8 with a header and commas, all cells as text.

    ``name_columns`` leaves out columns without a name.

    Raises
    ------
    ValueError
        If the file is no such table.
    """
    data = _read_text(file)
    first_rows = list(islice(_iterate_filled_rows(data), NUM_FIRST_ROWS))
    if not first_rows:
        raise ValueError("it is empty")
    _check_separator(first_rows)
    header = first_rows[0]
    check_title([(f"line {row.line}", row.cells) for row in first_rows])
    table = _parse(data, header, len(header.cells))
    # Of a large table of plain numbers, cleaning would take as long as reading.
    is_ascii = data.isascii()
    if not is_ascii or any(sign in data for sign in UNCLEAN_SIGNS):
        columns = [clean_column(column, is_ascii=is_ascii) for column in table.columns]
        table = pa.table(columns, table.column_names)
    return name_columns(CsvRows(file, table), header.cells)


def read_raw_columns(file: Path, names: Sequence[str] = ()) -> Any:
    """Return the columns of a CSV file as text with its blanks and its form of Unicode.

    Parameters
    ----------
    file : Path
    names : sequence of str
        The names of the columns of a file without a header; a header with these names may be there.

    Raises
    ------
    ValueError
        If the file is no such table.
    """
    data = _read_text(file)
    first_rows = list(islice(_iterate_filled_rows(data), NUM_FIRST_ROWS))
    if not first_rows:
        raise ValueError("it is empty")
    _check_separator(first_rows)
    header = first_rows[0]
    if not names or header.cells == [*names]:
        rows = CsvRows(file, _parse(data, header, len(header.cells)))
        return name_columns(rows, header.cells).table
    if len(header.cells) != len(names):
        raise ValueError(f"its rows have {len(header.cells)} cells, data.header has {len(names)}")
    begin = _TextRow([*names], 0, 0, 0, "")
    return _parse(data, begin, len(names)).rename_columns([*names])


def _read_text(file: Path) -> bytes:
    """Return the bytes of a file, unpacked and without byte order mark; they are valid UTF-8."""
    data = file.read_bytes()
    if data.startswith(GZIP_BEGIN):
        data = gzip.decompress(data)
    first = data[:NUM_FIRST_BYTES]
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        max(first[::2].count(0), first[1::2].count(0)) > len(first) / 4
    ):
        raise ValueError("the file is UTF-16; save it as CSV UTF-8")
    if 0 in first:
        raise ValueError("it is no text")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            byte = data[error.start : error.start + 1]
            shown = byte.decode("cp1252", errors="replace")
            raise ValueError(
                f"the file is not UTF-8 but Latin-1, Windows-1252 or the like (line {line} has "
                f"the byte 0x{byte.hex()}, {shown} in Windows-1252); save it as CSV UTF-8"
            ) from None
    return data.removeprefix(b"\xef\xbb\xbf")


def _iterate_filled_rows(data: bytes) -> Iterator[_TextRow]:
    """Yield the header and the rows; neither empty lines nor Excel's ``sep=,``."""
    csv.field_size_limit(2**31 - 1)
    text, end, before = "", 0, 0

    def read_lines() -> Iterator[str]:
        nonlocal text, end
        for line in io.TextIOWrapper(io.BytesIO(data), "utf-8", newline=""):
            text += line
            end += len(line.encode())
            yield line

    width: int | None = None
    reader = csv.reader(read_lines())
    for cells in reader:
        row = _TextRow(cells, before + 1, reader.line_num, end, text)
        text, before = "", reader.line_num
        is_blank = not cells or (len(cells) == 1 != width and not clean_text(cells[0]))
        if is_blank or (width is None and row.text.strip() in {"sep=,", '"sep=,"'}):
            continue
        width = len(cells) if width is None else width
        yield row


def _check_separator(first_rows: Sequence[_TextRow]) -> None:
    """Raise ValueError for another column separator, as spreadsheets in many countries use."""
    line = SEPARATOR_LINE.fullmatch(first_rows[0].text.strip("\r\n"))
    for row in first_rows[:1] if line else first_rows:
        counts = {
            sign: len(next(csv.reader(row.text.splitlines(keepends=True), delimiter=sign), []))
            for sign in FOREIGN_SEPARATORS
        }
        sign = line[1] if line else max(counts, key=lambda sign: counts[sign])
        if line or counts[sign] > len(row.cells):
            raise ValueError(
                "its columns must be separated by commas, got "
                f"{FOREIGN_SEPARATORS.get(sign, repr(sign))} in the header (numbers need a decimal "
                "point)"
            )
        if len(row.cells) > 1:
            return


def _parse(data: bytes, header: _TextRow, width: int) -> Any:
    """Return the cells below the header, as text; the columns are called 0, 1, ..."""
    names = [str(i) for i in range(width)]
    body = pa.BufferReader(pa.py_buffer(data).slice(header.end))
    try:
        return arrow_csv.read_csv(
            body,
            # One thread, so that the rows stay in one piece.
            read_options=arrow_csv.ReadOptions(
                use_threads=False,
                column_names=names,
                block_size=min(len(data) - header.end + 1, 2**31 - 1),
            ),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return _parse_ragged(data, header, width)


def _parse_ragged(data: bytes, header: _TextRow, width: int) -> Any:
    """Return the cells of rows that have only empty cells too many, or too few of those.

    Spreadsheets write trailing commas in some rows only.
    """
    num_named = max((i + 1 for i, name in enumerate(header.cells) if clean_text(name)), default=0)
    rows: list[list[str]] = []
    for row in islice(_iterate_filled_rows(data), 1, None):
        cells = row.cells
        if len(cells) < num_named or any(map(clean_text, cells[width:])):
            runs_on = (
                f" (a cell runs on to line {row.last_line}: is a quote missing?)"
                if row.last_line > row.line
                else ""
            )
            raise ValueError(
                f"line {row.line} has {len(cells)} cells, its header has {width}{runs_on}: "
                f"{shorten(row.text)}"
            )
        rows.append((cells + [""] * width)[:width])
    columns = [pa.array([row[i] or None for row in rows], pa.string()) for i in range(width)]
    return pa.table(columns, [str(i) for i in range(width)])
