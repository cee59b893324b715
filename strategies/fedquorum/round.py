"""Decide one round, as a pure function of the call, the answers and the state.

The strategy calls ``decide`` during a run, and the audit calls it again with the records. As in
the papers, the order is: which updates are admitted, what a fixed divisor covers, and how much
each update counts.

Shapes: n is the number of clients whose updates can be used, N that of all clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .composition import Rules
from .equality import nan_equals_nan
from .errors import SolverError
from .regret import kl_divergence
from .report import ClientDecision, Decided, TrainReport
from .robustness import Robustness
from .state import grown
from .types import (
    Admission,
    ByClient,
    Call,
    FloatArray,
    IntArray,
    Objective,
    Population,
    Responses,
    Told,
    Weights,
)

NO_OBJECTIVE = Objective(math.nan, math.nan)
NOT_FINITE = "the model would not be finite"
NOT_SOLVED = "the weights were not found"
TOO_HEAVY = "an update would count for more than the noise is made for"

REFUSALS = (NOT_FINITE, NOT_SOLVED, TOO_HEAVY)
"""Reasons to refuse a whole round."""


@nan_equals_nan
@dataclass(frozen=True)
class ClientAnswer:
    """The answer of one client that was asked, before any rule uses it.

    ``status`` is one of ``report.STATUSES``; only a client that ``trained`` has numbers. ``note``
    is a remark on its reply, and ``seconds`` the time that the reply took.
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
    def usable(self) -> bool:
        """Whether the client's update reaches the rules."""
        return self.status == "trained"


@dataclass(frozen=True)
class RoundAnswers:
    """The answers of all clients asked in a round.

    Parameters
    ----------
    each : tuple of ClientAnswer
        The answer of every client asked, ascending by client id.
    known : IntArray
        The clients whose nodes the server has met so far, ascending.
    gram : callable, optional
        Computes <Delta_i, Delta_j> of the n usable updates, shape (n, n).
    unknown : tuple of int
        The clients whose nodes the server has never met.
    """

    each: tuple[ClientAnswer, ...]
    known: IntArray
    gram: Callable[[], FloatArray] | None = None
    unknown: tuple[int, ...] = ()

    @property
    def usable(self) -> tuple[ClientAnswer, ...]:
        """The answers whose updates reach the rules."""
        return tuple(answer for answer in self.each if answer.usable)


@dataclass(frozen=True)
class RoundState:
    """The state that the rules keep between rounds.

    ``weighting`` is the weighting's state. ``covered`` is the share of each client's update that a
    gate last admitted, shape (N,); None without a gate. ``told`` has the clients' reports.
    """

    weighting: Any
    covered: FloatArray | None = None
    told: Told = field(default_factory=Told)

    @classmethod
    def initial(cls, rules: Rules, population: Population) -> "RoundState":
        """Return the state before round 1; it is empty for an empty population."""
        if not population.clients:
            return cls(None)
        rules.selection.check_population(population)
        return cls(rules.weighting.init(population))

    def grown(self, rules: Rules, before: Population, after: Population) -> "RoundState":
        """Return the state with the clients that joined, each as before its first round."""
        fresh = RoundState.initial(rules, after)
        count = len(before.clients)
        if count == 0:
            return fresh
        places = np.searchsorted(after.ascending, before.ascending)
        covered = self.covered
        if covered is not None:
            covered = grown(covered, after.priority_weights, count, places)
        weighting = grown(self.weighting, fresh.weighting, count, places)
        return replace(self, weighting=weighting, covered=covered)


