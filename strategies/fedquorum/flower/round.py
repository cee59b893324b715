"""One training round, from top to bottom: start, receive, close, apply.

``ComposedStrategy.configure_train`` starts a round. ``ComposedStrategy.aggregate_train`` receives
the updates, closes the round, lets the rules decide, and applies the decision.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from ..rules.composition import RuleSet
from ..rules.hooks import Model, StartModels
from ..rules.hooks import SentModels as SentModelsProtocol
from ..rules.robustness import clip_update
from ..rules.round import (
    NO_OBJECTIVE,
    NOT_FINITE,
    WEIGHT_EXCEEDS_BOUND,
    ClientOutcome,
    RoundDecision,
)
from ..rules.types import FloatArray, KnownWeights, Objective, Population, RoundPlan
from ..server.aggregation import apply_server_step, compute_inner_products, compute_update_norm
from ..server.exact_sum import (
    ExactAccumulator,
    ExponentBins,
    SumBins,
    compute_weighted_sum,
)
from ..server.fixed_bins import (
    OUTSIDE_PAIR_REASON,
    FixedBins,
    choose_fixed_bins,
    compute_update_sizes,
)
from ..server.privacy import RoundMechanism, check_model
from ..server.scratch import ReplyStore, check_space
from ..server.state import ServerState
from ..server.update_memory import UpdateMemory
from ..server.virtual_clock import Clock, RoundClosing, close_virtual_round
from .codec import (
    NamedArrays,
    NodeStartModels,
    Status,
    TrainRequest,
    TrainResult,
    encode_arrays,
)
from .late import LateRound, OpenRound, SentModels
from .masked_round import MaskedRound
from .protocol import NativeProtocol
from .secure.messages import MaskedVector
from .server_memory import ServerMemory
from .session import (
    NodeSession,
    NodeSum,
    ReplyResults,
    find_client_problem,
    reject_unusable_sum,
)
from .validation import NO_CLIP_INDICATOR

NO_SUM_REASON = "its node did not send the weighted sum that the server requires"
NO_MASK_REASON = "its node did not send the masked sum that the server requires"

ClientModel = tuple[int, float, Mapping[str, NDArray[Any]]]
"""A client, the weight of its update, and its model."""


@dataclass(frozen=True)
class RoundContext:
    """The inputs of the round in progress.

    Parameters
    ----------
    server_round : int
        The round, from 1.
    plan : RoundPlan
        The selected clients.
    model : dict of array
        w_t, from which the clients start.
    clients_by_node : mapping of int to tuple of int
        The clients that receive a message, by node.
    known_weights : KnownWeights, optional
        a_k as known before training. The server then adds up the updates as they arrive.
    nodes_aggregate : bool
        Whether nodes may add up the updates of their clients.
    requires_sums : bool
        Whether all nodes must do so.
    bins : SumBins
        The bins to which updates are rounded if they are added as they arrive.
    needs_files : bool
        Whether the updates together may exceed the memory for replies.
    mechanism : RoundMechanism, optional
        The mechanism of a private round.
    start_models : StartModels, optional
        The models from which the clients start instead of ``model``.
    late : LateRound, optional
        Who arrives in the round, if late updates count. By the real clock this is known when the
        round closes.
    open_late : OpenRound, optional
        Who is under way in the round, if late updates count by the real clock.
    sent_models : SentModels, optional
        The models that these clients were sent.
    masks : MaskedRound, optional
        The masks of the nodes' sums.
    """

    server_round: int
    plan: RoundPlan
    model: NamedArrays
    clients_by_node: Mapping[int, tuple[int, ...]]
    known_weights: KnownWeights | None
    nodes_aggregate: bool
    requires_sums: bool
    bins: SumBins
    needs_files: bool = False
    mechanism: RoundMechanism | None = None
    start_models: StartModels | None = None
    late: LateRound | None = None
    sent_models: SentModels | None = None
    open_late: OpenRound | None = None
    masks: MaskedRound | None = None

    def can_count(self, client: int) -> bool:
        """Say whether an update of a client is young enough to count, by the real clock."""
        assert self.sent_models is not None
        return client in self.sent_models.index_by_client

    def get_start(self, client: int) -> NamedArrays | Model:
        """Return the model to which a client's update is relative."""
        if self.sent_models is not None:
            return self.sent_models.get_reference(client)
        return self.model if self.start_models is None else self.start_models.get_model(client)


# --- start -----------------------------------------------------------------------------------


