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
from .selection.base import select_objective_clients
from .staleness import LateUpdates
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
NOT_UNMASKED = "the masks of the sum cannot be removed"

NO_PRIORITY_UPDATE = "no priority client's update arrived, so p_k is undefined"

REJECTION_REASONS = (NOT_FINITE, NOT_SOLVED, WEIGHT_EXCEEDS_BOUND, NOT_UNMASKED)
"""Reasons to reject a whole round."""


@nan_equals_nan
@dataclass(frozen=True)
class ClientOutcome:
    """The outcome of one selected client, before any rule uses it.

    ``status`` is one of ``decisions.STATUSES``; only a client that ``trained`` has numbers.
    ``note`` is a remark on its reply, and ``seconds`` the time that the reply took. ``start_round``
    is the round whose model the client was sent, if late updates count.
    """

    client: int
    status: str
    reason: str | None = None
    num_examples: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    note: str | None = None
    seconds: float | None = None
    start_round: int | None = None

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
    late: LateUpdates | None = None,
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
    late : LateUpdates, optional
        How updates of older models count; by default there are none.
    compute_weights : bool
        False if the updates that determine the weights are missing, as in a replay.

    Raises
    ------
    ValueError
        If the weighting raises it.
    """
    # Only usable updates reach the rules: a late or malformed reply must not influence a weight.
    usable = [outcome for outcome in outcomes.outcomes if outcome.is_usable]
    # A broadcast F(w_t) is that of the model sent. Clients of Flower's own strategies evaluate it
    # only when they train, so that F(w_t) is then known from this round's updates alone.
    if objective is None:
        clients = select_objective_clients(rules.selection, frozenset(a.client for a in usable))
        objective = compute_objective(population, [a for a in usable if a.client in clients])
    # Weights and selections of later rounds also need D_k and F_k of clients that are absent then:
    # the last report of each client counts.
    reports = ClientReports(
        PerClient.from_mapping(state.reports.num_examples).merge(
            {a.client: a.num_examples for a in usable if a.num_examples is not None}
        ),
        PerClient.from_mapping(state.reports.losses).merge(
            {a.client: a.loss for a in usable if a.loss is not None}
        ),
    )
    # Rules compute with arrays by ascending client id, so that no order of arrival matters. NumPy
    # reads None, a number that a client did not report, as NaN.
    updates = ClientUpdates(
        client=np.array([a.client for a in usable], dtype=np.int64),
        priority_weight=np.array(
            [population.get_priority_weight(a.client) for a in usable], dtype=np.float64
        ),
        num_examples=np.array([a.num_examples for a in usable], dtype=np.float64),
        loss=np.array([a.loss for a in usable], dtype=np.float64),
        accuracy=np.array([a.accuracy for a in usable], dtype=np.float64),
        registered=outcomes.registered,
        gram=outcomes.gram,
        declined=np.array(
            [a.client for a in outcomes.outcomes if a.status == "declined"], dtype=np.int64
        ),
        reported_examples=reports.num_examples,
    )
    # The gate comes before the weights: they are normalized over the admitted updates.
    admission = admit(rules, plan, objective, updates)
    # A fixed denominator also covers absent clients. What a gate last admitted of them counts,
    # because their losses in this round are unknown.
    fractions = state.admitted_fractions
    if rules.weighting.traits.has_fixed_denominator:
        counted = None
        if plan.epsilon is not None:
            counted = fractions = update_admitted_fractions(
                population,
                plan,
                objective,
                updates,
                admitted_fraction=admission.fraction,
                before=fractions,
            )
        elif plan.eligible is not None:  # the priority clients alone
            counted = population.priority_weights
        if counted is not None:
            indices = np.searchsorted(population.sorted_clients, updates.registered)
            updates = replace(updates, admitted_fractions=counted[indices])
    # The state changes only with weights. If a solver does not find them, another round may.
    next_state, weights, problem = state.weighting, None, None
    if compute_weights:
        try:
            next_state, weights = rules.weighting.weigh(
                state.weighting, plan, updates, admission.fraction
            )
        except SolverError as error:
            problem = str(error)
    # Without weights no update counts.
    found = AggregationWeights(np.zeros(len(usable))) if weights is None else weights
    # An older update counts less, whatever the rule: the rule's own state knows no staleness.
    discount = None if late is None else compute_discounts(rules, late, server_round, usable)
    discounted = found.weight if discount is None else found.weight * discount
    # Bound a single client's weight last: the weighting's own state and report are those of its
    # paper, and no other client gets the difference.
    max_weight = None if robustness is None else robustness.max_weight
    weight = discounted if max_weight is None else np.minimum(discounted, max_weight)
    # The report has what records hold and users read.
    report = RoundReport(
        server_round,
        plan,
        objective,
        _build_decisions(
            population,
            plan,
            outcomes,
            admission,
            weights=found,
            discount=discount,
            unbounded=discounted,
            bounded=weight,
            server_round=server_round,
        ),
        found.inclusion_mass,
        mixing=found.mixing,
        decision_loss=found.decision_loss,
        estimate=found.estimate,
        omega=found.omega,
        divergence=None
        if found.mixing is None
        else compute_divergence(population, found.mixing, reports.num_examples),
        unregistered=outcomes.unregistered,
    )
    # The trace has what explains the report, and lets a check compute the same weights again.
    trained = {outcome.client for outcome in usable}
    trace = DecisionTrace(
        plan=plan,
        objective=objective,
        updates=updates,
        admitted_fraction=admission.fraction,
        admission_reasons=admission.reason,
        state=state.weighting,
        next_state=None if weights is None else next_state,
        weights=weights,
        denominator=rules.denominator,
        recorded_decisions=tuple(d for d in report.decisions if d.client in trained),
        weight_cap=max_weight,
        discount=discount,
    )
    decision = RoundDecision(
        report, trace, weight, RoundState(next_state, fractions, reports), previous_state=state
    )
    return decision if problem is None else decision.reject(NOT_SOLVED, problem)


def compute_discounts(
    rules: RuleSet, late: LateUpdates, server_round: int, usable: Sequence[ClientOutcome]
) -> FloatArray:
    """Return d(s) of each usable update, shape (n,).

    It is 1 for rules with a memory of updates, which takes each update as the client's newest.
    """
    started = [server_round if a.start_round is None else a.start_round for a in usable]
    if rules.memory is not None:
        return np.ones(len(started))
    return late.compute_discount(server_round - np.array(started, dtype=np.int64))


def compute_objective(population: Population, usable: Sequence[ClientOutcome]) -> Objective:
    """Return F(w_t) over the finite losses of the priority clients' outcomes; NaN without any.

    Losses and accuracies are averaged by lambda_k D_k.
    """
    priority = [a for a in usable if a.client in population.priority]
    indices = np.searchsorted(population.sorted_clients, [a.client for a in priority])
    data = [
        weight * float(a.num_examples or 0)
        for weight, a in zip(population.priority_weights[indices].tolist(), priority, strict=True)
    ]
    means = []
    for values in ([a.loss for a in priority], [a.accuracy for a in priority]):
        weighted = [
            (amount, value)
            for amount, value in zip(data, values, strict=True)
            if value is not None and math.isfinite(value)
        ]
        total = sum(amount for amount, _ in weighted)
        mean = sum(amount / total * value for amount, value in weighted) if total else math.nan
        means.append(mean)
    return Objective(loss=means[0], accuracy=means[1])


def admit(
    rules: RuleSet, plan: RoundPlan, objective: Objective, updates: ClientUpdates
) -> Admission:
    """Return the admitted fraction of each update.

    A gate admits nothing if no priority update arrived, since p_k is then undefined. Weights over a
    fixed population are the exception, because its data are known.
    """
    admission = rules.selection.admit(plan, objective, updates)
    fixed = rules.weighting.traits.has_fixed_denominator
    if plan.epsilon is None or fixed or updates.priority.any():
        return admission
    n = len(updates.client)
    return Admission(np.zeros(n), (NO_PRIORITY_UPDATE,) * n)


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


def _build_decisions(
    population: Population,
    plan: RoundPlan,
    outcomes: RoundOutcomes,
    admission: Admission,
    *,
    weights: AggregationWeights,
    discount: FloatArray | None,
    unbounded: FloatArray,
    bounded: FloatArray,
    server_round: int,
) -> tuple[ClientDecision, ...]:
    """Return the decision about every selected client, in the order of the outcomes.

    ``unbounded`` is the weight c_k of each usable update, and ``bounded`` the same after any bound
    on it, both of shape (n,).
    """
    selected = [outcome.client for outcome in outcomes.outcomes]
    draws = {} if plan.replacement_sample is None else plan.replacement_sample.counts
    fractions = admission.fraction.tolist()
    full, capped = unbounded.tolist(), bounded.tolist()
    discounts = _list_numbers(discount, len(bounded))
    responses = _list_numbers(weights.response, len(bounded))
    norms = _list_numbers(weights.update_norm, len(bounded))
    mixing: list[float | None] = [None] * len(selected)
    if weights.mixing is not None:  # also of clients without a usable update
        mixing = weights.mixing[np.searchsorted(population.sorted_clients, selected)].tolist()
    omega = PerClient.from_mapping(weights.omega).get_array(np.array(selected, np.int64), math.nan)
    corrections = _list_numbers(omega, len(selected))
    decisions = []
    index = 0
    for outcome, mixing_coefficient, correction in zip(
        outcomes.outcomes, mixing, corrections, strict=True
    ):
        client = outcome.client
        status, reason, usable = outcome.status, outcome.reason, dict[str, Any]()
        if outcome.is_usable:
            before, after = full[index], capped[index]
            cap_note = f"weight {before:.6g} capped at {after:g}" if after < before else None
            remarks = filter(None, (outcome.note, weights.reason.get(client), cap_note))
            status = "trained" if fractions[index] > 0 else "rejected"
            reason = admission.reason[index] or "; ".join(remarks) or None
            usable = {
                "num_examples": outcome.num_examples,
                "loss": outcome.loss,
                "accuracy": outcome.accuracy,
                "num_draws": draws.get(client),
                "response": responses[index],
                "update_norm": norms[index],
                "weight": after,
                "staleness": None
                if outcome.start_round is None
                else server_round - outcome.start_round,
                "discount": discounts[index],
            }
            index += 1
        decisions.append(
            ClientDecision(
                client,
                client in population.priority,
                status,
                reason,
                participation_correction=correction,
                mixing_coefficient=mixing_coefficient,
                reply_seconds=outcome.seconds,
                start_round=outcome.start_round,
                **usable,
            )
        )
    return tuple(decisions)


def _list_numbers(values: FloatArray | None, n: int) -> list[float | None]:
    """Return an array of shape (n,) as a list, with None for NaN and for a missing array."""
    if values is None:
        return [None] * n
    return [None if math.isnan(value) else value for value in values.tolist()]


def compute_divergence(
    population: Population, mixing: FloatArray, examples: Mapping[int, float]
) -> float | None:
    """Return KL(p || w), w the fractions of the data; None unless all clients reported D_k."""
    if len(examples) < len(population.clients):
        return None
    data = PerClient.from_mapping(examples).get_array(population.sorted_clients, math.nan)
    if np.isnan(data).any() or data.sum() == 0.0:
        return None
    return kl_divergence(mixing, data / data.sum())
