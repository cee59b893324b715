"""Summarise a round in numbers: a line of ``rounds.jsonl``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, Self

import numpy as np

from ..equality import nan_equals_nan
from ..hooks import NO_HOOKS, Hooks, Report
from ..metrics import metric_called
from ..report import STATUSES, ClientEvaluation, LateReply, TrainReport
from ..round import REFUSALS
from ..types import BoolArray, ByClient, FloatArray
from .fairness import spread, weighted_mean
from .values import (
    CLIENTS,
    COUNT,
    NUMBER,
    OPTIONAL,
    REPLIES,
    DamagedError,
    Value,
    one_of,
    read_numbers,
    read_object,
    recorded,
    written_numbers,
)

TEST_GROUPS = ("priority", "non_priority", "all")
"""The groups of clients whose test parts every run summarises; none includes held-out clients."""

UNSEEN_GROUP, MEAN_GROUP = "held_out", "mean_model"
"""The clients that never train; and all tested clients, with the mean of the models from which
clients start."""

MORE_GROUPS = (UNSEEN_GROUP, MEAN_GROUP)
"""Groups that only some runs have."""


def groups_of(test: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the keys of a round's ``test``: those of every run, and further ones if present."""
    return (*TEST_GROUPS, *(name for name in MORE_GROUPS if name in (test or {})))


PARTS = ("test", "validation")
"""The parts of the clients' data that a round summarises."""

PartSummary = Mapping[str, Mapping[str, float] | None]
"""The numbers of a part, by groups of clients."""


def _written_part(groups: PartSummary | None) -> dict[str, Any] | None:
    if groups is None:
        return None
    return {k: None if one is None else written_numbers(one) for k, one in groups.items()}


def _read_part(given: Any, name: str) -> PartSummary | None:
    if given is None:
        return None
    part = read_object(given, name)
    return {group: _read_group(part.get(group), group) for group in groups_of(part)}


def _read_group(given: Any, name: str) -> Mapping[str, float] | None:
    if given is None:
        return None
    numbers = read_numbers(given, name)
    if "accuracy" not in numbers:
        raise DamagedError("accuracy is missing")
    return numbers


PART = Value(_written_part, _read_part)
"""The numbers of a part, or None."""