@dataclass(frozen=True)
class Round:
    """The decisions of one round.

    Parameters
    ----------
    report : TrainReport
        Every decision with its inputs.
    decided : Decided
        The inputs and the result of the weighting.
    weight : FloatArray
        c_k of the n usable updates, after any bound on a single client's weight.
    following : RoundState
        The state after the round.
    before : RoundState
        The state before it.
    """

    report: TrainReport
    decided: Decided
    weight: FloatArray
    following: RoundState
    before: RoundState

    @property
    def factors(self) -> tuple[FloatArray, float]:
        """a_k, shape (n,), and B with c_k = a_k / B; c_k and 1 if a bound changed a weight."""
        weights = self.decided.weights
        if weights is None or not np.array_equal(self.weight, weights.weight):
            return self.weight, 1.0
        return weights.factor, weights.divisor

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose updates reached the rules, ascending."""
        return tuple(self.decided.responses.client.tolist())

    def refused(self, reason: str, detail: str = "") -> "Round":
        """Return the round with no update counted and the state unchanged.

        Parameters
        ----------
        reason : str
            One of ``REFUSALS``.
        detail : str
            What else there is to tell the clients whose updates counted.
        """
        told = f"{reason}: {detail}" if detail else reason
        undecided = self.decided.weights is None

        def counts(decision: ClientDecision) -> bool:
            return decision.weight != 0.0 or (undecided and decision.status == "trained")

        decisions = tuple(
            replace(decision, status="rejected", reason=told, weight=0.0)
            if counts(decision)
            else decision
            for decision in self.report.decisions
        )
        return replace(
            self,
            report=replace(self.report, decisions=decisions, refused=reason),
            weight=np.zeros_like(self.weight),
            following=self.before,
        )


def decide(
    rules: Rules,
    population: Population,
    state: RoundState,
    *,
    server_round: int,
    call: Call,
    objective: Objective | None,
    answers: RoundAnswers,
    robustness: Robustness | None = None,
    weighs: bool = True,
) -> Round:
    """Decide one round.

    If a solver does not find the weights, no update of the round counts.

    Parameters
    ----------
    rules : Rules
        The rules of the strategy.
    population : Population
        All clients.
    state : RoundState
        The state after the previous round.
    server_round : int
        The round, from 1.
    call : Call
        The clients asked, and the terms.
    objective : Objective or None
        F(w_t), as broadcast; None takes it from the priority clients' answers.
    answers : RoundAnswers
        The clients' answers.
    robustness : Robustness, optional
        Bounds on the influence of one client.
    weighs : bool
        Whether to decide the weights. False if the updates that they follow from are missing, as
        in a replay.

    Raises
    ------
    ValueError
        If the weighting raises it.
    """
    if objective is None:
        compared = rules.selection.compared(frozenset(a.client for a in answers.usable))
        heard = [answer for answer in answers.usable if answer.client in compared]
        objective = answered_objective(population, heard)
    told = _told(state.told, answers.usable)
    responses = _responses(population, answers, told)
    admission = admit(rules, call, objective, responses)
    covered = _covered(
        rules, population, call, objective, responses, share=admission.share, before=state.covered
    )
    responses = _with_coverage(rules, population, call, responses, covered)
    following, weights, problem = state.weighting, None, None
    if weighs:
        try:
            following, weights = rules.weighting.weigh(
                state.weighting, call, responses, admission.share
            )
        except SolverError as error:
            problem = str(error)
    bounds = robustness or Robustness()
    weight = np.zeros_like(admission.share) if weights is None else bounds.cap(weights.weight)
    counted = _Counted(admission, weights, weight, bounds)
    decisions = _decisions(population, call, answers, counted)
    usable = set(responses.client.tolist())
    decided = Round(
        report=_with_weights(
            TrainReport(server_round, call, objective, decisions, None, unknown=answers.unknown),
            weights,
            population,
            told,
        ),
        decided=Decided(
            call=call,
            objective=objective,
            responses=responses,
            share=admission.share,
            reasons=admission.reason,
            state=state.weighting,
            following=None if weights is None else following,
            weights=weights,
            divisor=rules.divisor,
            recorded=tuple(decision for decision in decisions if decision.client in usable),
            capped=bounds.max_weight,
        ),
        weight=weight,
        following=RoundState(following, covered, told),
        before=state,
    )
    return decided if problem is None else decided.refused(NOT_SOLVED, problem)


def answered_objective(population: Population, usable: Sequence[ClientAnswer]) -> Objective:
    """Return F(w_t) over the finite losses of the priority clients' answers; NaN without any."""
    priority = [a for a in usable if a.client in population.priority]
    return Objective(
        loss=_answered_mean(population, [(a, _nan(a.loss)) for a in priority]),
        accuracy=_answered_mean(population, [(a, _nan(a.accuracy)) for a in priority]),
    )


