"""Collect the inputs of a training round before it starts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..errors import ParameterError
from ..rules.composition import RuleSet
from ..rules.decisions import ClientEvaluation, compute_priority_objective
from ..rules.hooks import Model, StartModels
from ..rules.robustness import clip_update
from ..rules.round import (
    NO_OBJECTIVE,
    NOT_FINITE,
    WEIGHT_EXCEEDS_BOUND,
    ClientOutcome,
    RoundDecision,
    RoundOutcomes,
)
from ..rules.types import FloatArray, KnownWeights, Objective, Population, RoundPlan
from ..server.aggregation import apply_server_step, compute_inner_products, compute_update_norm
from ..server.exact_sum import (
    UNSUMMABLE_REASON,
    ExactAccumulator,
    ExponentBins,
    compute_weighted_sum,
)
from ..server.privacy import RoundMechanism, check_model
from ..server.scratch import ReplyStore, check_space
from ..server.state import ServerState
from ..server.update_memory import UpdateMemory
from ..server.virtual_clock import Clock, RoundClosing, close_virtual_round
from .codec import (
    NORM_BIT,
    EvaluateResult,
    NamedArrays,
    NodeStartModels,
    TrainRequest,
    TrainResult,
    drop_arrays,
    encode_arrays,
)
from .protocol import NativeProtocol
from .server_memory import ServerMemory
from .session import (
    Connection,
    NodeSession,
    NodeSum,
    ReplyHandler,
    ReplyResults,
    reject_unusable_sum,
    select_usable_evaluations,
)
from .validation import MAX_LOSS


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


@dataclass
class UpdateReceiver(ReplyHandler[TrainResult]):
    """Validates the updates of a round as they arrive, and adds them up if the weights are known.

    An update that was added or is unusable is dropped, so that memory does not grow with the number
    of clients. If the weights need all replies, a ``ReplyStore`` holds the updates.
    """

    context: RoundContext
    session: NodeSession
    communication: NativeProtocol
    total: ExactAccumulator | None = field(init=False, default=None)
    _store: ReplyStore = field(init=False)

    def __post_init__(self) -> None:
        self._store = ReplyStore(self.communication.reply_memory)
        if self.context.known_weights is not None:
            self.total = ExactAccumulator(self.context.model, self.context.bins)

    def trim_reply(self, content: RecordDict) -> RecordDict:
        """Return a reply without its arrays, or the whole reply if the metrics need it."""
        return content if self.communication.needs_full_replies else drop_arrays(content)

    def handle(
        self, node: int, selected: Sequence[int], results: ReplyResults[TrainResult]
    ) -> None:
        """Validate a node's reply for its clients."""
        node_sum = results.node_sums.get(node)
        summed: tuple[int, ...] = ()
        if node_sum is not None:
            self._reject_unusable_sum(node_sum, results)
            summed = node_sum.clients
        replied = [client for client in selected if client in results.by_client]
        for client in replied:
            results.outcomes[client] = self._validate_update(
                client, results, in_sum=client in summed
            )
        if self.total is None or self.context.known_weights is None:
            _drop_arrays(
                node,
                [client for client in replied if not results.outcomes[client].is_usable],
                results,
            )
            return
        numerators = _compute_numerators(self.context.known_weights, replied, results)
        _add_updates(self.total, numerators, node_sum, results)
        _drop_arrays(node, replied, results)

    def _reject_unusable_sum(self, node_sum: NodeSum, results: ReplyResults[TrainResult]) -> None:
        known_weights = self.context.known_weights if self.context.nodes_aggregate else None
        limits = self.session.limits
        model, bins = self.context.model, self.context.bins
        reject_unusable_sum(node_sum, results, model, known_weights, limits=limits, bins=bins)

    def _validate_update(
        self, client: int, results: ReplyResults[TrainResult], *, in_sum: bool
    ) -> ClientOutcome:
        """Return a client's outcome, and store a usable update."""
        model = None if self.context.plan.trains_local_model or in_sum else self.context.model
        outcome = self.session.get_client_outcome(client, results, model)
        if not outcome.is_usable:
            return outcome
        self._store_update(client, results)
        if self._can_add(outcome, results.by_client[client]):
            return outcome
        return ClientOutcome(client, "rejected", UNSUMMABLE_REASON, seconds=outcome.seconds)

    def _store_update(self, client: int, results: ReplyResults[TrainResult]) -> None:
        """Sort an update's arrays by the model's, and clip the update if it is too long.

        If the round needs all updates, this one may go to a file: a usable update has the model's
        size.
        """
        result, model = results.by_client[client], self.context.get_start_model(client)
        if result.arrays is None:
            return
        ordered = {name: result.arrays[name] for name in model}
        if self.total is None and not self.communication.needs_full_replies:
            ordered = self._store.store(ordered)
        arrays, note = self.communication.robustness.clip(model, ordered)
        results.by_client[client] = replace(result, arrays=arrays)
        if note is not None:
            results.note(client, note)

    def _can_add(self, outcome: ClientOutcome, result: TrainResult) -> bool:
        """Return whether an update can be added to the running sum; True without such a sum."""
        if self.total is None or self.context.known_weights is None or result.arrays is None:
            return True
        numerator = self.context.known_weights.compute_numerator(
            outcome.client, outcome.num_examples or 0.0
        )
        return self.total.can_add(numerator, result.arrays)