def start_round(
    server_round: int,
    plan: RoundPlan,
    model: NamedArrays,
    clients_by_node: Mapping[int, tuple[int, ...]],
    communication: NativeProtocol,
    *,
    rules: RuleSet,
    state: ServerState,
    memory: ServerMemory | None,
    population: Population,
    late: LateRound | None = None,
    sent_models: SentModels | None = None,
) -> RoundContext:
    """Return the inputs of a new round.

    Raises
    ------
    RunError
        If the round needs more memory or disk than available; the message has both figures.
    ParameterError
        If the model cannot be made private.
    """
    # What does not fit is refused here, before any client trains for nothing.
    start_models = None
    if memory is not None:
        memory.check_capacity(model, population)
        start_models = memory.get_start_models(state.round_state.weighting, model, population)
    # Known weights spare the server's memory: an update is added and dropped as it arrives.
    known_weights = get_streaming_weights(rules, communication, state.round_state.weighting, plan)
    needs_files = False
    if known_weights is None:
        count = len(plan.clients)
        if communication.late_updates is not None:
            count = count + len(state.under_way) if late is None else len(late.start_rounds)
        size = count * sum(array.nbytes for array in model.values())
        needs_files = size > communication.reply_memory_limit
        if needs_files:
            check_space(communication.reply_memory_limit, count, model)
    # The noise must cover the largest weight that one update can get under these rules.
    mechanism = None
    if communication.privacy is not None:
        check_model(model)
        max_weight = rules.compute_max_weight(len(population.clients))
        mechanism = communication.privacy.for_round(state.clipping_norm, max_weight)
    # A node cannot sum updates that the server must see one by one, to bound each. In a private
    # round the server relies on the clients' clipping only if it must not see single updates.
    nodes_aggregate = communication.needs_sums or (
        known_weights is not None
        and communication.partial_aggregation
        and communication.is_native
        and mechanism is None
        and not communication.robustness.has_bounds
    )
    bins: SumBins = ExponentBins.for_num_terms(len(plan.clients))
    if communication.has_fixed_bins:
        assert known_weights is not None, "rules without known weights have passed the check"
        bins = choose_round_bins(model, plan, known_weights, state, mechanism)
    return RoundContext(
        server_round,
        plan,
        model,
        clients_by_node,
        known_weights,
        nodes_aggregate,
        communication.needs_sums,
        bins,
        needs_files,
        mechanism,
        start_models,
        late,
        sent_models,
    )


def get_streaming_weights(
    rules: RuleSet, communication: NativeProtocol, weighting: Any, plan: RoundPlan
) -> KnownWeights | None:
    """Return the proportions by which arriving updates are added; None if all are needed."""
    # Bounded weights, deadlines and staleness are known only when all replies have arrived.
    bounded = communication.robustness.max_weight is not None
    timed = communication.virtual_clock or communication.late_updates is not None
    if bounded or timed or communication.needs_full_replies:
        return None
    return rules.compute_known_weights(weighting, plan)


def choose_round_bins(
    model: NamedArrays,
    plan: RoundPlan,
    known_weights: KnownWeights,
    state: ServerState,
    mechanism: RoundMechanism | None,
) -> FixedBins:
    """Return the bins of a round's sum, from the plan and from what the last round made public.

    In a private round they follow from the clipping norm alone: the sum before its noise is not
    public.
    """
    max_factor = find_max_factor(plan, known_weights, state)
    if mechanism is None:
        return choose_fixed_bins(model, len(plan.clients), max_factor, state.update_sizes)
    # Twice the norm, because rounding may lengthen an update that was clipped to a power of two.
    max_update = 2 * mechanism.norm
    return choose_fixed_bins(model, len(plan.clients), max_factor, {}, max_update)


def find_max_factor(plan: RoundPlan, known_weights: KnownWeights, state: ServerState) -> float:
    """Return the largest a_k of a round's clients.

    A client that has not reported its amount of data yet counts as the one with the most.
    """
    data = state.round_state.reports.num_examples
    largest = max(data.values(), default=1.0)
    factors = (known_weights.compute_numerator(k, data.get(k, largest)) for k in plan.clients)
    return max(factors, default=1.0)


