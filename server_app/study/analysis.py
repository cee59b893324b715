"""Turn the scores of a study's runs into its result."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.records.client_names import NO_NAMES, ClientNames
from fedquorum.records.data_facts import get_constant_accuracy, suggest_metric
from fedquorum.records.reader import load_run
from fedquorum.rules.parameters import FloatRange

from client_app.data import FederatedData
from client_app.data.partitioned import PartitionedData
from conf.schema.data import CsvSettings
from server_app.runs.next_commands import format_override
from server_app.study.candidates import Candidate, MethodComparison, get_tuning_seeds
from server_app.study.caveats import (
    LastEvaluation,
    find_comparison_caveats,
    find_data_caveats,
    find_group_caveats,
    find_guessing_caveat,
    find_run_caveats,
    find_tuning_caveats,
    has_shared_rows,
    read_last_evaluations,
)
from server_app.study.jobs import StudyJobs
from server_app.study.paired_statistics import (
    MIN_SEEDS,
    Decision,
    decide_best_method,
    find_indistinguishable,
)
from server_app.study.result import BudgetUse, MethodResult, StudyResult
from server_app.study.scores import average_by_client, find_round_reaching
from server_app.study.settings import StudySettings
from server_app.study.text import describe_score_group


def build_study_result(
    comparison: MethodComparison,
    jobs: StudyJobs,
    study: StudySettings,
    *,
    overrides: Sequence[str],
    seeds: Sequence[int],
    data: tuple[FederatedData, FederatedData] | None,
) -> StudyResult:
    """Build the result of a study from its runs.

    Parameters
    ----------
    comparison : MethodComparison
        The methods with their trials and runs.
    jobs : StudyJobs
        The jobs and the budget.
    study : StudySettings
    overrides : sequence of str
        The settings that all runs share.
    seeds : sequence of int
        The seeds that all methods completed.
    data : tuple of FederatedData, optional
        The data of the tuning's and of the comparison's first seed; None on devices.
    """
    sign = 1.0 if comparison.higher_is_better else -1.0
    scores = {
        c.method.name: [sign * run.score for run in c.runs] for c in comparison.active_candidates
    }
    baseline = comparison.baseline.method.name
    min_effect = study.resolve_min_effect(
        comparison.metric_info, float(np.mean(scores[baseline] or [0.0]))
    )
    decision = None
    if len(seeds) >= MIN_SEEDS and len(scores) > 1:
        decision = decide_best_method(scores, baseline, min_effect, confidence=study.confidence)
    data_summary = _read_data_summary(comparison, jobs)
    caveats = _collect_caveats(comparison, jobs, min_effect, data, data_summary)
    return StudyResult(
        goal=study.goal_kind.value,
        data=_get_data_name(comparison),
        metric=comparison.metric,
        metric_key=f"test.{comparison.score}",
        decision=decision,
        not_distinguished=()
        if decision is None
        else find_indistinguishable(scores, decision, study.confidence),
        min_effect=min_effect,
        confidence=study.confidence,
        baseline=baseline,
        methods=(
            *(_build_method_result(comparison, candidate) for candidate in comparison.candidates),
            *(
                MethodResult(method.name, method.summary, method.overrides, left_out=reason)
                for method, reason in comparison.rejected.items()
            ),
        ),
        caveats=caveats,
        spent=_build_budget_use(jobs, decision, len(seeds)),
        tuning_seeds=get_tuning_seeds(comparison),
        command=_format_command(overrides, study, jobs),
        data_summary=data_summary,
    )


def _read_data_summary(comparison: MethodComparison, jobs: StudyJobs) -> Mapping[str, Any]:
    """Return how the baseline's first run interpreted its data; empty without runs."""
    if not comparison.baseline.runs:
        return {}
    return load_run(jobs.runner.directory / comparison.baseline.runs[0].folder).data


def _get_data_name(comparison: MethodComparison) -> str:
    """Return the name of the data file, or of the data set."""
    data = comparison.settings.data
    return Path(str(getattr(data, "path", ""))).name or data.name


def _build_method_result(comparison: MethodComparison, candidate: Candidate) -> MethodResult:
    baseline = comparison.baseline
    has_baseline = candidate is not baseline and not candidate.exclusion_reason
    return MethodResult(
        name=candidate.method.name,
        summary=candidate.method.summary,
        words=candidate.method.overrides,
        tuned=candidate.tuning.best_overrides,
        trials=tuple(candidate.tuning.trials),
        runs=tuple(candidate.runs),
        left_out=candidate.exclusion_reason,
        rounds_to_baseline=_average_rounds_to_baseline(comparison, candidate),
        worse_off=_compute_worse_off(comparison, candidate) if has_baseline else math.nan,
    )


def _average_rounds_to_baseline(comparison: MethodComparison, candidate: Candidate) -> float | None:
    """Return the mean rounds to the baseline's last score, or None if few runs reach it."""
    pairs = zip(candidate.runs, comparison.baseline.runs, strict=False)
    better = comparison.higher_is_better
    reached = [
        find_round_reaching(run.curve, baseline.score, higher_is_better=better)
        for run, baseline in pairs
    ]
    found = [number for number in reached if number is not None]
    return math.fsum(found) / len(found) if found and 2 * len(found) >= len(reached) else None