def receive_updates(
    replies: Iterable[Message],
    context: RoundContext,
    session: NodeSession,
    communication: NativeProtocol,
) -> ReplyResults[TrainResult]:
    """Return the nodes' results of train messages, by client."""
    receiver = UpdateReceiver(context, session, communication)
    results = session.collect_train_results(
        replies, context.clients_by_node, context.server_round, context.model, receiver
    )
    results.total = receiver.total
    return results


def _compute_numerators(
    known_weights: KnownWeights, clients: Sequence[int], results: ReplyResults[TrainResult]
) -> dict[int, float]:
    """Return a_k of every client whose update is usable."""
    usable = [results.outcomes[client] for client in clients if results.outcomes[client].is_usable]
    return {
        outcome.client: known_weights.compute_numerator(outcome.client, outcome.num_examples or 0.0)
        for outcome in usable
    }


def _add_updates(
    total: ExactAccumulator,
    numerators: dict[int, float],
    node_sum: NodeSum | None,
    results: ReplyResults[TrainResult],
) -> None:
    """Add a node's usable updates, each on its own or as the sum that the node sent."""
    for client, numerator in numerators.items():
        arrays = results.by_client[client].arrays
        if arrays is not None and numerator != 0.0:
            total.add_model(numerator, arrays)
    if node_sum is not None and any(map(numerators.get, node_sum.clients)):
        total.merge(node_sum.updates)


def _drop_arrays(node: int, clients: Sequence[int], results: ReplyResults[TrainResult]) -> None:
    """Drop the arrays of a node's reply, but remember which updates it summed."""
    for client in clients:
        results.by_client[client] = replace(results.by_client[client], arrays=None)
    if node in results.node_sums:
        results.node_sums[node] = replace(results.node_sums[node], updates={})


def close_round(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    session: NodeSession,
    communication: NativeProtocol,
    clock: Clock,
    *,
    priority: frozenset[int],
) -> RoundClosing:
    """Return the outcomes of the replies in time, and late replies to earlier rounds."""
    outcomes = build_client_outcomes(context, results, session)
    late = session.collect_late_replies(context.server_round)
    if not communication.virtual_clock:
        return RoundClosing(clock, outcomes, late)
    return close_virtual_round(
        clock,
        context.server_round,
        outcomes,
        communication.quorum,
        priority=priority,
        deadline=communication.round_timeout,
    )


def build_client_outcomes(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    session: NodeSession,
) -> tuple[ClientOutcome, ...]:
    """Return the outcome of every selected client, ascending by client id."""
    outcomes = []
    for client in sorted(context.plan.clients):
        outcome = results.outcomes.get(client) or session.get_client_outcome(client, results, None)
        note = results.notes.get(client)
        outcomes.append(outcome if note is None else replace(outcome, note=note))
    return tuple(outcomes)


@dataclass(frozen=True)
class ClippedOutcomes:
    """The outcomes of all selected clients, and whether each usable update needed no clipping."""

    outcomes: tuple[ClientOutcome, ...]
    clip_indicators: tuple[bool, ...] = ()


def clip_updates(
    outcomes: tuple[ClientOutcome, ...],
    results: ReplyResults[TrainResult],
    context: RoundContext,
) -> ClippedOutcomes:
    """Clip every usable update for differential privacy; each update has one clip indicator."""
    mechanism = context.round_mechanism
    if mechanism is None:
        return ClippedOutcomes(outcomes)
    validated = [_require_clip_indicator(outcome, results, mechanism) for outcome in outcomes]
    clip_indicators = []
    for outcome in validated:
        if not outcome.is_usable:
            continue
        result = results.by_client[outcome.client]
        arrays, norm = clip_update(context.model, result.arrays or {}, mechanism.norm)
        results.by_client[outcome.client] = replace(result, arrays=arrays)
        needs_indicator = mechanism.mechanism.needs_clip_indicator
        clip_indicators.append(result.norm_bit == 0 if needs_indicator else norm <= mechanism.norm)
    return ClippedOutcomes(tuple(validated), tuple(clip_indicators))


