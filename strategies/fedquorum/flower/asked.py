"""Collect the inputs with which a training round starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from ..composition import Rules
from ..hooks import Model, StartModels
from ..privacy import Protection, check_model
from ..round import NO_OBJECTIVE
from ..scratch import check_space
from ..server_state import ServerState
from ..summation import Bins
from ..types import Call, Objective, Proportions
from .codec import NamedArrays, ToldStarts, TrainRequest, encode_arrays
from .communication import Communication
from .exchange import Connection
from .server_memory import Memory


@dataclass(frozen=True)
class Asked:
    """The inputs of the round in progress.

    With ``proportions`` updates are added up as they come, and with ``nodes_sum`` by the nodes.
    ``starts`` are the models that clients train from, where that is not ``model``.
    """

    server_round: int
    call: Call
    model: NamedArrays
    asked_at: Mapping[int, tuple[int, ...]]
    proportions: Proportions | None
    nodes_sum: bool
    protection: Protection | None = None
    starts: StartModels | None = None

    def start_of(self, client: int) -> Model:
        """Return the model that a client trains from."""
        return self.model if self.starts is None else self.starts.of(client)

    @property
    def bins(self) -> Bins:
        """The bins to which updates are rounded if they are added as they arrive."""
        return Bins.of(len(self.call.clients))

    def next_norm(self, votes: Sequence[bool]) -> float | None:
        """Return the clipping norm of the next round, None where updates are not clipped."""
        if self.protection is None:
            return None
        return self.protection.next_norm(votes, len(self.call.clients))


def protection_of(
    connection: Connection, rules: Rules, norm: float | None, model: NamedArrays
) -> Protection | None:
    """Return the protection of a private round; None without privacy.

    Parameters
    ----------
    connection : Connection
        How the strategy speaks, and with which clients.
    rules : Rules
        The strategy's rules, which bound what one update counts.
    norm : float, optional
        The clipping norm after the round before, None in the first round.
    model : dict of array
        The model of the round.

    Raises
    ------
    ParameterError
        If the model has whole numbers.
    """
    privacy = connection.communication.privacy
    if privacy is None:
        return None
    check_model(model)
    return privacy.at(norm, rules.largest_weight(len(connection.population.clients)))


def summing(
    rules: Rules, communication: Communication, weighting: Any, call: Call
) -> Proportions | None:
    """Return the proportions by which arriving updates are added; None if all are needed."""
    # A bound on a weight, or who is in time, is known only when all replies are there.
    bounded = communication.robustness.max_weight is not None or communication.privacy is not None
    if bounded or communication.virtual_clock or communication.reads_replies:
        return None
    return rules.proportions(weighting, call)


def nodes_sum(communication: Communication, proportions: Proportions | None) -> bool:
    """Return whether nodes may add up their clients' updates: not where each is clipped."""
    sums = communication.partial_aggregation and communication.follows_protocol
    return sums and proportions is not None and not communication.robustness.bounds


def begun(
    server_round: int,
    call: Call,
    model: NamedArrays,
    grid: Grid,
    connection: Connection,
    *,
    state: ServerState,
    memory: Memory,
) -> Asked:
    """Return the inputs of a new round.

    Parameters
    ----------
    server_round, call, model : int, Call, NamedArrays
        As of ``Asked``.
    grid : Grid
        To the nodes, which may still have a message of an earlier round.
    connection, state, memory : Connection, ServerState, Memory
        Those of the strategy.

    Raises
    ------
    RunError
        If the round needs more memory or disk than there is, with the figures.
    ParameterError
        If the model cannot be made private.
    """
    communication, population = connection.communication, connection.population
    rules = memory.rules
    memory.check(model, population)
    starts = memory.starts(state.rounds.weighting, model, population)
    asked_at = connection.exchange.reach(grid, call.clients, state.clock.busy)
    known = summing(rules, communication, state.rounds.weighting, call)
    if known is None and not call.keeps_model:
        check_space(communication.reply_memory, len(call.clients), model)
    sums = nodes_sum(communication, known)
    protection = protection_of(connection, rules, state.clipping_norm, model)
    return Asked(server_round, call, model, asked_at, known, sums, protection, starts)


def train_requests(
    asked: Asked, objective: Objective | None, priority: frozenset[int]
) -> dict[int, TrainRequest]:
    """Return each node's request; in private runs it lacks F, which is exact."""
    protection, starts = asked.protection, asked.starts
    records = {} if starts is None else _start_records(starts, asked.call.clients)
    return {
        node: TrainRequest(
            asked.server_round,
            replace(asked.call, clients=clients),
            tuple(k in priority for k in clients),
            NO_OBJECTIVE if objective is None or protection is not None else objective,
            asked.proportions if asked.nodes_sum else None,
            terms=len(asked.call.clients),
            clipping_norm=None if protection is None else protection.told_norm,
            starts=None if starts is None else _told_starts(starts, clients, records),
        )
        for node, clients in asked.asked_at.items()
    }


def _start_records(starts: StartModels, clients: Iterable[int]) -> dict[int, ArrayRecord]:
    """Return the models that these clients start from, each once, as messages have them."""
    numbers = sorted({starts.number_of[client] for client in clients})
    return {number: encode_arrays(dict(starts.models[number])) for number in numbers}


def _told_starts(
    starts: StartModels, clients: Sequence[int], records: Mapping[int, ArrayRecord]
) -> ToldStarts:
    """Return the start models for a node's clients, each distinct model once."""
    distinct = sorted({starts.number_of[client] for client in clients})
    places = tuple(distinct.index(starts.number_of[client]) for client in clients)
    return ToldStarts(tuple(records[number] for number in distinct), places)
