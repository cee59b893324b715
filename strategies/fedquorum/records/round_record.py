"""Summarize a round in numbers: a line of ``rounds.jsonl``."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, Self

import numpy as np

from ..metrics.calibration import ECE, add_bins
from ..metrics.fairness import compute_dispersion, weighted_mean
from ..rules.decisions import (
    PERSONAL_MODELS,
    STATUSES,
    ClientEvaluation,
    EvaluationSums,
    LateReply,
    RoundReport,
)
from ..rules.equality import nan_equals_nan
from ..rules.hooks import NO_HOOKS, GroupReport, Hooks
from ..rules.metrics import AVERAGE_PRECISION, METRICS
from ..rules.round import REJECTION_REASONS
from ..rules.types import BoolArray, FloatArray, PerClient
from .values import (
    CLIENT_ID_LIST,
    COUNT,
    LATE_REPLIES,
    NUMBER,
    OPTIONAL_NUMBER,
    CorruptRecordError,
    FieldCodec,
    json_field,
    optional_choice,
    read_numbers,
    read_object,
    to_json_numbers,
)

TEST_GROUPS = ("priority", "non_priority", "all")
"""The groups of clients whose test splits every run summarizes; all exclude held-out clients."""

UNSEEN_GROUP, MEAN_GROUP, FREE_GROUP = "held_out", "mean_model", "free"
"""The clients that never train; all tested clients, evaluated on the mean of the models from which
clients start; and, in place of all, those whose nodes did not train during the evaluation."""

OPTIONAL_GROUPS = (UNSEEN_GROUP, MEAN_GROUP, FREE_GROUP, *PERSONAL_MODELS)
"""Groups that only some runs have; the last ones are all tested clients that train, each evaluated
on a personal model."""


def list_groups(test: Mapping[str, object] | None) -> tuple[str, ...]:
    """Return the keys of a round's ``test``: those of every run, then optional ones if present."""
    return (*TEST_GROUPS, *(name for name in OPTIONAL_GROUPS if name in (test or {})))


SPLITS = ("test", "validation")
"""The splits of the clients' data that a round summarizes."""

SplitSummary = Mapping[str, Mapping[str, float] | None]
"""The numbers of a split, by groups of clients."""


def _to_json_split(groups: SplitSummary | None) -> dict[str, Any] | None:
    if groups is None:
        return None
    return {k: None if one is None else to_json_numbers(one) for k, one in groups.items()}


def _read_split(given: Any, name: str) -> SplitSummary | None:
    if given is None:
        return None
    split = read_object(given, name)
    return {group: _read_group(split.get(group), group) for group in list_groups(split)}


def _read_group(given: Any, name: str) -> Mapping[str, float] | None:
    if given is None:
        return None
    numbers = read_numbers(given, name)
    if "accuracy" not in numbers:
        raise CorruptRecordError("accuracy is missing")
    return numbers


SPLIT_SUMMARY = FieldCodec(_to_json_split, _read_split)
"""The numbers of a split, or None."""


ROUND_SCALARS = (
    "global_loss",
    "global_accuracy",
    "epsilon",
    "admitted",
    "inclusion_mass",
    "theta",
    "weight_error",
    "decision_loss",
    "decision_loss_sum",
    "kl_to_data",
)
"""The numbers of a round, beside those of the splits, that trackers show."""


