"""One round in numbers: a line of ``rounds.jsonl``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

import numpy as np

from ..report import STATUSES, ClientEvaluation, LateReply, TrainReport
from ..types import BoolArray, FloatArray
from .fairness import spread, weighted_mean

TEST_GROUPS = ("priority", "non_priority", "all")


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
    late_replies: tuple[LateReply, ...]
    simulated_seconds: float | None
    test: Mapping[str, Mapping[str, float] | None] | None


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
    previous: RoundRecord | None = None,
) -> RoundRecord:
    """Return the record of a round.

    ``rates``: p_n by client id where a simulation knows it. ``metric``: the setting
    ``evaluation.metric``, what the spread over clients is of. ``all_evaluated``: not only priority
    clients were. ``previous``: the record of the round before, for what is summed over rounds.
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
        late_replies=report.late,
        simulated_seconds=report.simulated_seconds,
        test=evaluation_summary(evaluations, metric, all_evaluated),
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
    evaluations: Sequence[ClientEvaluation], metric: str, all_evaluated: bool
) -> dict[str, Mapping[str, float] | None] | None:
    """Return ``test`` of a round's record, None if nobody's test part was measured.

    Parameters
    ----------
    evaluations : sequence of ClientEvaluation
        One for each client that was evaluated after the round.
    metric : str
        The setting ``evaluation.metric``, what the spread over clients is of.
    all_evaluated : bool
        Whether not only priority clients were asked.
    """
    evaluated = _Evaluated.of(evaluations, metric)
    tested = evaluated.among(evaluated.test_data > 0)
    if not len(tested.data):
        return None
    priority = tested.among(tested.priority_weight > 0)
    others = tested.among(tested.priority_weight <= 0)
    return {
        "priority": _group_summary(priority, metric, priority.priority_weight * priority.data),
        "non_priority": _group_summary(others, metric, others.data),
        "all": _group_summary(tested, metric, tested.data) if all_evaluated else None,
    }


@dataclass(frozen=True)
class _Evaluated:
    """The numbers of n evaluations, shape (n,) each; ``values`` has them by metric."""

    priority_weight: FloatArray
    data: FloatArray
    test_data: FloatArray
    values: Mapping[str, FloatArray]

    @classmethod
    def of(cls, evaluations: Sequence[ClientEvaluation], metric: str) -> "_Evaluated":
        def column(value: Callable[[ClientEvaluation], float]) -> FloatArray:
            return np.array([value(e) for e in evaluations], dtype=np.float64)

        return cls(
            column(lambda e: e.priority_weight),
            column(lambda e: e.num_examples),
            column(lambda e: e.test_num_examples),
            {name: column(_VALUES.get(name, _METRIC)) for name in ("loss", "accuracy", metric)},
        )

    def among(self, chosen: BoolArray) -> "_Evaluated":
        """Return the evaluations that are chosen, (n,)."""
        return _Evaluated(
            self.priority_weight[chosen],
            self.data[chosen],
            self.test_data[chosen],
            {name: values[chosen] for name, values in self.values.items()},
        )


_VALUES: Mapping[str, Callable[[ClientEvaluation], float]] = {
    "loss": attrgetter("test_loss"),
    "accuracy": attrgetter("test_accuracy"),
}
_METRIC: Callable[[ClientEvaluation], float] = attrgetter("test_metric")


def _group_summary(
    tested: _Evaluated, metric: str, weight: FloatArray
) -> Mapping[str, float] | None:
    """Return weighted means of what was measured, and the spread over clients of ``metric``.

    ``left_out`` counts the clients for which the metric is not defined.
    """
    if not len(weight):
        return None
    defined = ~np.isnan(tested.values[metric])
    everyone = np.ones_like(defined)
    means = {
        name: weighted_mean(tested.values[name][counted], weight[counted])
        for name, counted in (("loss", everyone), ("accuracy", everyone), (metric, defined))
    }
    values = tested.values[metric][defined]
    return {
        **means,
        "left_out": int((~defined).sum()),
        **(spread(values, higher_is_better=metric != "loss") if len(values) else {}),
    }
