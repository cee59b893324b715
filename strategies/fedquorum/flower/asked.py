"""What a round of training is started with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.serverapp import Grid

from ..composition import Rules
from ..privacy import Protection, check_model
from ..round import NO_OBJECTIVE
from ..server_state import ServerState
from ..summation import Grid as SumGrid
from ..types import Call, Objective, Proportions
from .codec import NamedArrays, TrainRequest
from .communication import Communication
from .exchange import Connection
from .reply_store import check_space
from .server_memory import Memory
from .start_models import StartModels


@dataclass(frozen=True)
class Asked:
    """What the round in progress was started with.

    With ``proportions`` updates are added up as they come, and with ``nodes_sum`` by the nodes.
    With ``class_alignment`` the round tells it of every update.
    ``starts`` are the models that clients train from, where that is not ``model``.
    """

    server_round: int
    call: Call
    model: NamedArrays
    asked_at: Mapping[int, tuple[int, ...]]
    proportions: Proportions | None
    nodes_sum: bool
    protection: Protection | None = None
    class_alignment: bool = False
    starts: StartModels | None = None

    def start_of(self, client: int) -> NamedArrays:
        """Return the model that a client trains from."""
        return self.model if self.starts is None else self.starts.of(client)

    @property
    def grid(self) -> SumGrid:
        """What the updates of a round are rounded to where they are added up as they come."""
        return SumGrid.of(len(self.call.clients))

    def next_norm(self, votes: Sequence[bool]) -> float | None:
        """Return the clipping norm of the next round, None where updates are not clipped."""
        if self.protection is None:
            return None
        return self.protection.next_norm(votes, len(self.call.clients))


def protection_of(
    connection: Connection, rules: Rules, norm: float | None, model: NamedArrays
) -> Protection | None:
    """Return what makes a round private, None where nothing does.

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
    """Return what updates may be added up by as they come, None if all are needed at once."""
    # A bound on a weight, or who is in time, is known only when all replies are there.
    bounded = communication.robustness.max_weight is not None or communication.privacy is not None
    if bounded or communication.virtual_clock or communication.reads_replies:
        return None
    if communication.class_alignment:
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
    """Return what a round is started with.

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
    aligned = communication.class_alignment and not call.keeps_model
    return Asked(server_round, call, model, asked_at, known, sums, protection, aligned, starts)


def train_requests(
    asked: Asked, objective: Objective | None, priority: frozenset[int]
) -> dict[int, TrainRequest]:
    """Return what each node is asked, by node; F, which is exact, is not told in private runs."""
    protection, starts = asked.protection, asked.starts
    records = {} if starts is None else starts.records(asked.call.clients)
    return {
        node: TrainRequest(
            asked.server_round,
            replace(asked.call, clients=clients),
            tuple(k in priority for k in clients),
            NO_OBJECTIVE if objective is None or protection is not None else objective,
            asked.proportions if asked.nodes_sum else None,
            terms=len(asked.call.clients),
            clipping_norm=None if protection is None else protection.told_norm,
            starts=None if starts is None else starts.told(clients, records),
        )
        for node, clients in asked.asked_at.items()
    }
