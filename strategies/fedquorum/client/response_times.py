"""Simulate response times: the seconds from a message to a client's reply.

A time depends only on the seed, the client and the round. It is the same on every engine, whichever
other clients are asked.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..parameters import NON_NEGATIVE, POSITIVE
from ..rule import check_parameters, parameter
from ..streams import stream
from ..types import FloatArray, IntArray
from .csv_table import CsvRow, CsvTable, WrongLineError

PURPOSE = "response-time"
COLUMNS = ("client", "seconds")


class ResponseTimes(Protocol):
    """The response times of all clients."""

    def seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round, in simulated seconds, > 0.

        Parameters
        ----------
        seed : int
            The run's seed.
        client : int
            The client's id.
        server_round : int
            From 1.
        """

    @property
    def steady(self) -> bool:
        """Whether a client's times have the same distribution in all rounds."""

    def ahead(self, seed: int, clients: IntArray) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that draws times of these clients in one round, shape (n,).

        They are the same clients, as slow as in the run with this seed, in other rounds.
        """


@dataclass(frozen=True)
class Lognormal:
    """Response times median exp(between z_k + within z_kt), z_k and z_kt standard normal.

    z_k is drawn once for each client, z_kt once for each client and round. Half of the clients are
    slower than ``median``. With ``between`` 1, one client in 44 is more than 7 times as slow.

    Parameters
    ----------
    median : float
        The median client's seconds.
    between : float
        Standard deviation of the logarithm between clients.
    within : float
        Standard deviation of the logarithm between the rounds of one client.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    median: float = parameter(10.0, POSITIVE)
    between: float = parameter(1.0, NON_NEGATIVE)
    within: float = parameter(0.25, NON_NEGATIVE)

    def __post_init__(self) -> None:
        check_parameters(self)

    def seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round."""
        of_client = self._of_client(seed, client)
        of_round = stream(seed, PURPOSE, server_round, client).standard_normal()
        return float(self.median * math.exp(self.between * of_client + self.within * of_round))

    @property
    def steady(self) -> bool:
        """True: rounds differ by chance alone."""
        return True

    def ahead(self, seed: int, clients: IntArray) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that draws z_kt anew and keeps z_k."""
        of_client = np.array([self._of_client(seed, k) for k in clients.tolist()])

        def draw(rng: np.random.Generator) -> FloatArray:
            of_round = rng.standard_normal(len(of_client))
            return self.median * np.exp(self.between * of_client + self.within * of_round)

        return draw

    def _of_client(self, seed: int, client: int) -> float:
        return stream(seed, PURPOSE, 0, client).standard_normal()


@dataclass(frozen=True)
class TracedTimes:
    """Response times from a file.

    A line holds from its round until the client's next line; a client's first line also holds for
    earlier rounds.

    Parameters
    ----------
    times : mapping of int to sequence of (int, float)
        Rounds and seconds by client id, ascending by round.
    """

    times: Mapping[int, Sequence[tuple[int, float]]]

    def seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round, whatever the seed."""
        of_client = self.times[client]
        place = bisect_right(of_client, (server_round, math.inf))
        return of_client[max(place - 1, 0)][1]

    @property
    def steady(self) -> bool:
        """Whether no client has a second line."""
        return all(len(of_client) == 1 for of_client in self.times.values())

    def ahead(self, seed: int, clients: IntArray) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that gives each client's last time."""
        last = np.array([self.times[k][-1][1] for k in clients.tolist()])
        return lambda _: last


def read_response_times(path: str, num_clients: int) -> TracedTimes:
    """Read response times from a CSV file.

    The file is UTF-8 with the columns ``client`` (id, from 0) and ``seconds`` (> 0). If the times
    change, it also has the column ``round`` (from 1): a line holds from its round until the
    client's next line. Other columns and blank lines are ignored.

    Parameters
    ----------
    path : str
        The file's path; ``~`` is the user's home.
    num_clients : int
        Number of clients; the file must have all ids below it.

    Raises
    ------
    DataError
        If the file is missing or has another form; the message has the number of the first wrong
        line.
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