def build_train_requests(
    context: RoundContext,
    objective: Objective | None,
    priority: frozenset[int],
    sent: Mapping[int, ArrayRecord],
) -> dict[int, TrainRequest]:
    """Return each node's request; in private runs it lacks F, which would reveal an exact value.

    ``sent`` are records of models that were sent, by round, which need not be encoded again.
    """
    mechanism, late = context.mechanism, context.late
    start_models: SentModelsProtocol | None = context.start_models
    if late is not None:
        start_models = context.sent_models
    records = (
        {}
        if start_models is None
        else _encode_start_models(
            start_models,
            chain.from_iterable(context.clients_by_node.values()),
            {} if context.sent_models is None else sent,
        )
    )
    return {
        node: TrainRequest(
            context.server_round,
            # With masks, no loss of a single client travels.
            replace(
                context.plan,
                clients=clients,
                requests_loss=context.plan.requests_loss and context.masks is None,
            ),
            tuple(k in priority for k in clients),
            NO_OBJECTIVE if objective is None or mechanism is not None else objective,
            context.known_weights if context.nodes_aggregate else None,
            num_terms=len(context.plan.clients),
            requires_sum=context.requires_sums,
            fixed_bins=context.bins if isinstance(context.bins, FixedBins) else None,
            clipping_norm=None if mechanism is None else mechanism.client_norm,
            start_models=None
            if start_models is None
            else _select_start_models(start_models, clients, records),
            start_rounds=None
            if late is None and context.masks is None
            else _list_start_rounds(context, clients),
            masking=None if context.masks is None else context.masks.requests[node],
        )
        for node, clients in context.clients_by_node.items()
    }


def _list_start_rounds(context: RoundContext, clients: Sequence[int]) -> tuple[int, ...]:
    """Return the rounds in which clients were asked if they take part."""
    if context.late is None:  # asked for keys in this round
        return (context.server_round,) * len(clients)
    return tuple(context.late.start_rounds[k] for k in clients)


def _encode_start_models(
    start_models: SentModelsProtocol, clients: Iterable[int], encoded: Mapping[int, ArrayRecord]
) -> dict[int, ArrayRecord]:
    """Return the distinct models from which these clients start, encoded for messages."""
    indices = sorted({start_models.index_by_client[client] for client in clients})
    return {
        index: encoded[index]
        if index in encoded
        else encode_arrays(dict(start_models.models[index]))
        for index in indices
    }


def _select_start_models(
    start_models: SentModelsProtocol, clients: Sequence[int], records: Mapping[int, ArrayRecord]
) -> NodeStartModels:
    """Return the start models for a node's clients, each distinct model once."""
    distinct = sorted({start_models.index_by_client[client] for client in clients})
    indices = tuple(distinct.index(start_models.index_by_client[client]) for client in clients)
    return NodeStartModels(tuple(records[index] for index in distinct), indices)


# --- receive ---------------------------------------------------------------------------------


def receive_updates(
    replies: Iterable[Message], context: RoundContext, session: NodeSession
) -> ReplyResults[TrainResult]:
    """Validate each update as it arrives, and add it up if the weights are known.

    An update that was added or is unusable is dropped, so that memory does not grow with the number
    of clients. If the weights need all replies, and these exceed the memory, a ``ReplyStore``
    holds the updates.
    """
    communication, known_weights = session.communication, context.known_weights
    results: ReplyResults[TrainResult] = ReplyResults()
    if known_weights is not None:
        results.total = ExactAccumulator(context.model, context.bins)
    needs_store = context.needs_files and not communication.needs_full_replies
    store = ReplyStore(communication.reply_memory_limit) if needs_store else None
    if context.masks is not None:
        results.outcomes |= context.masks.outcomes
    receiver = UpdateReceiver(context, session, results, store)
    arriving = session.read_train_replies(replies, context.server_round, context.model, results)
    for node, selected in arriving:
        receiver.receive(node, selected)
    session.bytes_up += results.num_bytes
    return results


