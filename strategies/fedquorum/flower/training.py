"""Turn the replies of a training round into the rules' inputs, and into the next model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from ..aggregation import apply_server_step, compute_inner_products, compute_update_norm
from ..composition import RuleSet
from ..errors import ParameterError
from ..exact_sum import compute_weighted_sum
from ..privacy import RoundMechanism
from ..robustness import clip_update
from ..round import NOT_FINITE, WEIGHT_EXCEEDS_BOUND, ClientOutcome, RoundDecision, RoundOutcomes
from ..types import FloatArray, Population
from ..update_memory import UpdateMemory
from ..virtual_clock import Clock, RoundClosing, close_virtual_round
from .asked import RoundContext
from .codec import NORM_BIT, NamedArrays, TrainResult
from .communication import NativeProtocol
from .exchange import NodeSession
from .replies import ReplyResults
from .server_memory import ServerMemory


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
