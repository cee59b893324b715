"""Decide one round, as a pure function of the plan, the outcomes and the state.

The strategy calls ``decide_round`` during a run, and the audit calls it again with the records. As
in the papers, it decides in this order: the admitted updates, the sum of a fixed denominator, and
the weight of each update.

Shapes: n is the number of usable updates, N the number of all clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import SolverError
from .composition import RuleSet
from .decisions import ClientDecision, DecisionTrace, RoundReport
from .equality import nan_equals_nan
from .regret import kl_divergence
from .robustness import Robustness
from .state_arrays import expand_state
from .types import (
    Admission,
    AggregationWeights,
    ClientReports,
    ClientUpdates,
    FloatArray,
    IntArray,
    Objective,
    PerClient,
    Population,
    RoundPlan,
)

NO_OBJECTIVE = Objective(math.nan, math.nan)
NOT_FINITE = "the model would not be finite"
NOT_SOLVED = "the weights were not found"
WEIGHT_EXCEEDS_BOUND = "an update would count for more than the noise is made for"

REJECTION_REASONS = (NOT_FINITE, NOT_SOLVED, WEIGHT_EXCEEDS_BOUND)
"""Reasons to reject a whole round."""


@nan_equals_nan
@dataclass(frozen=True)
class ClientOutcome:
    """The outcome of one selected client, before any rule uses it.

    ``status`` is one of ``decisions.STATUSES``; only a client that ``trained`` has numbers.
    ``note`` is a remark on its reply, and ``seconds`` the time that the reply took.
    """

    client: int
    status: str
    reason: str | None = None
    num_examples: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    note: str | None = None
    seconds: float | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the client's update reaches the rules."""
        return self.status == "trained"


@dataclass(frozen=True)
class RoundOutcomes:
    """The outcomes of all selected clients in a round.

    Parameters
    ----------
    outcomes : tuple of ClientOutcome
        The outcome of every selected client, ascending by client id.
    registered : IntArray
        The clients whose nodes have registered with the server so far, ascending.
    gram : callable, optional
        Computes <Delta_i, Delta_j> of the n usable updates, shape (n, n).
    unregistered : tuple of int
        The clients whose nodes have never registered.
    """

    outcomes: tuple[ClientOutcome, ...]
    registered: IntArray
    gram: Callable[[], FloatArray] | None = None
    unregistered: tuple[int, ...] = ()

    @property
    def usable_outcomes(self) -> tuple[ClientOutcome, ...]:
        """The outcomes whose updates reach the rules."""
        return tuple(outcome for outcome in self.outcomes if outcome.is_usable)


@dataclass(frozen=True)
class RoundState:
    """The state of the rules between rounds.

    ``weighting`` is the weighting's state. ``admitted_fractions`` is the fraction of each client's
    update that a gate last admitted, shape (N,); None without a gate.
    """

    weighting: Any
    admitted_fractions: FloatArray | None = None
    reports: ClientReports = field(default_factory=ClientReports)

    @classmethod
    def initial(cls, rules: RuleSet, population: Population) -> "RoundState":
        """Return the state before round 1, or an empty state for an empty population."""
        if not population.clients:
            return cls(None)
        rules.selection.check_population(population)
        return cls(rules.weighting.init(population))

    def with_clients(self, rules: RuleSet, before: Population, after: Population) -> "RoundState":
        """Return the state with the clients that joined, each in its initial state."""
        fresh = RoundState.initial(rules, after)
        count = len(before.clients)
        if count == 0:
            return fresh
        indices = np.searchsorted(after.sorted_clients, before.sorted_clients)
        fractions = self.admitted_fractions
        if fractions is not None:
            fractions = expand_state(fractions, after.priority_weights, count, indices)
        weighting = expand_state(self.weighting, fresh.weighting, count, indices)
        return replace(self, weighting=weighting, admitted_fractions=fractions)


