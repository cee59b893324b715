"""Plan the evaluation of a model, check its results, and compute the objective from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import RunError
from ..rules.composition import RuleSet
from ..rules.decisions import ClientEvaluation, PersonalEvaluation, compute_priority_objective
from ..rules.hooks import Candidates
from ..rules.selection.base import samples_objective
from ..rules.types import ClientReports, Population, RoundPlan
from ..sanitize import abbreviate
from ..server.state import ServerState
from .codec import EvaluateResult, Status
from .protocol import NativeProtocol
from .session import ReplyResults
from .validation import MAX_LOSS, find_evaluation_problem

MAX_REASONS = 3
"""Maximum number of reasons in one error message."""


@dataclass(frozen=True)
class EvaluationPlan:
    """The clients that evaluate a model, and their splits, ascending by client id.

    Parameters
    ----------
    test_clients : tuple of int
        The clients that evaluate their test split.
    objective_clients : tuple of int
        The clients that evaluate their training split for the objective.
    recorded_clients : tuple of int
        The clients that evaluate their training split only for the records.
    """

    test_clients: tuple[int, ...] = ()
    objective_clients: tuple[int, ...] = ()
    recorded_clients: tuple[int, ...] = ()

    @classmethod
    def for_initial_model(cls, population: Population, rules: RuleSet) -> "EvaluationPlan":
        """Return the plan to evaluate the initial model."""
        hook = rules.hooks.before_round
        if hook is None:
            return cls(objective_clients=population.priority_clients)
        return cls(
            objective_clients=hook.select_candidates(
                0, population, ClientReports()
            ).evaluating_clients
        )

    @classmethod
    def for_next_round(
        cls,
        population: Population,
        communication: NativeProtocol,
        test_clients: tuple[int, ...],
        candidates: Candidates,
        *,
        rules: RuleSet,
        available: frozenset[int] | None = None,
    ) -> "EvaluationPlan":
        """Return the plan to evaluate the model with which the next round starts.

        If the rules need F(w_{t+1}), it is the mean by data over priority clients: with
        ``samples_objective`` over those that the next round selects (``candidates``), otherwise
        over all that are ``available``. If the rules do not need it, the priority clients report it
        together with the test metrics. The evaluating clients of ``candidates`` evaluate as well.
        With ``evaluated_training`` all test clients evaluate their training split; the results of
        the other clients enter neither the objective nor a rule's state.
        """
        objective_clients: tuple[int, ...] = ()
        if rules.needs_objective:
            objective_clients = _select_objective_clients(population, candidates, rules, available)
        elif test_clients:
            objective_clients = communication.select_objective_clients(population, test_clients)
        if candidates.evaluating_clients:
            objective_clients = tuple(sorted({*objective_clients, *candidates.evaluating_clients}))
        recorded_clients = test_clients if communication.evaluated_training else ()
        return cls(test_clients, objective_clients, recorded_clients)


def find_candidates(
    server_round: int,
    population: Population,
    reports: ClientReports,
    rules: RuleSet,
    plan_round: Callable[[int], RoundPlan],
) -> Candidates:
    """Return the clients that a round may select, as known before its model is evaluated.

    Without a hook ``before_round`` these are the clients of the round's plan.
    """
    hook = rules.hooks.before_round
    if hook is None:
        return Candidates(plan_round(server_round).clients)
    return hook.select_candidates(server_round - 1, population, reports)


def _select_objective_clients(
    population: Population, candidates: Candidates, rules: RuleSet, available: frozenset[int] | None
) -> tuple[int, ...]:
    """Return the priority clients over which F(w) of a round is the mean, ascending."""
    if samples_objective(rules.selection):
        return tuple(k for k in candidates.clients if k in population.priority)
    return tuple(k for k in population.priority_clients if available is None or k in available)


ReportProblem = Callable[[int, str], object]
"""Receives a client, and why its evaluation is unusable."""


def ignore_problem(_client: int, _problem: str) -> None:
    """Report nothing."""


def select_usable_evaluations(
    results: ReplyResults[EvaluateResult],
    *,
    any_weight: bool = False,
    metric: str = "accuracy",
    report: ReportProblem = ignore_problem,
) -> dict[int, EvaluateResult]:
    """Return the usable evaluations by client; report why others are unusable.

    With ``any_weight`` the amount of data may be any finite number >= 0. ``metric`` is the clients'
    metric beside loss and accuracy.
    """
    usable = {}
    for client in sorted({*results.by_client, *results.malformed}):
        problem = results.malformed.get(client) or find_evaluation_problem(
            results.by_client[client], any_weight=any_weight, metric=metric
        )
        if problem is None:
            usable[client] = results.by_client[client]
        else:
            report(client, problem)
    return usable


def check_evaluation(
    results: ReplyResults[EvaluateResult],
    clients_by_node: Mapping[int, tuple[int, ...]],
    expected: frozenset[int],
    *,
    model: str,
    metric: str,
) -> None:
    """Refuse an evaluation that failed at every selected node.

    A client that is unavailable, did not reply, or whose node disconnected has not failed: the run
    continues without it. The failure of the only connected node ends no run either.

    Parameters
    ----------
    results : ReplyResults
        The results of an evaluation.
    clients_by_node : mapping of int to tuple of int
        The clients selected at each node.
    expected : frozenset of int
        All clients of the evaluation, on connected nodes or not.
    model : str
        The name of the evaluated model, for the error.
    metric : str
        The clients' metric beside loss and accuracy.

    Raises
    ------
    RunError
        If every selected client failed or replied with an unusable evaluation.
    """
    selected = sorted(k for clients in clients_by_node.values() for k in clients)
    if not selected or (len(clients_by_node) == 1 and expected.difference(selected)):
        return
    reasons = []
    for client in selected:
        result = results.by_client.get(client)
        absent = result is not None and result.status is Status.UNAVAILABLE
        missing = result is None and client not in results.malformed
        if absent or missing or client in results.disconnected:
            return
        problem = results.malformed.get(client)
        if problem is None and result is not None:
            problem = find_evaluation_problem(result, metric=metric)
        if problem is None:
            return
        reasons.append(problem)
    summary = abbreviate([*dict.fromkeys(reasons)], MAX_REASONS)
    raise RunError(f"none of {len(selected)} clients could measure {model}: {summary}")


def build_client_evaluations(
    results: ReplyResults[EvaluateResult],
    population: Population,
    metric: str = "accuracy",
    report: ReportProblem = ignore_problem,
) -> tuple[ClientEvaluation, ...]:
    """Return the clients' evaluations; ``metric`` is the metric beside loss and accuracy."""
    usable = select_usable_evaluations(results, metric=metric, report=report)
    return tuple(_build_evaluation(k, result, population) for k, result in usable.items())


def add_personal_evaluations(
    evaluations: Sequence[ClientEvaluation],
    personal: Mapping[str, Mapping[int, PersonalEvaluation]],
) -> tuple[ClientEvaluation, ...]:
    """Return the evaluations with those of the personal models.

    Parameters
    ----------
    evaluations : sequence of ClientEvaluation
        The evaluations of the common model.
    personal : mapping
        By ``PERSONAL_MODELS``, the evaluation of each client; one that did not evaluate the common
        model has no row to add to.
    """
    return tuple(
        replace(
            e, personal=tuple(found[e.client] for found in personal.values() if e.client in found)
        )
        for e in evaluations
    )


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
        test_r2=_sanitize_metric(result.test_r2),
        test_average_precision=result.test_average_precision,
        test_calibration=result.test_calibration,
        validation_num_examples=result.validation_num_examples,
        validation_loss=_clamp_loss(result.validation_loss),
        validation_accuracy=result.validation_accuracy,
        validation_metric=_sanitize_metric(result.validation_metric),
        validation_r2=_sanitize_metric(result.validation_r2),
        validation_average_precision=result.validation_average_precision,
        validation_calibration=result.validation_calibration,
        held_out=client in population.held_out,
    )
