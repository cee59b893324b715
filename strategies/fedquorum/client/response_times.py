"""How long a simulated client takes from a message to its reply, in simulated seconds.

A time depends on the seed, the client and the round alone: it is the same on every engine, and
whoever else is asked.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..parameters import NON_NEGATIVE, POSITIVE
from ..rule import check_parameters, parameter
from ..streams import stream
from .csv_table import CsvRow, CsvTable, WrongLineError

PURPOSE = "response-time"
COLUMNS = ("client", "seconds")


class ResponseTimes(Protocol):
    """How long each client takes."""

    def seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return r_k of a round, in simulated seconds, > 0.

        Parameters
        ----------
        seed : int
            The run's seed.
        client : int
            The client's id.
        server_round : int
            From 1.
        """


@dataclass(frozen=True)
class Lognormal:
    """r_k = median exp(between z_k + within z_kt), z_k and z_kt standard normal.

    z_k is drawn once for each client, z_kt in every round anew. Half of the clients are slower
    than ``median``; with ``between`` 1 one in 44 is more than 7 times as slow.

    Parameters
    ----------
    median : float
        Seconds of the client in the middle.
    between : float
        Standard deviation of the logarithm between clients.
    within : float
        Standard deviation of the logarithm between the rounds of one client.

    Raises
    ------
    ParameterError
        For a value outside its range.
    """

    median: float = parameter(10.0, POSITIVE)
    between: float = parameter(1.0, NON_NEGATIVE)
    within: float = parameter(0.25, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_parameters(self)

    def seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return r_k of a round."""
        of_client = stream(seed, PURPOSE, 0, client).standard_normal()
        of_round = stream(seed, PURPOSE, server_round, client).standard_normal()
        return float(self.median * math.exp(self.between * of_client + self.within * of_round))


@dataclass(frozen=True)
class TracedTimes:
    """Times from a file: that of the latest line of a client, or of its first before that.

    Parameters
    ----------
    times : mapping of int to sequence of (int, float)
        By client id its rounds and seconds, ascending by round.
    """

    times: Mapping[int, Sequence[tuple[int, float]]]

    def seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return r_k of a round; the seed changes nothing."""
        of_client = self.times[client]
        place = bisect_right(of_client, (server_round, math.inf))
        return of_client[max(place - 1, 0)][1]


def read_response_times(path: str, num_clients: int) -> TracedTimes:
    """Return the times in a CSV file.

    The file is UTF-8 with the columns ``client`` (id, from 0), ``seconds`` (> 0) and, where the
    times change, ``round`` (from 1): a line holds from its round to the next one of the client.
    Other columns are not read, blank lines are skipped.

    Parameters
    ----------
    path : str
        Where the file is; ``~`` is the user's home.
    num_clients : int
        Ids are below it; the file has each of them.

    Raises
    ------
    DataError
        If there is no such file, or it is not like that; with the number of the first line that
        is wrong.
    """
    columns = f"{', '.join(COLUMNS)}, and round where the times change"
    expected = f"response times must be a CSV file with the columns {columns}"
    table = CsvTable(path, expected)
    try:
        return TracedTimes(_read(table, num_clients))
    except (WrongLineError, OSError) as error:
        raise table.wrong(error) from None


def _read(table: CsvTable, num_clients: int) -> dict[int, list[tuple[int, float]]]:
    seen: dict[tuple[int, int], int] = {}
    times: dict[int, list[tuple[int, float]]] = {k: [] for k in range(num_clients)}
    line = 1
    for row in table.rows(COLUMNS, optional=("round",)):
        line, client, seconds = row.line, row.client(num_clients), _seconds(row)
        server_round = row.server_round() if "round" in row.cells else 1
        if (server_round, client) in seen:
            raise row.wrong(
                f"client {client} of round {server_round} is in line {seen[server_round, client]} "
                "already"
            )
        seen[server_round, client] = line
        times[client].append((server_round, seconds))
    missing = [client for client, of_client in times.items() if not of_client]
    if missing:
        raise WrongLineError(line, f"client {missing[0]} has no line")
    return {client: sorted(of_client) for client, of_client in times.items()}


def _seconds(row: CsvRow) -> float:
    given = row.cells["seconds"]
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise row.wrong(f"seconds must be a number above 0, got {given!r}")
    return seconds