@dataclass(frozen=True)
class RoundDecision:
    """The decisions of one round.

    Parameters
    ----------
    report : RoundReport
        Every decision with its inputs.
    trace : DecisionTrace
        The inputs and the result of the weighting.
    weight : FloatArray
        c_k of the n usable updates, after any bound on a single client's weight.
    next_state, previous_state : RoundState
        The state after the round, and the state before it.
    """

    report: RoundReport
    trace: DecisionTrace
    weight: FloatArray
    next_state: RoundState
    previous_state: RoundState

    @property
    def numerators_and_denominator(self) -> tuple[FloatArray, float]:
        """a_k, shape (n,), and B with c_k = a_k / B; c_k and 1 if a bound changed a weight."""
        weights = self.trace.weights
        if weights is None or not np.array_equal(self.weight, weights.weight):
            return self.weight, 1.0
        return weights.numerator, weights.denominator

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose updates reached the rules, ascending."""
        return tuple(self.trace.updates.client.tolist())

    def reject(self, reason: str, detail: str = "") -> "RoundDecision":
        """Return the round with all updates rejected and the state unchanged.

        Parameters
        ----------
        reason : str
            One of ``REJECTION_REASONS``.
        detail : str
            A detail for the decisions about the rejected updates.
        """
        full_reason = f"{reason}: {detail}" if detail else reason
        undecided = self.trace.weights is None

        def is_counted(decision: ClientDecision) -> bool:
            return decision.weight != 0.0 or (undecided and decision.status == "trained")

        decisions = tuple(
            replace(decision, status="rejected", reason=full_reason, weight=0.0)
            if is_counted(decision)
            else decision
            for decision in self.report.decisions
        )
        return replace(
            self,
            report=replace(self.report, decisions=decisions, rejection_reason=reason),
            weight=np.zeros_like(self.weight),
            next_state=self.previous_state,
        )


def decide_round(
    rules: RuleSet,
    population: Population,
    state: RoundState,
    *,
    server_round: int,
    plan: RoundPlan,
    objective: Objective | None,
    outcomes: RoundOutcomes,
    robustness: Robustness | None = None,
    compute_weights: bool = True,
) -> RoundDecision:
    """Decide one round.

    If a solver does not find the weights, the whole round is rejected.

    Parameters
    ----------
    rules : RuleSet
    population : Population
    state : RoundState
        The state after the previous round.
    server_round : int
        The round, from 1.
    plan : RoundPlan
    objective : Objective or None
        F(w_t), as broadcast; None computes it from the priority clients' outcomes.
    outcomes : RoundOutcomes
    robustness : Robustness, optional
        Bounds on the influence of one client.
    compute_weights : bool
        False if the updates that determine the weights are missing, as in a replay.

    Raises
    ------
    ValueError
        If the weighting raises it.
    """
    if objective is None:
        objective_clients = rules.selection.select_objective_clients(
            frozenset(a.client for a in outcomes.usable_outcomes)
        )
        reporting = [
            outcome for outcome in outcomes.usable_outcomes if outcome.client in objective_clients
        ]
        objective = compute_objective(population, reporting)
    reports = _update_reports(state.reports, outcomes.usable_outcomes)
    updates = _build_updates(population, outcomes, reports)
    admission = admit(rules, plan, objective, updates)
    fractions = _resolve_admitted_fractions(
        rules,
        population,
        plan,
        objective,
        updates,
        admitted_fraction=admission.fraction,
        before=state.admitted_fractions,
    )
    updates = _add_admitted_fractions(rules, population, plan, updates, fractions)
    next_state, weights, problem = state.weighting, None, None
    if compute_weights:
        try:
            next_state, weights = rules.weighting.weigh(
                state.weighting, plan, updates, admission.fraction
            )
        except SolverError as error:
            problem = str(error)
    bounds = robustness or Robustness()
    weight = (
        np.zeros_like(admission.fraction) if weights is None else bounds.cap_weights(weights.weight)
    )
    weighted = _WeightedUpdates(admission, weights, weight, bounds)
    decisions = _build_decisions(population, plan, outcomes, weighted)
    usable = set(updates.client.tolist())
    result = RoundDecision(
        report=_add_weights(
            RoundReport(
                server_round, plan, objective, decisions, None, unregistered=outcomes.unregistered
            ),
            weights,
            population,
            reports,
        ),
        trace=DecisionTrace(
            plan=plan,
            objective=objective,
            updates=updates,
            admitted_fraction=admission.fraction,
            admission_reasons=admission.reason,
            state=state.weighting,
            next_state=None if weights is None else next_state,
            weights=weights,
            denominator=rules.denominator,
            recorded_decisions=tuple(
                decision for decision in decisions if decision.client in usable
            ),
            weight_cap=bounds.max_weight,
        ),
        weight=weight,
        next_state=RoundState(next_state, fractions, reports),
        previous_state=state,
    )
    return result if problem is None else result.reject(NOT_SOLVED, problem)


def compute_objective(population: Population, usable: Sequence[ClientOutcome]) -> Objective:
    """Return F(w_t) over the finite losses of the priority clients' outcomes; NaN without any."""
    priority = [a for a in usable if a.client in population.priority]
    return Objective(
        loss=_compute_mean(population, [(a, _convert_to_float(a.loss)) for a in priority]),
        accuracy=_compute_mean(population, [(a, _convert_to_float(a.accuracy)) for a in priority]),
    )