@nan_equals_nan
@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``; see ``docs/records.md`` for each field."""

    round: int = recorded(COUNT)
    epsilon: float | None = recorded(OPTIONAL)
    global_loss: float = recorded(NUMBER)
    global_accuracy: float = recorded(NUMBER)
    selected: int = recorded(COUNT)
    trained: int = recorded(COUNT)
    declined: int = recorded(COUNT)
    unavailable: int = recorded(COUNT)
    rejected: int = recorded(COUNT)
    failed: int = recorded(COUNT)
    late: int = recorded(COUNT)
    busy: int = recorded(COUNT)
    admitted: int = recorded(COUNT)
    bytes_down: int = recorded(COUNT)
    bytes_up: int = recorded(COUNT)
    duration_seconds: float = recorded(NUMBER)
    state_bytes: int = recorded(COUNT)
    weight_error: float | None = recorded(OPTIONAL)
    decision_loss: float | None = recorded(OPTIONAL)
    decision_loss_sum: float | None = recorded(OPTIONAL)
    kl_to_data: float | None = recorded(OPTIONAL)
    inclusion_mass: float | None = recorded(OPTIONAL)
    theta: float | None = recorded(OPTIONAL)
    priority_data: float | None = recorded(OPTIONAL)
    unregistered: tuple[int, ...] = recorded(CLIENTS)
    stale_clients: tuple[int, ...] = recorded(CLIENTS)
    unmeasured: tuple[int, ...] = recorded(CLIENTS)
    disconnected: tuple[int, ...] = recorded(CLIENTS)
    late_replies: tuple[LateReply, ...] = recorded(REPLIES)
    simulated_seconds: float | None = recorded(OPTIONAL)
    test: PartSummary | None = recorded(PART)
    validation: PartSummary | None = recorded(PART, default=None)
    refused: str | None = recorded(one_of(REFUSALS), default=None)
    update_norm: float | None = recorded(OPTIONAL, default=None)

    @classmethod
    def of(cls, line: Any) -> Self:
        """Return the round that JSON has.

        Raises
        ------
        DamagedError
            If it is none.
        """
        given = read_object(line)
        # Counts first: what lacks them is no round at all.
        items = sorted(fields(cls), key=lambda item: item.metadata["value"] is not COUNT)
        return cls(**{item.name: item.metadata["value"].of(given, item.name) for item in items})

    def written(self) -> dict[str, Any]:
        """Return the round as JSON has it, from which ``of`` makes the same."""
        return {
            item.name: item.metadata["value"].written(getattr(self, item.name))
            for item in fields(self)
        }


def round_record(
    report: TrainReport,
    evaluations: Sequence[ClientEvaluation],
    *,
    bytes_down: int,
    bytes_up: int,
    seconds: float,
    state_bytes: int,
    rates: FloatArray | None,
    metric: str,
    all_evaluated: bool,
    away: tuple[int, ...] = (),
    hooks: Hooks = NO_HOOKS,
    previous: RoundRecord | None = None,
    of_mean: Sequence[ClientEvaluation] = (),
) -> RoundRecord:
    """Return the record of a round.

    ``rates``: the probability that this round counts a client, by client id, if known. ``metric``:
    the setting ``evaluation.metric``, whose spread over clients is recorded. ``all_evaluated``:
    whether all clients were evaluated, not only those with priority. ``away``: the clients that
    were not connected, if a round samples from the connected ones. ``hooks``: those of the rules,
    of which ``columns`` and ``report`` add numbers to the groups of the test part. ``previous``:
    the record of the previous round, for sums over rounds.
    ``of_mean``: the clients' measurements of the mean of the models from which they start, if the
    rules have one.
    """
    draws = report.call.draws
    return RoundRecord(
        round=report.server_round,
        epsilon=report.call.epsilon,
        global_loss=report.objective.loss,
        global_accuracy=report.objective.accuracy,
        selected=len(report.call.clients),
        **{status: report.count(status) for status in STATUSES},
        admitted=report.admitted,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        duration_seconds=seconds,
        state_bytes=state_bytes,
        weight_error=weight_error(report, rates),
        decision_loss=report.decision_loss,
        decision_loss_sum=_running_sum(previous, report.decision_loss),
        kl_to_data=report.divergence,
        inclusion_mass=report.inclusion_mass,
        theta=report.theta,
        priority_data=None if draws is None else draws.priority_data,
        unregistered=report.unknown,
        stale_clients=report.objective.stale,
        unmeasured=report.objective.unmeasured,
        disconnected=away,
        late_replies=report.late,
        simulated_seconds=report.simulated_seconds,
        test=evaluation_summary(evaluations, metric, all_evaluated, hooks=hooks, of_mean=of_mean),
        validation=evaluation_summary(evaluations, metric, all_evaluated, "validation"),
        refused=report.refused,
        update_norm=report.update_norm,
    )


def _running_sum(previous: RoundRecord | None, loss: float | None) -> float | None:
    before = None if previous is None else previous.decision_loss_sum
    return before if loss is None else (before or 0.0) + loss


def weight_error(report: TrainReport, rates: FloatArray | None) -> float | None:
    """Return the round's term of Theorem 3, (1 / N) sum_n (p_n omega_n - 1)^2 (Wang and Ji).

    The sum is over all known clients that the round could ask, asked or not. ``rates`` has p_n, the
    probability that the round counts client n, by client id; NaN if unknown. It is 0 if all omega_n
    are right.
    """
    pool, omega = report.call.pool, ByClient.of(report.omega)
    if pool is not None:
        omega = omega.among(pool)
    if rates is None or not omega:
        return None
    error = (rates[omega.clients] * omega.numbers - 1.0) ** 2
    return None if np.isnan(error).any() else fmean(error.tolist())


def evaluation_summary(
    evaluations: Sequence[ClientEvaluation],
    metric: str,
    all_evaluated: bool,
    part: str = "test",
    *,
    hooks: Hooks = NO_HOOKS,
    of_mean: Sequence[ClientEvaluation] = (),
) -> PartSummary | None:
    """Return ``test`` or ``validation`` of a round's record, None without a measurement.

    Parameters
    ----------
    evaluations : sequence of ClientEvaluation
        The measurements of each client that was evaluated after the round.
    metric : str
        The setting ``evaluation.metric``, whose spread over clients is summarised.
    all_evaluated : bool
        Whether all clients were evaluated, not only those with priority.
    part : {"test", "validation"}
        The part of the clients' data.
    hooks : Hooks
        The hooks of the rules: ``report`` adds numbers to the groups of the test part, from
        ``columns`` too.
    of_mean : sequence of ClientEvaluation
        The clients' measurements of the mean of the models from which they start; empty if there
        is no such mean.
    """
    if part != "test":
        hooks = NO_HOOKS
    evaluated = _columns(evaluations, part, hooks)
    tested = _among(evaluated, evaluated["rows"] > 0)
    never_trains = tested["held_out"] > 0
    if not len(never_trains):
        return None
    known, unseen = _among(tested, ~never_trains), _among(tested, never_trains)
    has_priority = known["priority_weight"] > 0
    priority, others = _among(known, has_priority), _among(known, ~has_priority)
    report = hooks.report
    objective_data = priority["priority_weight"] * priority["num_examples"]
    groups = {
        "priority": _group_summary(priority, metric, objective_data, report),
        "non_priority": _group_summary(others, metric, others["num_examples"], report),
        "all": _group_summary(known, metric, known["num_examples"], report)
        if all_evaluated
        else None,
        **_of_mean(of_mean, metric),
    }
    if never_trains.any():
        groups[UNSEEN_GROUP] = _group_summary(unseen, metric, unseen["num_examples"], report)
    return groups


def _of_mean(
    evaluations: Sequence[ClientEvaluation], metric: str
) -> dict[str, Mapping[str, float] | None]:
    columns = _columns(evaluations, "test", NO_HOOKS)
    tested = _among(columns, (columns["rows"] > 0) & (columns["held_out"] == 0))
    summary = _group_summary(tested, metric, tested["num_examples"])
    return {} if summary is None else {MEAN_GROUP: summary}


Columns = Mapping[str, FloatArray]
"""The numbers of n evaluations by their fields, shape (n,) each."""

_MEASURED = ("loss", "accuracy", "metric")
_BESIDE = {
    "priority_weight": "priority_weight",
    "num_examples": "num_examples",
    "training_loss": "loss",
    "held_out": "held_out",
}


def _columns(evaluations: Sequence[ClientEvaluation], part: str, hooks: Hooks) -> Columns:
    """Return what is known of the clients, and what was measured of a part."""
    names = _BESIDE | {"rows": f"{part}_num_examples"}
    names |= {name: f"{part}_{name}" for name in _MEASURED}
    columns = {
        name: np.array([getattr(e, field) for e in evaluations], dtype=np.float64)
        for name, field in names.items()
    }
    clients = np.array([e.client for e in evaluations], dtype=np.int64)
    further = {name: ByClient.of(of).at(clients, np.nan) for name, of in hooks.columns.items()}
    return {**columns, **further}


def _among(columns: Columns, chosen: BoolArray) -> Columns:
    return {name: numbers[chosen] for name, numbers in columns.items()}


def _group_summary(
    tested: Columns, metric: str, weight: FloatArray, report: Report | None = None
) -> Mapping[str, float] | None:
    """Return weighted means of what was measured, and the spread over clients of ``metric``.

    ``left_out`` counts the clients for which the metric is not defined. ``report`` adds numbers.
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
        **({} if report is None else report(tested)),
    }


def _values(tested: Columns, metric: str) -> FloatArray:
    return tested[metric if metric in _MEASURED else "metric"]