@dataclass(frozen=True)
class UpdateReceiver:
    """Turn the results of a node into outcomes, and its updates into terms of the running sum."""

    context: RoundContext
    session: NodeSession
    results: ReplyResults[TrainResult]
    store: ReplyStore | None

    def receive(self, node: int, selected: Sequence[int]) -> None:
        """Add the outcomes of the clients that a node's reply is about."""
        results, context = self.results, self.context
        if context.open_late is not None and not all(map(context.can_count, selected)):
            results.drop_arrays(selected)  # they were sent one message, of one round
            return
        node_sum = results.node_sums.get(node)
        if node_sum is not None and context.masks is not None:
            self._receive_masked(node, node_sum, context.masks)
        elif node_sum is not None:
            # One unusable update spoils the sum of its node, so the sum is validated first.
            allowed = context.known_weights if context.nodes_aggregate else None
            reject_unusable_sum(
                node_sum,
                results,
                context.model,
                allowed,
                limits=self.session.limits,
                bins=context.bins,
                needs_clip_indicator=self._needs_clip_indicator,
            )
        summed = () if node_sum is None else node_sum.clients
        if context.requires_sums:
            self._reject_models(selected, summed)
        numerators = {
            client: self._receive_update(client, in_sum=client in summed)
            for client in selected
            if client in results.by_client
        }
        if node_sum is not None:
            sums = node_sum.updates
            counts = results.total is not None and any(map(numerators.get, summed))
            if results.total is not None and counts and not isinstance(sums, MaskedVector):
                results.total.merge(sums)
            results.node_sums[node] = replace(node_sum, updates={})

    @property
    def _needs_clip_indicator(self) -> bool:
        """Whether each client says if it clipped its update; with masks, nodes send the number."""
        mechanism, masks = self.context.mechanism, self.context.masks
        return mechanism is not None and mechanism.mechanism.needs_clip_indicator and masks is None

    def _receive_masked(self, node: int, node_sum: NodeSum, masks: MaskedRound) -> None:
        """Add a masked vector to those of the other nodes, unless one of its clients is unusable.

        Its node then counts as lost: nothing can be taken out of a masked vector.
        """
        problem = find_client_problem(
            node_sum,
            self.results,
            self.session.limits,
            needs_clip_indicator=False,
        )
        assert isinstance(node_sum.updates, MaskedVector)
        if problem is None and node_sum.clients:
            problem = masks.receive_vector(node, node_sum.updates)
        if problem is not None:
            self.results.malformed.update(dict.fromkeys(node_sum.clients, problem))

    def _reject_models(self, selected: Iterable[int], summed: Collection[int]) -> None:
        """Reject the clients that trained without being in a sum."""
        for client in selected:
            result = self.results.by_client.get(client)
            if result is not None and result.status is Status.DONE and client not in summed:
                reason = NO_SUM_REASON if self.context.masks is None else NO_MASK_REASON
                self.results.malformed.setdefault(client, reason)

    def _receive_update(self, client: int, *, in_sum: bool) -> float | None:
        """Validate a client's update and add a_k Delta_k; return a_k, None if nothing is added."""
        results, context = self.results, self.context
        outcome = self.session.get_client_outcome(
            client, results, None if in_sum else context.model
        )
        arrays = results.by_client[client].arrays if outcome.is_usable else None
        if arrays is not None:
            arrays = self._prepare_arrays(client, arrays)
        if context.mechanism is not None and outcome.is_usable:
            outcome, arrays = self._clip_privately(outcome, arrays, context.mechanism)
        numerator = None
        if results.total is not None and context.known_weights is not None and outcome.is_usable:
            data = outcome.num_examples or 0.0
            numerator = context.known_weights.compute_numerator(client, data)
            if arrays is not None and not results.total.can_add(numerator, arrays):
                reason = context.bins.too_large_reason
                outcome = ClientOutcome(client, "rejected", reason, seconds=outcome.seconds)
            elif arrays is not None and numerator != 0.0:
                results.total.add_model(numerator, arrays)
            arrays = None
        results.outcomes[client] = outcome
        if results.by_client[client].arrays is not arrays:
            results.by_client[client] = replace(results.by_client[client], arrays=arrays)
        return numerator

    def _prepare_arrays(
        self, client: int, arrays: Mapping[str, NDArray[Any]]
    ) -> Mapping[str, NDArray[Any]]:
        """Return an update's arrays in the order of the model's, clipped if the update is too long.

        If the round needs all updates, this one may go to a file: a usable update has the model's
        size.
        """
        robustness = self.session.communication.robustness
        has_order = [*arrays] == [*self.context.model]
        ordered = arrays if has_order else {name: arrays[name] for name in self.context.model}
        if self.store is not None:
            ordered = self.store.store(ordered)
        if robustness.clip_norm is None:
            return ordered
        clipped, note = robustness.clip(self.context.get_start(client), ordered)
        if note is not None:
            self.results.note(client, note)
        return clipped

    def _clip_privately(
        self,
        outcome: ClientOutcome,
        arrays: Mapping[str, NDArray[Any]] | None,
        mechanism: RoundMechanism,
    ) -> tuple[ClientOutcome, Mapping[str, NDArray[Any]] | None]:
        """Clip a usable update for differential privacy, and note if it needed no clipping.

        The update of a client in a sum was clipped on its node; it has no arrays. A client that
        lacks a required clip indicator has failed.
        """
        client, was_short = outcome.client, True
        if self._needs_clip_indicator:
            result = self.results.by_client[client]
            if not result.has_clip_indicator:
                seconds = outcome.seconds
                return ClientOutcome(client, "failed", NO_CLIP_INDICATOR, seconds=seconds), None
            was_short = result.norm_bit == 0
        if arrays is not None:
            arrays, norm = clip_update(self.context.model, arrays, mechanism.norm)
            if not mechanism.mechanism.needs_clip_indicator:
                was_short = norm <= mechanism.norm
        self.results.clip_indicators[client] = was_short
        return outcome, arrays


