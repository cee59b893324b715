"""Read CSV files strictly; every error names its line."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

from ..errors import DataError
from ..sanitize import abbreviate

MAX_DIGITS = 18  # a number of 18 digits fits into 64 bits


class CsvLineError(Exception):
    """A mistake in a line of a file, numbered from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


class CsvReader:
    """Read the lines of a UTF-8 CSV file by column; ignore other columns and blank lines.

    Parameters
    ----------
    path : str
        The file's path; ``~`` is the user's home.
    expected : str
        The beginning of the error messages, which describes the expected file.
    """

    def __init__(self, path: str, expected: str) -> None:
        self._file = Path(path).expanduser().resolve()
        self._expected = expected

    def make_error(self, error: CsvLineError | OSError) -> DataError:
        """Return the error to raise for a mistake in the file."""
        if isinstance(error, CsvLineError):
            problem = f"{self._file}, line {error.line}: {error}"
        else:
            problem = f"{self._file}: {error.strerror or error}"
        return DataError(f"{self._expected}, got {problem}")

    def read_rows(self, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator["CsvRow"]:
        """Yield the lines below the header.

        Raises
        ------
        OSError
            If the file cannot be read.
        CsvLineError
            If a column is missing or repeated, a line has another length, or there are no lines.
        """
        lines = self._read_lines()
        first, header = next(lines, (1, []))
        missing = any(header.count(name) != 1 for name in columns)
        if missing or any(header.count(name) > 1 for name in optional):
            needed, found = ", ".join(columns), abbreviate(header) or "none"
            raise CsvLineError(first, f"the header must have {needed}, each once, got {found}")
        names = [name for name in (*columns, *optional) if name in header]
        indices = {name: header.index(name) for name in names}
        empty = True
        for line, cells in lines:
            if len(cells) != len(header):
                raise CsvLineError(line, f"{len(cells)} cells, the header has {len(header)}")
            empty = False
            yield CsvRow(line, {name: cells[index] for name, index in indices.items()})
        if empty:
            raise CsvLineError(first, "there is nothing below the header")

    def _read_lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the cells of every line that is not blank."""
        content = self._file.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise CsvLineError(line, "it is not UTF-8") from None
        rows = csv.reader(StringIO(text, newline=""), strict=True)
        try:
            for row in rows:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield rows.line_num, cells
        except csv.Error as error:
            raise CsvLineError(rows.line_num, str(error)) from None


class CsvRow:
    """One line of a table: its number, from 1, and its cells by column."""

    def __init__(self, line: int, cells: dict[str, str]) -> None:
        self.line = line
        self.cells = cells

    def parse_round(self) -> int:
        """Return the round; raise CsvLineError unless it is a whole number >= 1."""
        server_round = _parse_digits(self.cells["round"])
        if server_round is None or server_round < 1:
            raise self.make_error(f"round must be a whole number >= 1, got {self.cells['round']!r}")
        return server_round

    def parse_client(self, num_clients: int) -> int:
        """Return the client; raise CsvLineError unless it is below ``num_clients``."""
        client = _parse_digits(self.cells["client"])
        if client is None or client >= num_clients:
            raise self.make_error(
                f"client must be a whole number from 0 to {num_clients - 1}, "
                f"got {self.cells['client']!r}"
            )
        return client

    def make_error(self, problem: str) -> CsvLineError:
        """Return the error to raise for a mistake in this line."""
        return CsvLineError(self.line, problem)


def _parse_digits(text: str) -> int | None:
    """Return a number that consists of digits, None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    return int(text) if is_number else None