def _compute_mean(population: Population, values: Sequence[tuple[ClientOutcome, float]]) -> float:
    """Return the mean of the finite values by lambda_k D_k, NaN without data."""
    weighted = [
        (population.get_priority_weight(a.client) * float(a.num_examples or 0), value)
        for a, value in values
        if math.isfinite(value)
    ]
    total = sum(data for data, _ in weighted)
    if total == 0:
        return math.nan
    return sum(data / total * value for data, value in weighted)


def admit(
    rules: RuleSet, plan: RoundPlan, objective: Objective, updates: ClientUpdates
) -> Admission:
    """Return the admitted fraction of each update.

    A gate admits nothing if no priority update arrived, since p_k is then undefined. Weights over a
    fixed population are the exception, because its data are known.
    """
    admission = rules.selection.admit(plan, objective, updates)
    fixed = rules.weighting.has_fixed_denominator
    if plan.epsilon is None or fixed or updates.priority.any():
        return admission
    n = len(updates.client)
    return Admission(np.zeros(n), ("no priority client's update arrived, so p_k is undefined",) * n)


def update_admitted_fractions(
    population: Population,
    plan: RoundPlan,
    objective: Objective,
    updates: ClientUpdates,
    *,
    admitted_fraction: FloatArray,
    before: FloatArray | None,
) -> FloatArray:
    """Return the fraction of each client's update that a gate last admitted, shape (N,).

    A client that trained gets the fraction admitted in this round. A client that declined gets its
    priority weight lambda_k. An absent client retains its value. All clients start with lambda_k
    (1 for priority clients, 0 for others), and return to it if the gate is closed. A round with an
    unknown F(w_t) changes nothing.
    """
    priority = population.priority_weights
    fractions = (priority if before is None or plan.epsilon == 0.0 else before).copy()
    unknown = np.isnan(objective.accuracy if plan.criterion == "accuracy" else objective.loss)
    if plan.epsilon == 0.0 or unknown:
        return fractions
    declined = np.searchsorted(population.sorted_clients, updates.declined)
    fractions[declined] = priority[declined]
    fractions[np.searchsorted(population.sorted_clients, updates.client)] = admitted_fraction
    return fractions


def _update_reports(before: ClientReports, usable: Sequence[ClientOutcome]) -> ClientReports:
    data = {a.client: float(a.num_examples or 0) for a in usable}
    losses = {a.client: a.loss for a in usable if a.loss is not None}
    return ClientReports(
        PerClient.from_mapping(before.num_examples).merge(data),
        PerClient.from_mapping(before.losses).merge(losses),
    )


def _build_updates(
    population: Population, outcomes: RoundOutcomes, reports: ClientReports
) -> ClientUpdates:
    usable = outcomes.usable_outcomes
    clients = [a.client for a in usable]
    declined = [a.client for a in outcomes.outcomes if a.status == "declined"]
    return ClientUpdates(
        client=np.array(clients, dtype=np.int64),
        priority_weight=np.array(
            [population.get_priority_weight(k) for k in clients], dtype=np.float64
        ),
        num_examples=np.array([a.num_examples for a in usable], dtype=np.float64),
        loss=np.array([_convert_to_float(a.loss) for a in usable], dtype=np.float64),
        accuracy=np.array([_convert_to_float(a.accuracy) for a in usable], dtype=np.float64),
        registered=outcomes.registered,
        gram=outcomes.gram,
        declined=np.array(declined, dtype=np.int64),
        reported_examples=reports.num_examples,
    )


def _resolve_admitted_fractions(
    rules: RuleSet,
    population: Population,
    plan: RoundPlan,
    objective: Objective,
    updates: ClientUpdates,
    *,
    admitted_fraction: FloatArray,
    before: FloatArray | None,
) -> FloatArray | None:
    """Return the fraction last admitted of every client, unchanged if no weight depends on it."""
    if not rules.weighting.has_fixed_denominator or plan.epsilon is None:
        return before
    return update_admitted_fractions(
        population, plan, objective, updates, admitted_fraction=admitted_fraction, before=before
    )


