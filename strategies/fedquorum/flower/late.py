"""Rounds in which late updates count: who sets out, who arrives, and from which model each trains.

Under a virtual clock a client's response time is known when it is asked, so it trains in the round
in which its update arrives: from the model that it was sent, and with the random numbers of the
round in which it was asked. By the real clock it trains at once, and the round closes when enough
replies are there. Between rounds the server keeps these models, each once, and who is under way.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
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
    LOST_REASON,
    UNDER_WAY_REASON,
    LateClosing,
    UnderWay,
    close_late_round,
    select_start_rounds,
    sort_by_reply,
)
from ..server.virtual_clock import NO_REPLY_REASON
from .codec import NamedArrays, TrainResult
from .protocol import NativeProtocol
from .session import BUSY_REASON, NodeSession, ReplyResults


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
            outcomes.append(
                replace(arrived[client], seconds=_get_finite(seconds), start_round=start)
            )
        for client, start, seconds in _list_clients(closing.expired):
            outcomes.append(_build_outcome(client, "failed", NO_REPLY_REASON, start, seconds))
        for client, start, seconds in _list_clients(closing.lost):
            outcomes.append(_build_outcome(client, "failed", LOST_REASON, start, seconds))
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
        return _select_models(store, self.server_round, model, self.closing.arrived)

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
    return ClientOutcome(client, status, reason, seconds=_get_finite(seconds), start_round=start)


def _get_finite(seconds: float) -> float | None:
    """Return the seconds of a reply; None if nobody has seen it."""
    return seconds if math.isfinite(seconds) else None


@dataclass(frozen=True)
class OpenRound:
    """A round by the real clock in which late updates count, before it is known who arrives.

    Parameters
    ----------
    server_round : int
    late : LateUpdates
    under_way : UnderWay
        The clients with a message, of this round or of an earlier one.
    lost : UnderWay
        The clients whose messages were lost with an interrupted run.
    asked, blocked : tuple of int
        The clients that the round asks, and the other clients of nodes that train.
    """

    server_round: int
    late: LateUpdates
    under_way: UnderWay
    lost: UnderWay
    asked: tuple[int, ...]
    blocked: tuple[int, ...]

    def select_models(self, store: ModelStore, model: NamedArrays) -> SentModels:
        """Return the models of the clients whose updates may count in the round.

        Raises
        ------
        StateError
            If the store lacks one.
        """
        sent, limit = self.under_way, self.late.max_staleness
        if limit is not None:
            sent = sent.select(self.server_round - sent.start_round <= limit)
        return _select_models(store, self.server_round, model, sent)

    def close(self, session: NodeSession, results: ReplyResults[TrainResult]) -> LateRound:
        """Sort the clients under way by what the grid has seen of them."""
        seconds, expired = session.take_replied(results), session.take_expired()
        closing = sort_by_reply(
            self.under_way.merge(self.lost),
            self.server_round,
            seconds=seconds,
            expired=expired,
            lost=self.lost.client.tolist(),
            max_staleness=self.late.max_staleness,
        )
        sent = {*self.under_way.client.tolist()}
        missing = sorted({*self.asked} - sent)
        others = [session.get_client_outcome(k, results, None) for k in missing]
        others += [ClientOutcome(k, "busy", BUSY_REASON) for k in self.blocked]
        return LateRound(self.server_round, self.late, closing, tuple(others))


def open_by_real_clock(
    session: NodeSession,
    server_round: int,
    plan: RoundPlan,
    *,
    before: UnderWay,
    blocked: tuple[int, ...],
) -> OpenRound:
    """Return the round whose messages have just been built, and say how many replies close it."""
    communication: NativeProtocol = session.communication
    late = communication.late_updates
    assert late is not None, "late updates count only with settings that say how"
    start_rounds = session.start_rounds
    is_lost = ~np.isin(before.client, np.array([*start_rounds], dtype=np.int64))
    new = {k: math.inf for k, number in start_rounds.items() if number == server_round}
    session.count_replies_of(
        server_round,
        count_required_replies(communication, plan.clients, before),
        late.max_staleness,
    )
    return OpenRound(
        server_round,
        late,
        before.select(~is_lost).add(server_round, time.time(), new),
        before.select(is_lost),
        plan.clients,
        blocked,
    )


def _select_models(
    store: ModelStore, server_round: int, model: NamedArrays, sent: UnderWay
) -> SentModels:
    start_rounds = dict(zip(sent.client.tolist(), sent.start_round.tolist(), strict=True))
    models = {**store.models, server_round: model}
    needed = {*start_rounds.values()}
    if missing := sorted(needed - models.keys()):
        raise StateError(f"the models of rounds {missing}, which clients train from, are lost")
    return SentModels({i: models[i] for i in needed}, start_rounds, model)


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