@nan_equals_nan
@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``; see ``docs/records.md`` for each field."""

    round: int = json_field(COUNT)
    epsilon: float | None = json_field(OPTIONAL_NUMBER)
    global_loss: float = json_field(NUMBER)
    global_accuracy: float = json_field(NUMBER)
    selected: int = json_field(COUNT)
    trained: int = json_field(COUNT)
    declined: int = json_field(COUNT)
    unavailable: int = json_field(COUNT)
    rejected: int = json_field(COUNT)
    failed: int = json_field(COUNT)
    late: int = json_field(COUNT)
    busy: int = json_field(COUNT)
    admitted: int = json_field(COUNT)
    bytes_down: int = json_field(COUNT)
    bytes_up: int = json_field(COUNT)
    duration_seconds: float = json_field(NUMBER)
    state_bytes: int = json_field(COUNT)
    weight_error: float | None = json_field(OPTIONAL_NUMBER)
    decision_loss: float | None = json_field(OPTIONAL_NUMBER)
    decision_loss_sum: float | None = json_field(OPTIONAL_NUMBER)
    kl_to_data: float | None = json_field(OPTIONAL_NUMBER)
    inclusion_mass: float | None = json_field(OPTIONAL_NUMBER)
    theta: float | None = json_field(OPTIONAL_NUMBER)
    priority_data: float | None = json_field(OPTIONAL_NUMBER)
    unregistered: tuple[int, ...] = json_field(CLIENT_ID_LIST)
    stale_clients: tuple[int, ...] = json_field(CLIENT_ID_LIST)
    unmeasured: tuple[int, ...] = json_field(CLIENT_ID_LIST)
    disconnected: tuple[int, ...] = json_field(CLIENT_ID_LIST)
    late_replies: tuple[LateReply, ...] = json_field(LATE_REPLIES)
    simulated_seconds: float | None = json_field(OPTIONAL_NUMBER)
    test: SplitSummary | None = json_field(SPLIT_SUMMARY)
    validation: SplitSummary | None = json_field(SPLIT_SUMMARY, default=None)
    refused: str | None = json_field(optional_choice(REJECTION_REASONS), default=None)
    update_norm: float | None = json_field(OPTIONAL_NUMBER, default=None)

    @classmethod
    def from_json(cls, line: Any) -> Self:
        """Return the round from JSON.

        Raises
        ------
        CorruptRecordError
            If ``line`` is not a round.
        """
        given = read_object(line)
        # Counts first: a line without them is no round at all.
        items = sorted(fields(cls), key=lambda item: item.metadata["value"] is not COUNT)
        return cls(
            **{item.name: item.metadata["value"].read_field(given, item.name) for item in items}
        )

    def to_json(self) -> dict[str, Any]:
        """Return the round as JSON; ``from_json`` restores it."""
        return {
            item.name: item.metadata["value"].to_json(getattr(self, item.name))
            for item in fields(self)
        }


def build_round_record(
    report: RoundReport,
    evaluations: Sequence[ClientEvaluation],
    *,
    bytes_down: int,
    bytes_up: int,
    seconds: float,
    state_bytes: int,
    get_rates: Callable[[int], FloatArray] | None,
    metric: str,
    all_evaluated: bool,
    away: tuple[int, ...] = (),
    hooks: Hooks = NO_HOOKS,
    previous: RoundRecord | None = None,
    mean_model: Sequence[ClientEvaluation] = (),
    some_busy: bool = False,
    sums: EvaluationSums | None = None,
) -> RoundRecord:
    """Return the record of a round.

    ``get_rates``: returns the probability that round t, from 0, counts a client, by client id; None
    if unknown. ``metric``: the setting ``evaluation.metric``, whose spread over clients is
    recorded. ``all_evaluated``: whether all clients were evaluated, not only those with priority.
    ``away``: the disconnected clients, if a round samples from the connected ones. ``hooks``: those
    of the rules, of which ``columns`` and ``report`` add numbers to the groups of the test split.
    ``previous``: the record of the previous round, for sums over rounds. ``mean_model``: the
    clients' evaluations of the mean of the models from which they start, if the rules have one.
    ``some_busy``: whether clients were not evaluated because their nodes trained. ``sums``: the
    evaluation if nodes mask their sums; ``evaluations`` is empty then.
    """
    sample = report.plan.replacement_sample
    return RoundRecord(
        round=report.server_round,
        epsilon=report.plan.epsilon,
        global_loss=report.objective.loss,
        global_accuracy=report.objective.accuracy,
        selected=len(report.plan.clients),
        **{status: report.count(status) for status in STATUSES},
        admitted=report.num_admitted,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        duration_seconds=seconds,
        state_bytes=state_bytes,
        weight_error=None
        if get_rates is None or not report.omega
        else compute_weight_error(report, get_rates(report.server_round - 1)),
        decision_loss=report.decision_loss,
        decision_loss_sum=_add_decision_loss(previous, report.decision_loss),
        kl_to_data=report.divergence,
        inclusion_mass=report.inclusion_mass,
        theta=report.theta,
        priority_data=None if sample is None else sample.priority_data,
        unregistered=report.unregistered,
        stale_clients=report.objective.stale_clients,
        unmeasured=report.objective.missing_clients,
        disconnected=away,
        late_replies=report.late_replies,
        simulated_seconds=report.simulated_seconds,
        test=summarize_sums(sums, metric, all_evaluated, "test")
        if sums is not None
        else summarize_evaluations(
            evaluations,
            metric,
            all_evaluated,
            hooks=hooks,
            mean_model=mean_model,
            some_busy=some_busy,
        ),
        validation=summarize_sums(sums, metric, all_evaluated, "validation")
        if sums is not None
        else summarize_evaluations(
            evaluations, metric, all_evaluated, "validation", some_busy=some_busy
        ),
        refused=report.rejection_reason,
        update_norm=report.update_norm,
    )


def get_scalars(record: RoundRecord) -> dict[str, float]:
    """Return the defined numbers of a round, by names such as ``round/global_loss``."""
    return dict(_list_scalars(record))


def _list_scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    for name in ROUND_SCALARS:
        value = getattr(record, name)
        if value is not None and not math.isnan(value):
            yield f"round/{name}", value
    for split in SPLITS:
        for group, values in (getattr(record, split) or {}).items():
            for name, value in (values or {}).items():
                if not math.isnan(value):
                    yield f"{split}_{group}/{name}", value


def _add_decision_loss(previous: RoundRecord | None, loss: float | None) -> float | None:
    before = None if previous is None else previous.decision_loss_sum
    return before if loss is None else (before or 0.0) + loss


def compute_weight_error(report: RoundReport, rates: FloatArray | None) -> float | None:
    """Return the round's term of Theorem 3, (1 / N) sum_n (p_n omega_n - 1)^2 (Wang and Ji).

    The sum is over all registered clients that the round could select, selected or not. ``rates``
    has p_n, the probability that the round counts client n, by client id; NaN if unknown. The error
    is 0 if all omega_n are right.
    """
    eligible, omega = report.plan.eligible, PerClient.from_mapping(report.omega)
    if eligible is not None:
        omega = omega.select(eligible)
    if rates is None or not omega:
        return None
    error = (rates[omega.clients] * omega.numbers - 1.0) ** 2
    return None if np.isnan(error).any() else fmean(error.tolist())


def summarize_evaluations(
    evaluations: Sequence[ClientEvaluation],
    metric: str,
    all_evaluated: bool,
    split: str = "test",
    *,
    hooks: Hooks = NO_HOOKS,
    mean_model: Sequence[ClientEvaluation] = (),
    some_busy: bool = False,
) -> SplitSummary | None:
    """Return ``test`` or ``validation`` of a round's record; None without an evaluation.

    Parameters
    ----------
    evaluations : sequence of ClientEvaluation
        The evaluations of the clients after the round.
    metric : str
        The setting ``evaluation.metric``, whose spread over clients is summarized.
    all_evaluated : bool
        Whether all clients were evaluated, not only those with priority.
    split : {"test", "validation"}
        The split of the clients' data.
    hooks : Hooks
        The hooks of the rules: ``report`` adds numbers to the groups of the test split, also from
        ``columns``.
    mean_model : sequence of ClientEvaluation
        The clients' evaluations of the mean of the models from which they start; empty if there is
        no such mean.
    some_busy : bool
        Whether clients were not evaluated because their nodes trained.
    """
    if split != "test":
        hooks = NO_HOOKS
    evaluated = _build_columns(evaluations, split, hooks)
    tested = _select_rows(evaluated, evaluated["rows"] > 0)
    is_held_out = tested["held_out"] > 0
    if not len(is_held_out):
        return None
    registered, held_out = _select_rows(tested, ~is_held_out), _select_rows(tested, is_held_out)
    has_priority = registered["priority_weight"] > 0
    priority, non_priority = (
        _select_rows(registered, has_priority),
        _select_rows(registered, ~has_priority),
    )
    report = hooks.report
    objective_data = priority["priority_weight"] * priority["num_examples"]
    groups = {
        "priority": _summarize_group(priority, metric, objective_data, report),
        "non_priority": _summarize_group(
            non_priority, metric, non_priority["num_examples"], report
        ),
        "all": _summarize_group(registered, metric, registered["num_examples"], report)
        if all_evaluated and not some_busy
        else None,
        **_summarize_mean_model(mean_model, metric),
    }
    if all_evaluated and some_busy:
        groups[FREE_GROUP] = _summarize_group(
            registered, metric, registered["num_examples"], report
        )
    if is_held_out.any():
        groups[UNSEEN_GROUP] = _summarize_group(held_out, metric, held_out["num_examples"], report)
    for model in PERSONAL_MODELS:
        groups |= _summarize_personal_model(evaluations, metric, split, model)
    return groups


def summarize_sums(
    sums: EvaluationSums, metric: str, all_evaluated: bool, split: str
) -> SplitSummary | None:
    """Return ``test`` or ``validation`` of a round with masks; None without an evaluation.

    There is one group, because the sums of two would tell more of single clients, and no spread
    over clients. If each client counts once, the mean is the ``average``, too.
    """
    if not any(sums.counts[f"{split}_{name}"] for name in ("loss", "accuracy")):
        return None
    group = {name: sums.means[f"{split}_{name}"] for name in ("loss", "accuracy")}
    field = f"{split}_{metric if metric in group else 'metric'}"
    group[metric] = sums.means[field]
    left_out = sums.evaluated - sums.counts[field]
    groups: dict[str, Mapping[str, float] | None] = dict.fromkeys(TEST_GROUPS)
    if not sums.by_data:
        group["average"] = group[metric]
    evaluated = {**group, "evaluated": sums.evaluated, "left_out": left_out}
    return {**groups, "all" if all_evaluated else "priority": evaluated}


def _summarize_mean_model(
    evaluations: Sequence[ClientEvaluation], metric: str
) -> dict[str, Mapping[str, float] | None]:
    summary = _summarize_training_clients(evaluations, metric, "test")
    return {} if summary is None else {MEAN_GROUP: summary}


def _summarize_personal_model(
    evaluations: Sequence[ClientEvaluation], metric: str, split: str, model: str
) -> dict[str, Mapping[str, float] | None]:
    """Return the summary of personal models, with the number of epochs that these trained."""
    replaced = [e.replace_by_personal(model) for e in evaluations]
    found = [e for e in replaced if e is not None]
    summary = _summarize_training_clients(found, metric, split)
    epochs = [one.epochs for e in evaluations for one in e.personal if one.model == model]
    return {} if summary is None else {model: {**summary, "epochs": max(epochs)}}


def _summarize_training_clients(
    evaluations: Sequence[ClientEvaluation], metric: str, split: str
) -> Mapping[str, float] | None:
    """Return the summary of all clients that train, weighted by their training data."""
    columns = _build_columns(evaluations, split, NO_HOOKS)
    tested = _select_rows(columns, (columns["rows"] > 0) & (columns["held_out"] == 0))
    return _summarize_group(tested, metric, tested["num_examples"])


EvaluationColumns = Mapping[str, FloatArray]
"""The numbers of n evaluations by their fields, shape (n,) each, and their ``calibration``: an
array of bytes."""

_COMPANIONS = ("r2", AVERAGE_PRECISION)
"""Metrics beside ``evaluation.metric``."""

_METRIC_NAMES = ("loss", "accuracy", "metric", *_COMPANIONS)
_CLIENT_FIELDS = {
    "priority_weight": "priority_weight",
    "num_examples": "num_examples",
    "training_loss": "loss",
    "held_out": "held_out",
}


def _build_columns(
    evaluations: Sequence[ClientEvaluation], split: str, hooks: Hooks
) -> EvaluationColumns:
    """Return the clients' facts, and their evaluations of a split."""
    names = _CLIENT_FIELDS | {"rows": f"{split}_num_examples"}
    names |= {name: f"{split}_{name}" for name in _METRIC_NAMES}
    columns = {
        name: np.array([getattr(e, field) for e in evaluations], dtype=np.float64)
        for name, field in names.items()
    }
    bins = [getattr(e, f"{split}_calibration") for e in evaluations]
    columns["calibration"] = np.array(bins, dtype=np.object_)
    clients = np.array([e.client for e in evaluations], dtype=np.int64)
    from_hooks = {
        name: PerClient.from_mapping(numbers).get_array(clients, np.nan)
        for name, numbers in hooks.columns.items()
    }
    return {**columns, **from_hooks}


