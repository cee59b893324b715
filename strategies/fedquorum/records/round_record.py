"""One round in numbers: a line of ``rounds.jsonl``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ..metrics import metric_called
from ..report import STATUSES, ClientEvaluation, LateReply, TrainReport
from ..types import BoolArray, FloatArray
from .fairness import spread, weighted_mean

TEST_GROUPS = ("priority", "non_priority", "all")
PARTS = ("test", "validation")
"""The parts of clients' data of which a round has a summary."""

PartSummary = Mapping[str, Mapping[str, float] | None]
"""What is measured of a part, by groups of clients."""


@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``; see ``docs/records.md`` for each field."""

    round: int
    epsilon: float | None
    global_loss: float
    global_accuracy: float
    asked: int
    trained: int
    silent: int
    unavailable: int
    rejected: int
    failed: int
    late: int
    busy: int
    admitted: int
    bytes_down: int
    bytes_up: int
    seconds: float
    state_bytes: int
    weight_error: float | None
    decision_loss: float | None
    decision_loss_sum: float | None
    kl: float | None
    inclusion_mass: float | None
    theta: float | None
    priority_data: float | None
    unknown: tuple[int, ...]
    stale: tuple[int, ...]
    away: tuple[int, ...]
    late_replies: tuple[LateReply, ...]
    simulated_seconds: float | None
    test: PartSummary | None
    validation: PartSummary | None = None


def round_record(
    report: TrainReport,
    evaluations: Sequence[ClientEvaluation],
    *,
    bytes_down: int,
    bytes_up: int,
    seconds: float,
    state_bytes: int,
    rates: Sequence[float] | None,
    metric: str,
    all_evaluated: bool,
    away: tuple[int, ...] = (),
    previous: RoundRecord | None = None,
) -> RoundRecord:
    """Return the record of a round.

    ``rates``: p_n by client id where a simulation knows it. ``metric``: the setting
    ``evaluation.metric``, what the spread over clients is of. ``all_evaluated``: not only priority
    clients were. ``away``: the clients that were not connected where a round samples among the
    others. ``previous``: the record of the round before, for what is summed over rounds.
    """
    draws = report.call.draws
    omega = {d.client: d.omega for d in report.decisions if d.omega is not None}
    return RoundRecord(
        round=report.server_round,
        epsilon=report.call.epsilon,
        global_loss=report.objective.loss,
        global_accuracy=report.objective.accuracy,
        asked=len(report.call.clients),
        **{status: report.count(status) for status in STATUSES},
        admitted=report.admitted,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        seconds=seconds,
        state_bytes=state_bytes,
        weight_error=weight_error(omega, rates),
        decision_loss=report.decision_loss,
        decision_loss_sum=_running_sum(previous, report.decision_loss),
        kl=report.divergence,
        inclusion_mass=report.inclusion_mass,
        theta=report.theta,
        priority_data=None if draws is None else draws.priority_data,
        unknown=report.unknown,
        stale=report.objective.stale,
        away=away,
        late_replies=report.late,
        simulated_seconds=report.simulated_seconds,
        test=evaluation_summary(evaluations, metric, all_evaluated),
        validation=evaluation_summary(evaluations, metric, all_evaluated, "validation"),
    )


def _running_sum(previous: RoundRecord | None, loss: float | None) -> float | None:
    before = None if previous is None else previous.decision_loss_sum
    return before if loss is None else (before or 0.0) + loss


def weight_error(omega: Mapping[int, float], rates: Sequence[float] | None) -> float | None:
    """Return the round's term of Theorem 3, (1 / N) sum_n (p_n omega_n - 1)^2 (Wang and Ji)."""
    if rates is None or not omega:
        return None
    return fmean((rates[client] * estimate - 1.0) ** 2 for client, estimate in omega.items())


def evaluation_summary(
    evaluations: Sequence[ClientEvaluation],
    metric: str,
    all_evaluated: bool,
    part: str = "test",
) -> PartSummary | None:
    """Return ``test`` or ``validation`` of a round's record, None if nobody's was measured.

    Parameters
    ----------
    evaluations : sequence of ClientEvaluation
        One for each client that was evaluated after the round.
    metric : str
        The setting ``evaluation.metric``, what the spread over clients is of.
    all_evaluated : bool
        Whether not only priority clients were asked.
    part : {"test", "validation"}
        Which part.
    """
    evaluated = _columns(evaluations, part)
    tested = _among(evaluated, evaluated["rows"] > 0)
    has_priority = tested["priority_weight"] > 0
    priority, others = _among(tested, has_priority), _among(tested, ~has_priority)
    if not len(has_priority):
        return None
    objective_data = priority["priority_weight"] * priority["num_examples"]
    everyone = _group_summary(tested, metric, tested["num_examples"]) if all_evaluated else None
    return {
        "priority": _group_summary(priority, metric, objective_data),
        "non_priority": _group_summary(others, metric, others["num_examples"]),
        "all": everyone,
    }


Columns = Mapping[str, FloatArray]
"""The numbers of n evaluations by their fields, shape (n,) each."""

_MEASURED = ("loss", "accuracy", "metric")


def _columns(evaluations: Sequence[ClientEvaluation], part: str) -> Columns:
    """Return weights and amounts of training data, and what was measured of a part."""
    names = {name: name for name in ("priority_weight", "num_examples")}
    names |= {"rows": f"{part}_num_examples"} | {name: f"{part}_{name}" for name in _MEASURED}
    return {
        name: np.array([getattr(e, field) for e in evaluations], dtype=np.float64)
        for name, field in names.items()
    }


def _among(columns: Columns, chosen: BoolArray) -> Columns:
    return {name: numbers[chosen] for name, numbers in columns.items()}


def _group_summary(tested: Columns, metric: str, weight: FloatArray) -> Mapping[str, float] | None:
    """Return weighted means of what was measured, and the spread over clients of ``metric``.

    ``left_out`` counts the clients for which the metric is not defined.
    """
    if not len(weight):
        return None
    values = _values(tested, metric)
    defined = ~np.isnan(values)
    means = {name: weighted_mean(_values(tested, name), weight) for name in ("loss", "accuracy")}
    means[metric] = weighted_mean(values[defined], weight[defined])
    higher = metric_called(metric).higher_is_better
    return {
        **means,
        "left_out": int((~defined).sum()),
        **(spread(values[defined], higher_is_better=higher) if defined.any() else {}),
    }


def _values(tested: Columns, metric: str) -> FloatArray:
    return tested[metric if metric in _MEASURED else "metric"]
