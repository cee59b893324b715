"""Collect the inputs of a training round before it starts."""

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

    With ``known_weights`` the server adds up updates as they arrive; with ``nodes_aggregate`` the
    nodes do. ``start_models`` is set if clients do not train from ``model``.
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
        """Return the model from which a client trains."""
        return self.model if self.start_models is None else self.start_models.get_model(client)

    @property
    def bins(self) -> ExponentBins:
        """The bins to which updates are rounded if they are added as they arrive."""
        return ExponentBins.for_num_terms(len(self.plan.clients))

    def compute_next_norm(self, clip_indicators: Sequence[bool]) -> float | None:
        """Return the clipping norm of the next round, None if updates are not clipped."""
        if self.round_mechanism is None:
            return None
        return self.round_mechanism.compute_next_norm(clip_indicators, len(self.plan.clients))


def build_round_mechanism(
    connection: Connection, rules: RuleSet, norm: float | None, model: NamedArrays
) -> RoundMechanism | None:
    """Return the mechanism of a private round; None without privacy.

    Parameters
    ----------
    connection : Connection
    rules : RuleSet
        The rules, which bound the weight of one update.
    norm : float, optional
        The clipping norm after the previous round, None in the first round.
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
    # Bounded weights and deadlines are known only when all replies have arrived.
    bounded = communication.robustness.max_weight is not None or communication.privacy is not None
    if bounded or communication.virtual_clock or communication.needs_full_replies:
        return None
    return rules.compute_known_weights(weighting, plan)


def can_nodes_aggregate(communication: NativeProtocol, known_weights: KnownWeights | None) -> bool:
    """Return whether nodes may add up their clients' updates; they may not if each is clipped."""
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

    Nodes that still have a message of an earlier round get none.

    Raises
    ------
    RunError
        If the round needs more memory or disk than available; the message has both figures.
    ParameterError
        If the model cannot be made private.
    """
    communication, population = connection.communication, connection.population
    rules = memory.rules
    memory.check_capacity(model, population)
    start_models = memory.get_start_models(state.round_state.weighting, model, population)
    clients_by_node = connection.session.route_clients(grid, plan.clients, state.clock.busy_clients)
    known_weights = get_streaming_weights(rules, communication, state.round_state.weighting, plan)
    if known_weights is None and not plan.trains_local_model:
        check_space(communication.reply_memory, len(plan.clients), model)
    nodes_aggregate = can_nodes_aggregate(communication, known_weights)
    mechanism = build_round_mechanism(connection, rules, state.clipping_norm, model)
    return RoundContext(
        server_round,
        plan,
        model,
        clients_by_node,
        known_weights,
        nodes_aggregate,
        mechanism,
        start_models,
    )


def build_train_requests(
    context: RoundContext, objective: Objective | None, priority: frozenset[int]
) -> dict[int, TrainRequest]:
    """Return each node's request; in private runs it lacks F, which would reveal an exact value."""
    mechanism, start_models = context.round_mechanism, context.start_models
    records = (
        {} if start_models is None else _encode_start_models(start_models, context.plan.clients)
    )
    return {
        node: TrainRequest(
            context.server_round,
            replace(context.plan, clients=clients),
            tuple(k in priority for k in clients),
            NO_OBJECTIVE if objective is None or mechanism is not None else objective,
            context.known_weights if context.nodes_aggregate else None,
            num_terms=len(context.plan.clients),
            clipping_norm=None if mechanism is None else mechanism.client_norm,
            start_models=None
            if start_models is None
            else _select_start_models(start_models, clients, records),
        )
        for node, clients in context.clients_by_node.items()
    }


def _encode_start_models(
    start_models: StartModels, clients: Iterable[int]
) -> dict[int, ArrayRecord]:
    """Return the distinct models from which these clients start, encoded for messages."""
    indices = sorted({start_models.index_by_client[client] for client in clients})
    return {index: encode_arrays(dict(start_models.models[index])) for index in indices}


def _select_start_models(
    start_models: StartModels, clients: Sequence[int], records: Mapping[int, ArrayRecord]
) -> NodeStartModels:
    """Return the start models for a node's clients, each distinct model once."""
    distinct = sorted({start_models.index_by_client[client] for client in clients})
    indices = tuple(distinct.index(start_models.index_by_client[client]) for client in clients)
    return NodeStartModels(tuple(records[index] for index in distinct), indices)