# --- close -----------------------------------------------------------------------------------


def close_round(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    session: NodeSession,
    state: ServerState,
    priority: frozenset[int],
) -> RoundClosing:
    """Return the outcome of every selected client, ascending, and late replies to earlier rounds.

    With a virtual clock, simulated time decides which replies are in time.
    """
    # Those that train in this round: the selected clients, or those that arrive.
    trained = context.plan.clients if context.late is None else context.late.start_rounds
    outcomes = []
    for client in sorted(trained):
        outcome = results.outcomes.get(client) or session.get_client_outcome(client, results, None)
        note = results.notes.get(client)
        outcomes.append(outcome if note is None else replace(outcome, note=note))
    if context.late is not None:
        return RoundClosing(
            Clock(context.late.closing.now),
            context.late.complete_outcomes({one.client: one for one in outcomes}),
            context.late.late_replies,
        )
    late = session.collect_late_replies(context.server_round)
    communication = session.communication
    if not communication.virtual_clock:
        return RoundClosing(state.clock, tuple(outcomes), late)
    return close_virtual_round(
        state.clock,
        context.server_round,
        outcomes,
        communication.quorum,
        priority=priority,
        deadline=communication.round_timeout,
    )


def compute_gram_matrix(
    outcomes: Sequence[ClientOutcome], results: ReplyResults[TrainResult], model: NamedArrays
) -> FloatArray:
    """Return the inner products of the usable updates, shape (n, n), ascending by client id."""
    usable = [outcome.client for outcome in outcomes if outcome.is_usable]
    return compute_inner_products(model, [results.by_client[k].arrays or {} for k in usable])


def list_clip_indicators(
    results: ReplyResults[TrainResult], outcomes: Iterable[ClientOutcome], *, has_masks: bool
) -> list[bool]:
    """Return whether each usable update of a private round needed no clipping.

    With masks only their number is known, and the order has no meaning; a round whose masks cannot
    be removed has none.
    """
    usable = [one for one in outcomes if one.is_usable]
    if has_masks:
        count = results.num_unclipped
        return [] if count is None else [i < count for i in range(len(usable))]
    return [results.clip_indicators[one.client] for one in usable]


# --- apply -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AppliedRound:
    """The model after a round, None if it is unchanged; the decision and the optimizer's state.

    ``update_sizes`` has the size of each array in the round's sum, if its bins were fixed and an
    update counted.
    """

    model: NamedArrays | None
    decision: RoundDecision
    optimizer_state: Any
    update_sizes: Mapping[str, float] | None = None


def apply_round(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    decision: RoundDecision,
    optimizer_state: Any,
    *,
    rules: RuleSet,
    memory: ServerMemory | None,
    population: Population,
) -> AppliedRound:
    """Apply the server's step and store the updates; a rejected round changes nothing.

    With differential privacy the model changes in every round, by noise alone if no update counts.
    """
    mechanism = context.mechanism
    if mechanism is not None and not mechanism.covers(decision.weight):
        decision = decision.reject(WEIGHT_EXCEEDS_BOUND)
    steps_anyway = mechanism is not None or (memory is not None and memory.steps_without_updates)
    if decision.report.is_empty and not steps_anyway:
        return AppliedRound(None, decision, optimizer_state)
    updates = None if memory is None else memory.get_update_memory(context.model, population)
    step = step_model(context, results, decision, rules, optimizer_state, memory=updates)
    if step.model is None:
        return AppliedRound(None, decision.reject(NOT_FINITE), optimizer_state)
    if updates is not None:
        updates.store_updates(
            context.model, step.client_models, _list_starts(context, step.client_models)
        )
    decision = replace(decision, report=replace(decision.report, update_norm=step.update_norm))
    return AppliedRound(step.model, decision, step.optimizer_state, step.update_sizes)