def _select_rows(columns: EvaluationColumns, mask: BoolArray) -> EvaluationColumns:
    return {name: numbers[mask] for name, numbers in columns.items()}


def _summarize_group(
    columns: EvaluationColumns, metric: str, weight: FloatArray, report: GroupReport | None = None
) -> Mapping[str, float] | None:
    """Return weighted means of the metrics, and the spread of ``metric`` over clients.

    ``evaluated`` counts the clients, ``left_out`` those for which the metric is undefined.
    R2 is beside other metrics of predicted numbers, and average precision beside AUROC, over the
    clients that have it; so is the expected calibration error of classes, over all predictions of
    these clients. ``report`` adds numbers.
    """
    if not len(weight):
        return None
    values = _get_metric_values(columns, metric)
    is_defined = ~np.isnan(values)
    means = {
        name: weighted_mean(_get_metric_values(columns, name), weight)
        for name in ("loss", "accuracy")
    }
    means[metric] = weighted_mean(values[is_defined], weight[is_defined])
    for name in _COMPANIONS:
        has_number = ~np.isnan(columns[name])
        if has_number.any():
            means[name] = weighted_mean(columns[name][has_number], weight[has_number])
    bins = [one for one in columns["calibration"] if one]
    if bins:
        means[ECE] = add_bins(bins).ece
    # An unknown name, from the records of another version, counts as a fraction.
    higher_is_better = metric not in METRICS or METRICS[metric].higher_is_better
    return {
        **means,
        "evaluated": len(values),
        "left_out": int((~is_defined).sum()),
        **(
            compute_dispersion(values[is_defined], higher_is_better=higher_is_better)
            if is_defined.any()
            else {}
        ),
        **({} if report is None else report(columns)),
    }


def format_coverage(group: Mapping[str, float]) -> str:
    """Return "1 of 3 clients" if the metric of a group is undefined for some of them, else ""."""
    left_out, evaluated = group.get("left_out", 0), group.get("evaluated", math.nan)
    if not left_out > 0 or math.isnan(evaluated):
        return ""
    return f"{evaluated - left_out:.3g} of {evaluated:.3g} clients"


def _get_metric_values(columns: EvaluationColumns, metric: str) -> FloatArray:
    return columns[metric if metric in ("loss", "accuracy") else "metric"]
