"""Rounds in which late updates count: ask who sets out, close the round, and train who arrives.

Under a virtual clock a client's response time is known when it is asked, so it trains in the round
in which its update arrives: from the model that it was sent, and with the random numbers of the
round in which it was asked. Between rounds the server keeps these models, each once, and who is
under way, but no updates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..errors import StateError
from ..rules.decisions import LateReply
from ..rules.hooks import Model
from ..rules.round import ClientOutcome
from ..rules.staleness import LateUpdates
from ..rules.types import Population, RoundPlan
from ..server.aggregation import is_buffer
from ..server.model_store import ModelStore
from ..server.state import ServerState
from ..server.under_way import (
    UNDER_WAY_REASON,
    LateClosing,
    UnderWay,
    close_late_round,
    select_start_rounds,
)
from ..server.virtual_clock import NO_REPLY_REASON
from .codec import NamedArrays
from .protocol import NativeProtocol
from .session import NodeSession


@dataclass(frozen=True)
class SentModels:
    """The models that were sent to the clients whose updates arrive; see ``hooks.SentModels``.

    ``newest`` is the model of the round in which they arrive.
    """

    models: Mapping[int, Model]
    index_by_client: Mapping[int, int]
    newest: NamedArrays

    def get_model(self, client: int) -> Model:
        """Return the model that a client was sent."""
        return self.models[self.index_by_client[client]]

    def get_reference(self, client: int) -> Mapping[str, NDArray[Any]]:
        """Return w_(t - s) for trained arrays, and w_t for buffers.

        The update of a client is its model minus this one. Buffers, such as variances, step to a
        mean of the clients' values: the change since an older model could leave their range.
        """
        return self._references[self.index_by_client[client]]

    @cached_property
    def _references(self) -> Mapping[int, Mapping[str, NDArray[Any]]]:
        buffers = {name: array for name, array in self.newest.items() if is_buffer(name, array)}
        return {
            index: {name: buffers.get(name, sent[name]) for name in self.newest}
            for index, sent in self.models.items()
        }


@dataclass(frozen=True)
class LateRound:
    """A round in which late updates count, once it is known who arrives in it.

    Parameters
    ----------
    server_round : int
    late : LateUpdates
    closing : LateClosing
        How the round ends.
    not_under_way : tuple of ClientOutcome
        The outcomes of clients that were asked and did not set out.
    """

    server_round: int
    late: LateUpdates
    closing: LateClosing
    not_under_way: tuple[ClientOutcome, ...]

    @cached_property
    def start_rounds(self) -> Mapping[int, int]:
        """The round in which each client was asked whose update arrives, ascending by client."""
        arrived = self.closing.arrived
        return dict(zip(arrived.client.tolist(), arrived.start_round.tolist(), strict=True))

    @property
    def late_replies(self) -> tuple[LateReply, ...]:
        """The replies to earlier rounds that arrived in this one."""
        replies = (
            LateReply(start, client, seconds)
            for group in (self.closing.arrived, self.closing.too_old)
            for client, start, seconds in _list_clients(group)
            if start < self.server_round
        )
        return tuple(sorted(replies, key=lambda reply: (reply.round, reply.client)))

    def complete_outcomes(self, arrived: Mapping[int, ClientOutcome]) -> tuple[ClientOutcome, ...]:
        """Return all outcomes of the round, ascending by client, given those of who arrived."""
        closing, number, limit = self.closing, self.server_round, self.late.max_staleness
        outcomes = [*self.not_under_way]
        for client, start, seconds in _list_clients(closing.arrived):
            outcomes.append(replace(arrived[client], seconds=seconds, start_round=start))
        for client, start, seconds in _list_clients(closing.expired):
            outcomes.append(_build_outcome(client, "failed", NO_REPLY_REASON, start, seconds))
        for client, start, seconds in _list_clients(closing.too_old):
            reason = f"its model is {number - start} rounds old, and max_staleness is {limit}"
            outcomes.append(_build_outcome(client, "rejected", reason, start, seconds))
        new = closing.under_way.select(closing.under_way.start_round == number)
        for client, start, seconds in _list_clients(new):
            outcomes.append(_build_outcome(client, "late", UNDER_WAY_REASON, start, seconds))
        return tuple(sorted(outcomes, key=lambda outcome: outcome.client))

    def select_models(self, store: ModelStore, model: NamedArrays) -> SentModels:
        """Return the models of the clients whose updates arrive.

        Raises
        ------
        StateError
            If the store lacks one.
        """
        models = {**store.models, self.server_round: model}
        needed = {*self.start_rounds.values()}
        if missing := sorted(needed - models.keys()):
            raise StateError(f"the models of rounds {missing}, which clients train from, are lost")
        return SentModels({i: models[i] for i in needed}, self.start_rounds, model)

    def update_store(self, store: ModelStore, model: NamedArrays) -> None:
        """Keep the models from which somebody still trains after the round.

        Raises
        ------
        RunError
            If there is no space for the round's model.
        """
        needed = select_start_rounds(
            self.closing.under_way, self.server_round + 1, self.late.max_staleness
        )
        store.keep(needed)
        if self.server_round in needed:
            store.add(self.server_round, model)


def _list_clients(group: UnderWay) -> list[tuple[int, int, float]]:
    """Return each client with the round in which it was asked, and its seconds."""
    columns = (group.client.tolist(), group.start_round.tolist(), group.seconds.tolist())
    return list(zip(*columns, strict=True))


def _build_outcome(
    client: int, status: str, reason: str, start: int, seconds: float
) -> ClientOutcome:
    return ClientOutcome(client, status, reason, seconds=seconds, start_round=start)


def open_late_round(
    session: NodeSession,
    grid: Grid,
    server_round: int,
    plan: RoundPlan,
    user_config: ConfigRecord,
    *,
    state: ServerState,
    population: Population,
) -> LateRound:
    """Ask the plan's clients who sets out, and close the round by the virtual clock."""
    communication: NativeProtocol = session.communication
    late, clock, before = communication.late_updates, state.clock, state.under_way
    assert late is not None, "late updates count only with settings that say how"
    seconds, others = session.ask_clients(
        grid, server_round, plan.clients, user_config, priority=population.priority
    )
    closing = close_late_round(
        before.add(server_round, clock.now, seconds),
        server_round,
        now=clock.now,
        num_required=count_required_replies(communication, plan.clients, before),
        grace_seconds=communication.quorum.grace_seconds,
        deadline=communication.round_timeout,
        max_staleness=late.max_staleness,
    )
    return LateRound(server_round, late, closing, tuple(others))


def count_required_replies(
    communication: NativeProtocol, asked: Sequence[int], under_way: UnderWay
) -> int:
    """Return K, of which a share is one of the concurrency: of all clients asked if it is None."""
    late = communication.late_updates
    given = None if late is None else late.concurrency
    return communication.quorum.compute_size(
        len(asked) + len(under_way) if given is None else given
    )