def _answered_mean(population: Population, values: Sequence[tuple[ClientAnswer, float]]) -> float:
    """Return the mean of the finite values by lambda_k D_k, NaN where there is no data."""
    heard = [
        (population.priority_weight(a.client) * float(a.num_examples or 0), value)
        for a, value in values
        if math.isfinite(value)
    ]
    total = sum(share for share, _ in heard)
    if total == 0:
        return math.nan
    return sum(share / total * value for share, value in heard)


def admit(rules: Rules, call: Call, objective: Objective, responses: Responses) -> Admission:
    """Return the admitted share of each update.

    A gate admits nothing if no priority update arrived, since p_k is then undefined. Weights over a
    fixed population are the exception, because its data are known.
    """
    admission = rules.selection.admit(call, objective, responses)
    fixed = rules.weighting.fixed_divisor
    if call.epsilon is None or fixed or responses.priority.any():
        return admission
    n = len(responses.client)
    return Admission(np.zeros(n), ("no priority client's update arrived, so p_k is undefined",) * n)


def cover(
    population: Population,
    call: Call,
    objective: Objective,
    responses: Responses,
    *,
    share: FloatArray,
    before: FloatArray | None,
) -> FloatArray:
    """Return the share of each client's update that a gate last admitted, shape (N,).

    A client that trained has the share admitted in this round. A client that declined has its
    priority weight lambda_k. An absent client keeps its value. All clients begin with lambda_k (1
    for priority clients, 0 for others), and return to it if the gate is closed. A round with an
    unknown F(w_t) changes nothing.
    """
    priority = population.priority_weights
    covered = (priority if before is None or call.epsilon == 0.0 else before).copy()
    unknown = np.isnan(objective.accuracy if call.criterion == "accuracy" else objective.loss)
    if call.epsilon == 0.0 or unknown:
        return covered
    silent = np.searchsorted(population.ascending, responses.silent)
    covered[silent] = priority[silent]
    covered[np.searchsorted(population.ascending, responses.client)] = share
    return covered


def _told(before: Told, usable: Sequence[ClientAnswer]) -> Told:
    data = {a.client: float(a.num_examples or 0) for a in usable}
    losses = {a.client: a.loss for a in usable if a.loss is not None}
    return Told(
        ByClient.of(before.examples).updated(data), ByClient.of(before.losses).updated(losses)
    )


def _responses(population: Population, answers: RoundAnswers, told: Told) -> Responses:
    usable = answers.usable
    clients = [a.client for a in usable]
    silent = [a.client for a in answers.each if a.status == "declined"]
    return Responses(
        client=np.array(clients, dtype=np.int64),
        priority_weight=np.array(
            [population.priority_weight(k) for k in clients], dtype=np.float64
        ),
        num_examples=np.array([a.num_examples for a in usable], dtype=np.float64),
        loss=np.array([_nan(a.loss) for a in usable], dtype=np.float64),
        accuracy=np.array([_nan(a.accuracy) for a in usable], dtype=np.float64),
        known=answers.known,
        gram=answers.gram,
        silent=np.array(silent, dtype=np.int64),
        examples=told.examples,
    )


def _covered(
    rules: Rules,
    population: Population,
    call: Call,
    objective: Objective,
    responses: Responses,
    *,
    share: FloatArray,
    before: FloatArray | None,
) -> FloatArray | None:
    """Return what a gate is known to admit of every client, None where nothing depends on it."""
    if not rules.weighting.fixed_divisor or call.epsilon is None:
        return before
    return cover(population, call, objective, responses, share=share, before=before)


