"""Read the availability of clients from a CSV file."""

from ..csv_reader import CsvLineError, CsvReader, CsvRow

TRACE_COLUMNS = ("round", "client", "available")
BOOLEAN_WORDS = {"1": True, "true": True, "0": False, "false": False}


def read_trace(path: str, num_clients: int) -> dict[int, frozenset[int]]:
    """Return the rounds in which each client is available, without clients that never are.

    The file is UTF-8 CSV with the columns ``round`` (from 1), ``client`` (id, from 0) and
    ``available`` (0, 1, true or false), in any order. Other columns and blank lines are ignored. A
    client is not available in a round that has no line for it.

    Parameters
    ----------
    path : str
        The file's path; ``~`` is the user's home.
    num_clients : int
        Number of clients; all ids are below it.

    Raises
    ------
    DataError
        If the file is missing or has another form; the message has the number of the first wrong
        line.
    """
    table = CsvReader(
        path, f"a trace must be a CSV file with the columns {', '.join(TRACE_COLUMNS)}"
    )
    try:
        return _read_rounds(table, num_clients)
    except (CsvLineError, OSError) as error:
        raise table.make_error(error) from None


def _read_rounds(table: CsvReader, num_clients: int) -> dict[int, frozenset[int]]:
    seen: dict[tuple[int, int], int] = {}
    rounds: dict[int, set[int]] = {}
    for row in table.read_rows(TRACE_COLUMNS):
        server_round, client = row.parse_round(), row.parse_client(num_clients)
        available = _parse_available(row)
        if (server_round, client) in seen:
            raise row.make_error(
                f"round {server_round}, client {client} is in line {seen[server_round, client]} "
                "already"
            )
        seen[server_round, client] = row.line
        if available:
            rounds.setdefault(client, set()).add(server_round)
    return {client: frozenset(of_client) for client, of_client in rounds.items()}


def _parse_available(row: CsvRow) -> bool:
    word = row.cells["available"]
    if word.lower() not in BOOLEAN_WORDS:
        raise row.make_error(f"available must be 0, 1, true or false, got {word!r}")
    return BOOLEAN_WORDS[word.lower()]