def _add_admitted_fractions(
    rules: RuleSet,
    population: Population,
    plan: RoundPlan,
    updates: ClientUpdates,
    admitted_fractions: FloatArray | None,
) -> ClientUpdates:
    """Return the updates with the fractions of the registered clients for a fixed denominator."""
    if not rules.weighting.has_fixed_denominator or (
        plan.epsilon is None and plan.eligible is None
    ):
        return updates
    fractions = population.priority_weights if plan.epsilon is None else admitted_fractions
    indices = np.searchsorted(population.sorted_clients, updates.registered)
    return replace(updates, admitted_fractions=None if fractions is None else fractions[indices])


@dataclass(frozen=True)
class _WeightedUpdates:
    """The weight of each usable update, and the reason."""

    admission: Admission
    weights: AggregationWeights | None
    weight: FloatArray
    robustness: Robustness

    def apply_to(
        self, decision: ClientDecision, outcome: ClientOutcome, index: int
    ) -> ClientDecision:
        """Return the decision completed by the admission and weight of the client's update."""
        fraction, weights = self.admission.fraction[index], self.weights
        reason = None if weights is None else weights.reason.get(outcome.client)
        note = _join_notes(
            outcome.note, reason, self.robustness.describe_cap(weights, self.weight, index)
        )
        return replace(
            decision,
            status="trained" if fraction > 0 else "rejected",
            reason=self.admission.reason[index] or note,
            num_examples=outcome.num_examples,
            loss=outcome.loss,
            accuracy=outcome.accuracy,
            response=None if weights is None else _get_number(weights.response, index),
            update_norm=None if weights is None else _get_number(weights.update_norm, index),
            weight=float(self.weight[index]),
        )


def _build_decisions(
    population: Population, plan: RoundPlan, outcomes: RoundOutcomes, weighted: _WeightedUpdates
) -> tuple[ClientDecision, ...]:
    weights, sample = weighted.weights, plan.replacement_sample
    index_by_client = {outcome.client: i for i, outcome in enumerate(outcomes.usable_outcomes)}
    mixing = _get_mixing(population, outcomes, weights)
    decisions = []
    for outcome in outcomes.outcomes:
        client = outcome.client
        decision = ClientDecision(
            client,
            client in population.priority,
            outcome.status,
            outcome.reason,
            participation_correction=None if weights is None else weights.omega.get(client),
            mixing_coefficient=mixing.get(client),
            reply_seconds=outcome.seconds,
        )
        if (index := index_by_client.get(client)) is not None:
            decision = weighted.apply_to(decision, outcome, index)
            if sample is not None:
                decision = replace(decision, num_draws=sample.counts.get(client))
        decisions.append(decision)
    return tuple(decisions)


def _get_mixing(
    population: Population, outcomes: RoundOutcomes, weights: AggregationWeights | None
) -> Mapping[int, float]:
    """Return p of every selected client, including those without a usable update."""
    if weights is None or weights.mixing is None:
        return {}
    clients = [outcome.client for outcome in outcomes.outcomes]
    indices = np.searchsorted(population.sorted_clients, clients)
    return dict(zip(clients, weights.mixing[indices].tolist(), strict=True))


def _add_weights(
    report: RoundReport,
    weights: AggregationWeights | None,
    population: Population,
    reports: ClientReports,
) -> RoundReport:
    """Return the report with the results of the weighting."""
    if weights is None:
        return report
    return replace(
        report,
        inclusion_mass=weights.inclusion_mass,
        mixing=weights.mixing,
        decision_loss=weights.decision_loss,
        estimate=weights.estimate,
        omega=weights.omega,
        divergence=compute_divergence(population, weights.mixing, reports.num_examples),
    )


def compute_divergence(
    population: Population, mixing: FloatArray | None, examples: Mapping[int, float]
) -> float | None:
    """Return KL(p || w), w the fractions of the data; None unless all clients reported D_k."""
    if mixing is None or len(examples) < len(population.clients):
        return None
    data = PerClient.from_mapping(examples).get_array(population.sorted_clients, math.nan)
    if np.isnan(data).any() or data.sum() == 0.0:
        return None
    return kl_divergence(mixing, data / data.sum())


def _join_notes(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


def _get_number(values: FloatArray | None, index: int) -> float | None:
    if values is None or math.isnan(values[index]):
        return None
    return float(values[index])


def _convert_to_float(value: float | None) -> float:
    return math.nan if value is None else float(value)