def _compute_gains(comparison: MethodComparison, candidate: Candidate) -> Mapping[int, float]:
    """Return each client's improvement of its metric over the baseline, by client."""
    sign = 1.0 if comparison.metric_info.higher_is_better else -1.0
    one, baseline = average_by_client(candidate.runs), average_by_client(comparison.baseline.runs)
    return {client: sign * (one[client] - baseline[client]) for client in one if client in baseline}


def _compute_worse_off(comparison: MethodComparison, candidate: Candidate) -> float:
    gains = _compute_gains(comparison, candidate)
    return sum(gain < 0 for gain in gains.values()) / len(gains) if gains else math.nan


def _collect_caveats(
    comparison: MethodComparison,
    jobs: StudyJobs,
    min_effect: float,
    data: tuple[FederatedData, FederatedData] | None,
    data_summary: Mapping[str, Any],
) -> tuple[str, ...]:
    """Collect the caveats of the result, those that may overturn it first."""
    results = [
        _build_method_result(comparison, candidate) for candidate in comparison.active_candidates
    ]
    spaces = [candidate.tuning.space for candidate in comparison.active_candidates]
    ranges = {
        key: (space.low, space.high, space.log)
        for space_of_method in spaces
        for key, space in space_of_method.items()
        if isinstance(space, FloatRange)
    }
    clients: tuple[LastEvaluation, ...] = ()
    names = NO_NAMES
    if comparison.baseline.runs:
        run = load_run(jobs.runner.directory / comparison.baseline.runs[0].folder)
        clients = read_last_evaluations(run, comparison.metric)
        names = run.client_names
    pooled = data is not None and _has_pooled_rows(comparison, data)
    return (
        *filter(None, [_check_guessing(comparison, results, min_effect, data, data_summary)]),
        *filter(None, [_describe_large_class(comparison, data_summary)]),
        *find_comparison_caveats(results, comparison.metric, min_effect, pooled=pooled),
        *(() if data is None else find_data_caveats(data[1], comparison.metric, names)),
        *_find_group_caveats(comparison, data, names),
        *find_run_caveats(clients, comparison.metric, names),
        *find_tuning_caveats(results, ranges),
    )


def _check_guessing(
    comparison: MethodComparison,
    results: Sequence[MethodResult],
    min_effect: float,
    data: tuple[FederatedData, FederatedData] | None,
    data_summary: Mapping[str, Any],
) -> str:
    """Return the caveat that no method beats guessing; the server of devices cannot check it."""
    if data is None or data[1].target != "class":
        return ""
    client_group, classes = describe_score_group(comparison.score), data[1].num_classes
    return find_guessing_caveat(
        results,
        client_group,
        comparison.metric,
        classes,
        min_effect,
        constant_accuracy=_get_constant_accuracy(comparison, data_summary),
    )


def _get_constant_accuracy(comparison: MethodComparison, data_summary: Mapping[str, Any]) -> float:
    """Return the score of always guessing the largest class, NaN if it is no mean accuracy."""
    group, _, number = comparison.score.partition(".")
    known = number == "accuracy" == comparison.metric
    return get_constant_accuracy(data_summary, group) if known else math.nan


def _describe_large_class(comparison: MethodComparison, data_summary: Mapping[str, Any]) -> str:
    """Return the caveat that one class has most rows, so that accuracy says little."""
    text = suggest_metric(data_summary, comparison.metric)
    return f"{text}." if text else ""


def _find_group_caveats(
    comparison: MethodComparison,
    data: tuple[FederatedData, FederatedData] | None,
    names: ClientNames,
) -> tuple[str, ...]:
    """Return the caveat that clients have few groups; the server of devices cannot check it."""
    column = getattr(comparison.settings.data, "group_column", None)
    if data is None or column is None or not isinstance(data[1], PartitionedData):
        return ()
    return find_group_caveats(data[1], column, comparison.metric, names)


def _has_pooled_rows(
    comparison: MethodComparison, data: tuple[FederatedData, FederatedData]
) -> bool:
    """Return whether every seed divides the same rows; for CSV, scaling hides equal rows."""
    settings = comparison.settings.data
    if isinstance(settings, CsvSettings):
        return not settings.has_fixed_test_rows
    return has_shared_rows(*data)


def _build_budget_use(jobs: StudyJobs, decision: Decision | None, seeds: int) -> BudgetUse:
    needed = MIN_SEEDS if decision is None else decision.seeds_to_decide
    extra = None if needed is None else (needed - seeds) * jobs.cost_per_seed
    budget = jobs.budget
    to_decide = None if extra is None else jobs.spent + extra
    return BudgetUse(budget.text, budget.unit, budget.amount, jobs.spent, to_decide)


def _format_command(overrides: Sequence[str], study: StudySettings, jobs: StudyJobs) -> str:
    output = format_override("output", jobs.runner.directory)
    return shlex.join(["fedquorum", "study", *overrides, *study.overrides, output])
