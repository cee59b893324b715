"""Simulate response times: the seconds from a message to a client's reply.

A time depends only on the seed, the client and the round. It is the same on every engine, whichever
other clients are selected.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..rng import draw_normals
from ..rules.parameters import NON_NEGATIVE, POSITIVE
from ..rules.rule import check_parameters, parameter
from ..rules.types import FloatArray, IntArray
from .csv_reader import CsvLineError, CsvReader, CsvRow

LATENCY_STREAM = "response-time"
LATENCY_COLUMNS = ("client", "seconds")


class LatencyModel(Protocol):
    """The response times of all clients."""

    def get_seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round, in simulated seconds, > 0.

        Parameters
        ----------
        seed : int
            The run's seed.
        client : int
        server_round : int
            From 1.
        """

    def list_seconds(self, seed: int, clients: Sequence[int], server_round: int) -> list[float]:
        """Return the response times of several clients in a round."""

    @property
    def is_stationary(self) -> bool:
        """Whether a client's times have the same distribution in all rounds."""

    def make_sampler(
        self, seed: int, clients: IntArray
    ) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that draws times of these clients in one round, shape (n,).

        The clients are as slow as in the run with this seed, but the rounds are other ones.
        """


@dataclass(frozen=True)
class LognormalLatency:
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

    def get_seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round."""
        return self.list_seconds(seed, [client], server_round)[0]

    def list_seconds(self, seed: int, clients: Sequence[int], server_round: int) -> list[float]:
        """Return the response times of several clients in a round."""
        of_clients, of_round = _draw_effects(seed, clients, [server_round] * len(clients))
        return [
            float(self.median * math.exp(self.between * z_k + self.within * z_kt))
            for z_k, z_kt in zip(of_clients, of_round, strict=True)
        ]

    @property
    def is_stationary(self) -> bool:
        """True: rounds differ by chance alone."""
        return True

    def make_sampler(
        self, seed: int, clients: IntArray
    ) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that draws z_kt anew and keeps z_k."""
        of_client = np.array(_draw_effects(seed, clients.tolist())[0])

        def draw(rng: np.random.Generator) -> FloatArray:
            of_round = rng.standard_normal(len(of_client))
            return self.median * np.exp(self.between * of_client + self.within * of_round)

        return draw


_CLIENT_EFFECTS: dict[tuple[int, int], float] = {}


def _draw_effects(
    seed: int, clients: Sequence[int], rounds: Sequence[int] = ()
) -> tuple[list[float], list[float]]:
    """Return z_k of each client, and z_kt of each client's round if there are ``rounds``.

    z_k is drawn once for each client: a run asks the same clients again and again. All that are
    drawn are drawn together, because a call takes longer than a draw.
    """
    new = [k for k in clients if (seed, k) not in _CLIENT_EFFECTS]
    drawn = draw_normals(
        seed,
        LATENCY_STREAM,
        rounds=[*[0] * len(new), *rounds],
        clients=[*new, *clients[: len(rounds)]],
    ).tolist()
    _CLIENT_EFFECTS.update(zip([(seed, k) for k in new], drawn[: len(new)], strict=True))
    return [_CLIENT_EFFECTS[seed, k] for k in clients], drawn[len(new) :]


@dataclass(frozen=True)
class ScaledLatency:
    """The response times of another model, each multiplied by a factor of its client.

    Parameters
    ----------
    base : LatencyModel
    get_factor : callable
        Returns a client's factor, > 0.
    """

    base: LatencyModel
    get_factor: Callable[[int], float]

    def get_seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round."""
        return self.get_factor(client) * self.base.get_seconds(seed, client, server_round)

    def list_seconds(self, seed: int, clients: Sequence[int], server_round: int) -> list[float]:
        """Return the response times of several clients in a round."""
        times = self.base.list_seconds(seed, clients, server_round)
        return [self.get_factor(k) * time for k, time in zip(clients, times, strict=True)]

    @property
    def is_stationary(self) -> bool:
        """Whether the times of the other model are."""
        return self.base.is_stationary

    def make_sampler(
        self, seed: int, clients: IntArray
    ) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that scales the times of the other model."""
        sample = self.base.make_sampler(seed, clients)
        factors = np.array([self.get_factor(client) for client in clients.tolist()])
        return lambda rng: factors * sample(rng)


@dataclass(frozen=True)
class TraceLatency:
    """Response times from a file.

    A line holds from its round until the client's next line; a client's first line also holds for
    earlier rounds.

    Parameters
    ----------
    times : mapping of int to sequence of (int, float)
        Rounds and seconds by client id, ascending by round.
    """

    times: Mapping[int, Sequence[tuple[int, float]]]

    def get_seconds(self, seed: int, client: int, server_round: int) -> float:
        """Return the response time of a client in a round; the seed is unused."""
        of_client = self.times[client]
        index = bisect_right(of_client, (server_round, math.inf))
        return of_client[max(index - 1, 0)][1]

    def list_seconds(self, seed: int, clients: Sequence[int], server_round: int) -> list[float]:
        """Return the response times of several clients in a round."""
        return [self.get_seconds(seed, client, server_round) for client in clients]

    @property
    def is_stationary(self) -> bool:
        """Whether no client has a second line."""
        return all(len(of_client) == 1 for of_client in self.times.values())

    def make_sampler(
        self, seed: int, clients: IntArray
    ) -> Callable[[np.random.Generator], FloatArray]:
        """Return a function that gives each client's last time."""
        last = np.array([self.times[k][-1][1] for k in clients.tolist()])
        return lambda _: last


def read_response_times(path: str, num_clients: int) -> TraceLatency:
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
    columns = f"{', '.join(LATENCY_COLUMNS)}, and round where the times change"
    expected = f"response times must be a CSV file with the columns {columns}"
    table = CsvReader(path, expected)
    try:
        return TraceLatency(_read_times(table, num_clients))
    except (CsvLineError, OSError) as error:
        raise table.make_error(error) from None


def _read_times(table: CsvReader, num_clients: int) -> dict[int, list[tuple[int, float]]]:
    seen: dict[tuple[int, int], int] = {}
    times: dict[int, list[tuple[int, float]]] = {k: [] for k in range(num_clients)}
    line = 1
    for row in table.read_rows(LATENCY_COLUMNS, optional=("round",)):
        line, client, seconds = row.line, row.parse_client(num_clients), _parse_seconds(row)
        server_round = row.parse_round() if "round" in row.cells else 1
        if (server_round, client) in seen:
            raise row.make_error(
                f"client {client} of round {server_round} is in line {seen[server_round, client]} "
                "already"
            )
        seen[server_round, client] = line
        times[client].append((server_round, seconds))
    missing = [client for client, of_client in times.items() if not of_client]
    if missing:
        raise CsvLineError(line, f"client {missing[0]} has no line")
    return {client: sorted(of_client) for client, of_client in times.items()}


def _parse_seconds(row: CsvRow) -> float:
    given = row.cells["seconds"]
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise row.make_error(f"seconds must be a number above 0, got {given!r}")
    return seconds