def get_update_sizes(
    applied: AppliedRound, outcomes: Iterable[ClientOutcome], before: Mapping[str, float]
) -> Mapping[str, float]:
    """Return the sizes for the bins of the next round, ``before`` if no update counted.

    After a round that left out a client because of its bins they are empty: the next bins are the
    widest, so that a model whose updates grow cannot leave out all clients for ever.
    """
    if any(outcome.reason == OUTSIDE_PAIR_REASON for outcome in outcomes):
        return {}
    return before if applied.update_sizes is None else applied.update_sizes


@dataclass(frozen=True)
class ServerStep:
    """The server's step; ``model`` is None if the new model would not be finite.

    ``update_norm`` is |sum_k c_k Delta_k|, if the rules report the norms of the updates.
    """

    model: NamedArrays | None
    optimizer_state: Any
    client_models: tuple[ClientModel, ...]
    update_norm: float | None = None
    update_sizes: Mapping[str, float] | None = None


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
    model, weights = context.model, decision.weight.tolist()
    models = tuple(
        (client, weight, results.by_client[client].arrays or {})
        for client, weight in zip(decision.clients, weights, strict=True)
        if weight != 0.0 and results.total is None
    )
    total_weight = math.fsum(weights)
    anchor: Mapping[str, FloatArray] | None = None
    update: Mapping[str, FloatArray]
    if context.start_models is not None and models:
        anchor, update = context.start_models.combine(model, *_attach_numerators(decision, models))
        total_weight = 1.0
    elif memory is not None:
        registered = len(decision.trace.updates.registered)
        update = memory.step(model, models, registered, _list_starts(context, models))
    elif decision.report.is_empty:
        update = {name: np.zeros(array.shape) for name, array in model.items()}
    else:
        update = _combine_updates(context, results, decision, models)
    reported = decision.trace.weights
    needs_norm = memory is None and reported is not None and reported.update_norm is not None
    norm = compute_update_norm(model, update) if needs_norm else None
    sizes = None
    if context.mechanism is not None:
        update, total_weight = context.mechanism.add_noise(update), 1.0
    elif context.bins.is_fixed:
        numerators, denominator = decision.numerators_and_denominator
        max_factor = float(numerators.max(initial=0.0))
        sizes = compute_update_sizes(update, denominator, max_factor) if max_factor else None
    optimizer = rules.get_optimizer_at(context.server_round - 1)
    state, stepped = apply_server_step(
        optimizer, optimizer_state, model, update, total_weight, anchor=anchor
    )
    return ServerStep(stepped, state, models, norm, sizes)


def _combine_updates(
    context: RoundContext,
    results: ReplyResults[TrainResult],
    decision: RoundDecision,
    models: Sequence[ClientModel],
) -> dict[str, FloatArray]:
    """Return sum_k a_k Delta_k / B over single updates and the sums of nodes."""
    if results.total is None or context.known_weights is None:
        singles, denominator = _attach_numerators(decision, models)
        starts = _list_starts(context, models)
        return compute_weighted_sum(
            context.model,
            [one[1:] for one in singles],
            denominator,
            starts=[starts[one[0]] for one in singles] if starts else None,
        )
    numerators, denominator = decision.numerators_and_denominator
    data = decision.trace.updates.num_examples.tolist()
    assert numerators.tolist() == [
        context.known_weights.compute_numerator(*one)
        for one in zip(decision.clients, data, strict=True)
    ], "updates were added by other weights than the decision's"
    return results.total.divide_by(denominator)


def _list_starts(
    context: RoundContext, models: Sequence[ClientModel]
) -> dict[int, Mapping[str, NDArray[Any]]]:
    """Return the models to which late updates are relative, by client; empty if none counts."""
    sent = context.sent_models
    if sent is None:
        return {}
    return {client: sent.get_reference(client) for client, _, _ in models}


def _attach_numerators(
    decision: RoundDecision, models: Sequence[ClientModel]
) -> tuple[list[ClientModel], float]:
    """Return each client's a_k with its model, and the denominator B."""
    numerators, denominator = decision.numerators_and_denominator
    numerator_of = dict(zip(decision.clients, numerators.tolist(), strict=True))
    return [(client, numerator_of[client], arrays) for client, _, arrays in models], denominator
