"""Who is available when, from a CSV file."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

from ...errors import DataError

COLUMNS = ("round", "client", "available")
WORDS = {"1": True, "true": True, "0": False, "false": False}


def read_trace(path: str, num_clients: int) -> dict[int, frozenset[int]]:
    """Return the rounds in which each client is available; a client without any is left out.

    The file is UTF-8 CSV with the columns ``round`` (from 1), ``client`` (id, from 0) and
    ``available`` (0, 1, true or false), in any order; others are not read, blank lines are
    skipped. A round and client that are in no line are not available.

    Parameters
    ----------
    path : str
        Where the file is; ``~`` is the user's home.
    num_clients : int
        Ids are below it.

    Raises
    ------
    DataError
        If there is no such file, or it is not like that; with the number of the first line that
        is wrong.
    """
    file = Path(path).expanduser().resolve()
    try:
        return _read(_lines(file), num_clients)
    except _WrongLineError as error:
        problem = f"{file}, line {error.line}: {error}"
    except OSError as error:
        problem = f"{file}: {error.strerror or error}"
    raise DataError(f"a trace must be a CSV file of {', '.join(COLUMNS)}, got {problem}")


class _WrongLineError(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of every line that is not blank."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _WrongLineError(line, "it is not UTF-8") from None
    rows = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            cells = [cell.strip() for cell in row]
            if any(cells):
                yield rows.line_num, cells
    except csv.Error as error:
        raise _WrongLineError(rows.line_num, str(error)) from None


def _read(lines: Iterator[tuple[int, list[str]]], num_clients: int) -> dict[int, frozenset[int]]:
    first, header = next(lines, (1, []))
    if any(header.count(name) != 1 for name in COLUMNS):
        raise _WrongLineError(
            first, f"the columns must include {', '.join(COLUMNS)}, each once, got {header}"
        )
    places = [header.index(name) for name in COLUMNS]
    seen: dict[tuple[int, int], int] = {}
    rounds: dict[int, set[int]] = {}
    for line, cells in lines:
        if len(cells) != len(header):
            raise _WrongLineError(line, f"{len(cells)} cells, the header has {len(header)}")
        server_round, client, available = _entry(line, [cells[i] for i in places], num_clients)
        if (server_round, client) in seen:
            raise _WrongLineError(
                line,
                f"round {server_round}, client {client} is in line {seen[server_round, client]} "
                "already",
            )
        seen[server_round, client] = line
        if available:
            rounds.setdefault(client, set()).add(server_round)
    if not seen:
        raise _WrongLineError(first, "there is nothing below the header")
    return {client: frozenset(of_client) for client, of_client in rounds.items()}


def _entry(line: int, cells: Sequence[str], num_clients: int) -> tuple[int, int, bool]:
    server_round, client = _whole(cells[0]), _whole(cells[1])
    if server_round is None or server_round < 1:
        raise _WrongLineError(line, f"round must be a whole number >= 1, got {cells[0]!r}")
    if client is None or client >= num_clients:
        raise _WrongLineError(
            line, f"client must be a whole number from 0 to {num_clients - 1}, got {cells[1]!r}"
        )
    if cells[2].lower() not in WORDS:
        raise _WrongLineError(line, f"available must be 0, 1, true or false, got {cells[2]!r}")
    return server_round, client, WORDS[cells[2].lower()]


def _whole(text: str) -> int | None:
    """Return a number written in digits alone, None for anything else."""
    longest = 18  # what fits into 64 bits
    return int(text) if text.isascii() and text.isdigit() and len(text) <= longest else None