def _with_coverage(
    rules: Rules,
    population: Population,
    call: Call,
    responses: Responses,
    covered: FloatArray | None,
) -> Responses:
    """Return the responses with what a fixed divisor sums over, of the known clients."""
    if not rules.weighting.fixed_divisor or (call.epsilon is None and call.pool is None):
        return responses
    of_all = population.priority_weights if call.epsilon is None else covered
    places = np.searchsorted(population.ascending, responses.known)
    return replace(responses, covered=None if of_all is None else of_all[places])


@dataclass(frozen=True)
class _Counted:
    """How much each usable update counts, and why."""

    admission: Admission
    weights: Weights | None
    weight: FloatArray
    bounds: Robustness

    def applied_to(
        self, decision: ClientDecision, answer: ClientAnswer, place: int
    ) -> ClientDecision:
        """Return the decision with what was decided on the client's update."""
        share, weights = self.admission.share[place], self.weights
        why = None if weights is None else weights.reason.get(answer.client)
        note = _joined(answer.note, why, self.bounds.note(weights, self.weight, place))
        return replace(
            decision,
            status="trained" if share > 0 else "rejected",
            reason=self.admission.reason[place] or note,
            num_examples=answer.num_examples,
            loss=answer.loss,
            accuracy=answer.accuracy,
            response=None if weights is None else _at(weights.response, place),
            update_norm=None if weights is None else _at(weights.update_norm, place),
            weight=float(self.weight[place]),
        )


def _decisions(
    population: Population, call: Call, answers: RoundAnswers, counted: _Counted
) -> tuple[ClientDecision, ...]:
    weights, draws = counted.weights, call.draws
    place_of = {answer.client: i for i, answer in enumerate(answers.usable)}
    mixing = _mixing(population, answers, weights)
    decisions = []
    for answer in answers.each:
        client = answer.client
        decision = ClientDecision(
            client,
            client in population.priority,
            answer.status,
            answer.reason,
            participation_correction=None if weights is None else weights.omega.get(client),
            mixing_coefficient=mixing.get(client),
            reply_seconds=answer.seconds,
        )
        if (place := place_of.get(client)) is not None:
            decision = counted.applied_to(decision, answer, place)
            if draws is not None:
                decision = replace(decision, num_draws=draws.count.get(client))
        decisions.append(decision)
    return tuple(decisions)


def _mixing(
    population: Population, answers: RoundAnswers, weights: Weights | None
) -> Mapping[int, float]:
    """Return p of every client asked, which rules have also of clients that did not answer."""
    if weights is None or weights.mixing is None:
        return {}
    clients = [answer.client for answer in answers.each]
    places = np.searchsorted(population.ascending, clients)
    return dict(zip(clients, weights.mixing[places].tolist(), strict=True))


def _with_weights(
    report: TrainReport, weights: Weights | None, population: Population, told: Told
) -> TrainReport:
    """Return the report with what the weighting tells of the round."""
    if weights is None:
        return report
    return replace(
        report,
        inclusion_mass=weights.inclusion_mass,
        mixing=weights.mixing,
        decision_loss=weights.decision_loss,
        estimate=weights.estimate,
        omega=weights.omega,
        divergence=divergence(population, weights.mixing, told.examples),
    )


def divergence(
    population: Population, mixing: FloatArray | None, examples: Mapping[int, float]
) -> float | None:
    """Return KL(p || w), w the fractions of the data, where those of all clients are known."""
    if mixing is None or len(examples) < len(population.clients):
        return None
    data = ByClient.of(examples).at(population.ascending, math.nan)
    if np.isnan(data).any() or data.sum() == 0.0:
        return None
    return kl_divergence(mixing, data / data.sum())


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


def _at(values: FloatArray | None, place: int) -> float | None:
    if values is None or math.isnan(values[place]):
        return None
    return float(values[place])


def _nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
