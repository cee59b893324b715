"""Turn the replies of an evaluation into measurements, and into F for the next broadcast."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..composition import RuleSet
from ..decisions import ClientEvaluation, compute_priority_objective
from ..hooks import Candidates
from ..server_state import ServerState
from ..types import ClientReports, Population, RoundPlan
from .codec import EvaluateResult
from .communication import NativeProtocol
from .replies import ReplyResults, select_usable_evaluations
from .validation import MAX_LOSS


@dataclass(frozen=True)
class EvaluationPlan:
    """The clients that measure a model, and the parts that they measure, ascending by client id.

    Parameters
    ----------
    test_clients : tuple of int
        The clients whose test part is measured.
    objective_clients : tuple of int
        The clients whose training part is measured for the objective.
    recorded_clients : tuple of int
        The clients whose training part is measured for the records alone.
    evaluates_local_model : bool
        Whether each measures its own model instead.
    """

    test_clients: tuple[int, ...] = ()
    objective_clients: tuple[int, ...] = ()
    recorded_clients: tuple[int, ...] = ()
    evaluates_local_model: bool = False

    @property
    def train_split_clients(self) -> frozenset[int]:
        """The clients whose training parts are measured."""
        return frozenset((*self.objective_clients, *self.recorded_clients))

    @classmethod
    def for_initial_model(cls, population: Population, rules: RuleSet) -> "EvaluationPlan":
        """Return the clients that measure the first model."""
        before = rules.hooks.before_round
        if before is None:
            return cls(objective_clients=population.priority_clients)
        return cls(
            objective_clients=before.select_candidates(
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
        """Return the clients that measure the model with which the round ``candidates`` begins.

        Where the rules need F(w_{t+1}), it is the mean by data over the priority clients that this
        round will ask, or over all of them, connected if ``available`` says who is: the selection's
        ``samples_objective`` says which. Otherwise all priority clients are asked for it together
        with the test metrics. The candidates of ``candidates`` that measure first do so too. With
        ``evaluated_training`` all clients tested measure their training part; what the others
        measure is in no objective and no rule's state.
        """
        measured: tuple[int, ...] = ()
        if rules.needs_objective:
            measured = _select_objective_clients(population, candidates, rules, available)
        elif test_clients:
            measured = communication.select_objective_clients(population, test_clients)
        if candidates.evaluating_clients:
            measured = tuple(sorted({*measured, *candidates.evaluating_clients}))
        recorded = test_clients if communication.evaluated_training else ()
        return cls(test_clients, measured, recorded, rules.trains_local_models)


def find_candidates(
    server_round: int,
    population: Population,
    reports: ClientReports,
    rules: RuleSet,
    plan_round: Callable[[int], RoundPlan],
) -> Candidates:
    """Return whom a round may ask, as far as that is known before its model is measured.

    Without a hook ``before_round`` that is whom ``plan_round`` asks.
    """
    before = rules.hooks.before_round
    if before is None:
        return Candidates(plan_round(server_round).clients)
    return before.select_candidates(server_round - 1, population, reports)


def _select_objective_clients(
    population: Population, candidates: Candidates, rules: RuleSet, available: frozenset[int] | None
) -> tuple[int, ...]:
    """Return the priority clients whose F_k make up F(w) of a round, ascending."""
    if rules.selection.samples_objective:
        return tuple(k for k in candidates.clients if k in population.priority)
    return tuple(k for k in population.priority_clients if available is None or k in available)


def build_client_evaluations(
    results: ReplyResults[EvaluateResult], population: Population, metric: str = "accuracy"
) -> tuple[ClientEvaluation, ...]:
    """Return the clients' measurements; ``metric`` is the metric beside loss and accuracy."""
    usable = select_usable_evaluations(results, metric=metric)
    return tuple(_build_evaluation(k, answer, population) for k, answer in usable.items())


def update_objective(
    state: ServerState,
    selected: frozenset[int],
    evaluations: Sequence[ClientEvaluation],
    *,
    reuse_last: bool,
) -> ServerState:
    """Return the state with F over the priority clients that were asked for it, and who missed it.

    With ``reuse_last``, what each measured last is kept, and stands in for it where it misses a
    later measuring.
    """
    heard = [e for e in evaluations if e.client in selected]
    known = state.last_evaluations
    objective = compute_priority_objective(heard, [known[k] for k in selected & known.keys()])
    counted = {*(e.client for e in heard if e.has_objective_loss), *objective.stale_clients}
    objective = replace(objective, missing_clients=tuple(sorted(selected - counted)))
    if reuse_last:
        newest = [
            e
            for e in evaluations
            if e.has_objective_loss and (e.client in selected or e.client in known)
        ]
        known = {**known, **{e.client: e for e in newest}}
    return replace(state, objective=objective, last_evaluations=known)


def _clamp_loss(loss: float) -> float:
    """Return a loss as it counts: above any that an update may report, it is infinite.

    Sums of such numbers could leave the range of floats.
    """
    return math.inf if loss > MAX_LOSS else loss


def _sanitize_metric(metric: float) -> float:
    """Return a metric as it counts: NaN where it is so large that means of it could overflow."""
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