def _require_clip_indicator(
    outcome: ClientOutcome, results: ReplyResults[TrainResult], round_mechanism: RoundMechanism
) -> ClientOutcome:
    """Return the outcome, or a failed one if it lacks the required clip indicator."""
    needs_indicator = outcome.is_usable and round_mechanism.mechanism.needs_clip_indicator
    if not needs_indicator or results.by_client[outcome.client].norm_bit in {0, 1}:
        return outcome
    reason = f"{NORM_BIT} is missing: its update may not be clipped"
    return ClientOutcome(outcome.client, "failed", reason, seconds=outcome.seconds)


def build_round_outcomes(
    outcomes: tuple[ClientOutcome, ...],
    context: RoundContext,
    results: ReplyResults[TrainResult],
    session: NodeSession,
) -> RoundOutcomes:
    """Return the outcomes of a round in the form that the rules use."""
    usable = [outcome.client for outcome in outcomes if outcome.is_usable]
    return RoundOutcomes(
        outcomes,
        registered=session.registry.registered,
        gram=lambda: compute_inner_products(
            context.model, [results.by_client[k].arrays or {} for k in usable]
        ),
        unregistered=session.registry.unregistered,
    )


@dataclass(frozen=True)
class ServerStep:
    """The server's step; ``model`` is None if the new model would not be finite.

    ``update_norm`` is |sum_k c_k Delta_k|, if the rules report the norms of the updates.
    """

    model: NamedArrays | None
    optimizer_state: Any
    client_models: tuple[tuple[int, float, Mapping[str, NDArray[Any]]], ...]
    update_norm: float | None = None


def step_model(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    decision: RoundDecision,
    rules: RuleSet,
    optimizer_state: Any,
    *,
    memory: UpdateMemory | None,
) -> ServerStep:
    """Combine the updates by their weights and step the model; the memory stays unchanged.

    In a private round the combined update gets noise, and buffers are stepped by the whole update:
    dividing by the total weight would reveal the number of participants.

    Parameters
    ----------
    context : RoundContext
    results : ReplyResults
        The updates, as single ones and as sums.
    decision : RoundDecision
        The weight of each update.
    rules : RuleSet
    optimizer_state : Any
        The server optimizer's state.
    memory : UpdateMemory, optional
        The clients' last updates.
    """
    weight_of = dict(zip(decision.clients, decision.weight.tolist(), strict=True))
    models = tuple(
        (client, weight, results.by_client[client].arrays or {})
        for client, weight in weight_of.items()
        if weight != 0.0 and results.total is None
    )
    anchor: Mapping[str, FloatArray] | None = None
    update: Mapping[str, FloatArray]
    if context.start_models is not None and models:
        anchor, update = context.start_models.combine(
            context.model, *_attach_numerators(decision, models)
        )
    elif memory is None and not decision.report.is_empty:
        update = _combine_updates(context, results, decision, models)
    elif memory is None:
        update = {name: np.zeros(array.shape) for name, array in context.model.items()}
    else:
        update = memory.step(context.model, models, len(decision.trace.updates.registered))
    total = math.fsum(decision.weight.tolist())
    weights = decision.trace.weights
    needs_norm = memory is None and weights is not None and weights.update_norm is not None
    norm = compute_update_norm(context.model, update) if needs_norm else None
    if anchor is not None:
        total = 1.0
    if context.round_mechanism is not None:
        update, total = context.round_mechanism.add_noise(update), 1.0
    optimizer = rules.get_optimizer_at(context.server_round - 1)
    state, model = apply_server_step(
        optimizer, optimizer_state, context.model, update, total, anchor=anchor
    )
    return ServerStep(model, state, models, norm)


def _attach_numerators(
    decision: RoundDecision, models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]]
) -> tuple[list[tuple[int, float, Mapping[str, NDArray[Any]]]], float]:
    """Return each client's a_k with its model, and the denominator B."""
    numerators, denominator = decision.numerators_and_denominator
    numerator_of = dict(zip(decision.clients, numerators.tolist(), strict=True))
    return [(client, numerator_of[client], arrays) for client, _, arrays in models], denominator


@dataclass(frozen=True)
class AppliedRound:
    """The model after a round, None if it is unchanged; the decision and the optimizer's state."""

    model: NamedArrays | None
    decision: RoundDecision
    optimizer_state: Any


