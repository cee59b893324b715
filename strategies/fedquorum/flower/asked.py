"""Collect the inputs with which a training round starts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from ..composition import RuleSet
from ..exact_sum import ExponentBins
from ..hooks import Model, StartModels
from ..privacy import RoundMechanism, check_model
from ..round import NO_OBJECTIVE
from ..scratch import check_space
from ..server_state import ServerState
from ..types import KnownWeights, Objective, RoundPlan
from .codec import NamedArrays, NodeStartModels, TrainRequest, encode_arrays
from .communication import NativeProtocol
from .exchange import Connection
from .server_memory import ServerMemory


@dataclass(frozen=True)
class RoundContext:
    """The inputs of the round in progress.

    With ``known_weights`` updates are added up as they come, and with ``nodes_aggregate`` by the nodes.
    ``start_models`` are the models that clients train from, where that is not ``model``.
    """

    server_round: int
    plan: RoundPlan
    model: NamedArrays
    clients_by_node: Mapping[int, tuple[int, ...]]
    known_weights: KnownWeights | None
    nodes_aggregate: bool
    round_mechanism: RoundMechanism | None = None
    start_models: StartModels | None = None

    def get_start_model(self, client: int) -> Model:
        """Return the model that a client trains from."""
        return self.model if self.start_models is None else self.start_models.get_model(client)

    @property
    def bins(self) -> ExponentBins:
        """The bins to which updates are rounded if they are added as they arrive."""
        return ExponentBins.for_num_terms(len(self.plan.clients))

    def compute_next_norm(self, clip_indicators: Sequence[bool]) -> float | None:
        """Return the clipping norm of the next round, None where updates are not clipped."""
        if self.round_mechanism is None:
            return None
        return self.round_mechanism.compute_next_norm(clip_indicators, len(self.plan.clients))


def build_round_mechanism(
    connection: Connection, rules: RuleSet, norm: float | None, model: NamedArrays
) -> RoundMechanism | None:
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
    return privacy.for_round(norm, rules.compute_max_weight(len(connection.population.clients)))


def get_streaming_weights(
    rules: RuleSet, communication: NativeProtocol, weighting: Any, plan: RoundPlan
) -> KnownWeights | None:
    """Return the proportions by which arriving updates are added; None if all are needed."""
    # A bound on a weight, or who is in time, is known only when all replies are there.
    bounded = communication.robustness.max_weight is not None or communication.privacy is not None
    if bounded or communication.virtual_clock or communication.needs_full_replies:
        return None
    return rules.compute_known_weights(weighting, plan)


def can_nodes_aggregate(communication: NativeProtocol, known_weights: KnownWeights | None) -> bool:
    """Return whether nodes may add up their clients' updates: not where each is clipped."""
    sums = communication.partial_aggregation and communication.is_native
    return sums and known_weights is not None and not communication.robustness.has_bounds


def start_round(
    server_round: int,
    plan: RoundPlan,
    model: NamedArrays,
    grid: Grid,
    connection: Connection,
    *,
    state: ServerState,
    memory: ServerMemory,
) -> RoundContext:
    """Return the inputs of a new round.

    Parameters
    ----------
    server_round, plan, model : int, Call, NamedArrays
        As of ``RoundContext``.
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
    memory.check_capacity(model, population)
    starts = memory.get_start_models(state.round_state.weighting, model, population)
    asked_at = connection.session.route_clients(grid, plan.clients, state.clock.busy_clients)
    known = get_streaming_weights(rules, communication, state.round_state.weighting, plan)
    if known is None and not plan.trains_local_model:
        check_space(communication.reply_memory, len(plan.clients), model)
    sums = can_nodes_aggregate(communication, known)
    protection = build_round_mechanism(connection, rules, state.clipping_norm, model)
    return RoundContext(server_round, plan, model, asked_at, known, sums, protection, starts)


def build_train_requests(
    context: RoundContext, objective: Objective | None, priority: frozenset[int]
) -> dict[int, TrainRequest]:
    """Return each node's request; in private runs it lacks F, which is exact."""
    protection, starts = context.round_mechanism, context.start_models
    records = {} if starts is None else _encode_start_models(starts, context.plan.clients)
    return {
        node: TrainRequest(
            context.server_round,
            replace(context.plan, clients=clients),
            tuple(k in priority for k in clients),
            NO_OBJECTIVE if objective is None or protection is not None else objective,
            context.known_weights if context.nodes_aggregate else None,
            num_terms=len(context.plan.clients),
            clipping_norm=None if protection is None else protection.client_norm,
            start_models=None if starts is None else _select_start_models(starts, clients, records),
        )
        for node, clients in context.clients_by_node.items()
    }


def _encode_start_models(
    start_models: StartModels, clients: Iterable[int]
) -> dict[int, ArrayRecord]:
    """Return the models that these clients start from, each once, as messages have them."""
    numbers = sorted({start_models.index_by_client[client] for client in clients})
    return {number: encode_arrays(dict(start_models.models[number])) for number in numbers}


def _select_start_models(
    start_models: StartModels, clients: Sequence[int], records: Mapping[int, ArrayRecord]
) -> NodeStartModels:
    """Return the start models for a node's clients, each distinct model once."""
    distinct = sorted({start_models.index_by_client[client] for client in clients})
    places = tuple(distinct.index(start_models.index_by_client[client]) for client in clients)
    return NodeStartModels(tuple(records[number] for number in distinct), places)