def apply_round(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    decision: RoundDecision,
    optimizer_state: Any,
    *,
    memory: ServerMemory,
    population: Population,
) -> AppliedRound:
    """Apply the server's step and store the updates; a rejected round changes nothing.

    With differential privacy the model changes in every round, by noise alone if no update counts.
    """
    mechanism = context.round_mechanism
    if mechanism is not None and not mechanism.covers(decision.weight):
        decision = decision.reject(WEIGHT_EXCEEDS_BOUND)
    if decision.report.is_empty and not memory.steps_without_updates and mechanism is None:
        if context.plan.clients and not context.plan.trains_local_model:
            log(
                WARNING,
                "Round %d: no update counted, the model stays the same",
                context.server_round,
            )
        return AppliedRound(None, decision, optimizer_state)
    update_memory = memory.get_update_memory(context.model, population)
    step = step_model(
        context, results, decision, memory.rules, optimizer_state, memory=update_memory
    )
    if step.model is None:
        log(WARNING, "Round %d: %s and stays", context.server_round, NOT_FINITE)
        return AppliedRound(None, decision.reject(NOT_FINITE), optimizer_state)
    if update_memory is not None:
        update_memory.store_updates(context.model, step.client_models)
    decision = replace(decision, report=replace(decision.report, update_norm=step.update_norm))
    return AppliedRound(step.model, decision, step.optimizer_state)


def _combine_updates(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    decision: RoundDecision,
    models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]],
) -> dict[str, FloatArray]:
    """Return sum_k a_k Delta_k / B over single updates and the sums of nodes."""
    numerators, denominator = decision.numerators_and_denominator
    if results.total is None or context.known_weights is None:
        singles, _ = _attach_numerators(decision, models)
        return compute_weighted_sum(context.model, [one[1:] for one in singles], denominator)
    data = decision.trace.updates.num_examples.tolist()
    expected = [
        context.known_weights.compute_numerator(*one)
        for one in zip(decision.clients, data, strict=True)
    ]
    if expected != numerators.tolist():
        raise ParameterError(
            "proportions", "to the bit the factors that weigh returns", expected, repr(numerators)
        )
    return results.total.divide_by(denominator)


def build_client_evaluations(
    results: ReplyResults[EvaluateResult], population: Population, metric: str = "accuracy"
) -> tuple[ClientEvaluation, ...]:
    """Return the clients' evaluations; ``metric`` is the metric beside loss and accuracy."""
    usable = select_usable_evaluations(results, metric=metric)
    return tuple(_build_evaluation(k, result, population) for k, result in usable.items())


def update_objective(
    state: ServerState,
    selected: frozenset[int],
    evaluations: Sequence[ClientEvaluation],
    *,
    reuse_last: bool,
) -> ServerState:
    """Return the state with F over the selected priority clients, and the clients that missed it.

    With ``reuse_last``, a client's last evaluation is stored, and replaces one that it misses.
    """
    reported = [e for e in evaluations if e.client in selected]
    stored = state.last_evaluations
    objective = compute_priority_objective(reported, [stored[k] for k in selected & stored.keys()])
    counted = {*(e.client for e in reported if e.has_objective_loss), *objective.stale_clients}
    objective = replace(objective, missing_clients=tuple(sorted(selected - counted)))
    if reuse_last:
        newest = [
            e
            for e in evaluations
            if e.has_objective_loss and (e.client in selected or e.client in stored)
        ]
        stored = {**stored, **{e.client: e for e in newest}}
    return replace(state, objective=objective, last_evaluations=stored)


def _clamp_loss(loss: float) -> float:
    """Clamp losses above MAX_LOSS to infinity.

    Sums of such numbers could overflow.
    """
    return math.inf if loss > MAX_LOSS else loss


def _sanitize_metric(metric: float) -> float:
    """Return a metric, or NaN if it is so large that a mean could overflow."""
    return metric if abs(metric) <= MAX_LOSS else math.nan


def _build_evaluation(
    client: int, result: EvaluateResult, population: Population
) -> ClientEvaluation:
    return ClientEvaluation(
        client=client,
        priority_weight=population.get_priority_weight(client),
        num_examples=float(result.num_examples or math.nan),
        loss=_clamp_loss(result.loss),
        accuracy=result.accuracy,
        test_num_examples=result.test_num_examples,
        test_loss=_clamp_loss(result.test_loss),
        test_accuracy=result.test_accuracy,
        test_metric=_sanitize_metric(result.test_metric),
        validation_num_examples=result.validation_num_examples,
        validation_loss=_clamp_loss(result.validation_loss),
        validation_accuracy=result.validation_accuracy,
        validation_metric=_sanitize_metric(result.validation_metric),
        held_out=client in population.held_out,
    )
