"""Turn the scores of a study's runs into its result."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.records.client_names import NO_NAMES, ClientNames
from fedquorum.records.data_facts import suggest_metric
from fedquorum.records.reader import load_run
from fedquorum.rules.parameters import FloatRange

from client_app.data import FederatedData, load_data
from client_app.data.partitioned import PartitionedData
from client_app.data.seed_draws import SeedDraws, assume_seed_draws, find_seed_draws
from server_app.runs.next_commands import format_override
from server_app.study.candidates import Candidate, MethodComparison, get_tuning_seeds
from server_app.study.caveats import (
    LastEvaluation,
    find_comparison_caveats,
    find_data_caveats,
    find_group_caveats,
    find_run_caveats,
    find_seed_caveats,
    find_tuning_caveats,
    read_last_evaluations,
)
from server_app.study.guessing import can_guess, score_guessing
from server_app.study.jobs import StudyJobs
from server_app.study.looks import Look, compute_look_confidence, compute_next_confidence
from server_app.study.paired_statistics import (
    MIN_SEEDS,
    NUM_WEIGHT_SETS,
    Decision,
    decide_best_method,
    find_indistinguishable,
)
from server_app.study.result import BudgetUse, MethodResult, RivalComparison, StudyResult
from server_app.study.rivals import Decide, can_have_rivals, compare_rivals, describe_epochs
from server_app.study.row_weights import ResampledScores, resample_scores
from server_app.study.score_steps import compute_score_step
from server_app.study.scores import (
    compute_changed_fractions,
    find_round_reaching,
)
from server_app.study.settings import StudySettings

DEFAULT_TEST_FRACTION = 0.2
"""Of devices whose settings have none."""


def build_study_result(
    comparison: MethodComparison,
    jobs: StudyJobs,
    study: StudySettings,
    *,
    overrides: Sequence[str],
    seeds: Sequence[int],
    skipped_seeds: Mapping[int, str],
    data: tuple[FederatedData, FederatedData] | None,
    looks: Sequence[Look],
    is_metric_chosen: bool,
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
    skipped_seeds : mapping of int to str
        The seeds in which the baseline has no score, with the reason.
    data : tuple of FederatedData, optional
        The data of the tuning's and of the comparison's first seed; None on devices.
    looks : sequence of Look
        The looks at the scores, this one last; empty with too few seeds for a verdict.
    is_metric_chosen : bool
        Whether the study chose the metric, and not the user.
    """
    sign = 1.0 if comparison.higher_is_better else -1.0
    scores = {
        c.method.name: [sign * run.score for run in c.runs] for c in comparison.active_candidates
    }
    baseline = comparison.baseline.method.name
    min_effect = study.resolve_min_effect(
        comparison.metric_info, float(np.mean(scores[baseline] or [0.0]))
    )
    draws = _find_seed_draws(comparison, data)
    decision, confidence = None, study.confidence
    guessing: tuple[float, ...] = ()
    step = 0.0
    resampled = ResampledScores({}, "" if draws.draws_rows else "devices show no rows")
    if looks:
        step = compute_score_step(
            jobs.runner.directory / comparison.baseline.runs[0].folder,
            comparison.score,
            comparison.metric,
            None if data is None else data[1],
        )
        guessing = _score_guessing(comparison, jobs) if data is not None else ()
        if data is not None and not draws.draws_rows:
            resampled = resample_scores(
                comparison, jobs.runner.directory, has_guessing=bool(guessing)
            )
        ratio = draws.correction
        confidence = compute_look_confidence(looks, study.confidence, ratio)
        if len(scores) > 1:
            decision = decide_best_method(
                scores,
                baseline,
                min_effect,
                confidence=confidence,
                test_to_train=ratio,
                next_confidence=compute_next_confidence(looks, study.confidence, ratio),
                guessing=[sign * score for score in guessing],
                resampled=resampled.scores,
                step=step,
            )
    rivals = None
    if study.personal and can_have_rivals(comparison):

        def decide(scores: Mapping[str, Sequence[float]], reference: str) -> Decision:
            return decide_best_method(
                scores,
                reference,
                min_effect,
                confidence=confidence,
                test_to_train=draws.correction,
                step=step,
            )

        rivals = _compare_rivals(comparison, jobs, decide, min_effect, has_seeds=bool(looks))
    data_summary = _read_data_summary(comparison, jobs)
    caveats = _collect_caveats(
        comparison,
        jobs,
        min_effect,
        data,
        data_summary=data_summary,
        draws=draws,
        unknown_rows=resampled.problem,
        has_rivals=rivals is not None,
    )
    return StudyResult(
        goal=study.goal_kind.value,
        data=_get_data_name(comparison),
        metric=comparison.metric,
        metric_key=f"test.{comparison.score}",
        is_metric_chosen=is_metric_chosen,
        decision=decision,
        guessing=guessing,
        seed_draws=draws,
        row_weights=NUM_WEIGHT_SETS if resampled.scores else 0,
        looks=tuple(looks),
        not_distinguished=()
        if decision is None
        else find_indistinguishable(
            scores, decision, confidence, draws.correction, resampled.scores, step=step
        ),
        min_effect=min_effect,
        confidence=confidence,
        baseline=baseline,
        methods=(
            *(
                _build_method_result(comparison, candidate, min_effect)
                for candidate in comparison.candidates
            ),
            *(
                MethodResult(method.name, method.summary, method.overrides, left_out=reason)
                for method, reason in comparison.rejected.items()
            ),
        ),
        caveats=(*caveats, *find_seed_caveats(skipped_seeds, baseline)),
        spent=_build_budget_use(jobs, decision, len(seeds)),
        tuning_seeds=get_tuning_seeds(comparison),
        command=_format_command(overrides, study, jobs),
        data_summary=data_summary,
        rivals=rivals,
    )


def _compare_rivals(
    comparison: MethodComparison,
    jobs: StudyJobs,
    decide: Decide,
    min_effect: float,
    *,
    has_seeds: bool,
) -> RivalComparison:
    """Compare the methods with personal models, a second family of comparisons."""
    found, rivals = compare_rivals(comparison, jobs.runner.directory, decide, has_seeds=has_seeds)
    methods = (
        replace(
            _build_method_result(comparison, rival, min_effect),
            tuned=(describe_epochs(rival.runs),),
            trials=(),
        )
        for rival in rivals
    )
    return replace(found, methods=tuple(methods))


def _read_data_summary(comparison: MethodComparison, jobs: StudyJobs) -> Mapping[str, Any]:
    """Return how the baseline's first run interpreted its data; empty without runs."""
    if not comparison.baseline.runs:
        return {}
    return load_run(jobs.runner.directory / comparison.baseline.runs[0].folder).data


def _get_data_name(comparison: MethodComparison) -> str:
    """Return the name of the data file, or of the data set."""
    data = comparison.settings.data
    return Path(str(getattr(data, "path", ""))).name or data.name


def _build_method_result(
    comparison: MethodComparison, candidate: Candidate, min_effect: float
) -> MethodResult:
    baseline = comparison.baseline
    runs = [] if candidate.exclusion_reason else candidate.runs
    if candidate is baseline:
        runs = [] if baseline.restarted is None else [baseline.restarted]
    sign = 1.0 if comparison.metric_info.higher_is_better else -1.0
    worse_off, better_off = compute_changed_fractions(runs, baseline.runs, sign, min_effect)
    return MethodResult(
        name=candidate.method.name,
        summary=candidate.method.summary,
        words=candidate.method.overrides,
        tuned=candidate.tuning.best_overrides,
        trials=tuple(candidate.tuning.trials),
        runs=tuple(candidate.runs),
        left_out=candidate.exclusion_reason,
        rounds_to_baseline=_average_rounds_to_baseline(comparison, candidate),
        worse_off=worse_off,
        better_off=better_off,
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


def _collect_caveats(
    comparison: MethodComparison,
    jobs: StudyJobs,
    min_effect: float,
    data: tuple[FederatedData, FederatedData] | None,
    *,
    data_summary: Mapping[str, Any],
    draws: SeedDraws,
    unknown_rows: str,
    has_rivals: bool,
) -> tuple[str, ...]:
    """Collect the caveats of the result, those that may overturn it first."""
    results = [
        _build_method_result(comparison, candidate, min_effect)
        for candidate in comparison.active_candidates
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
    return (
        *filter(None, [_describe_large_class(comparison, data_summary)]),
        *find_comparison_caveats(results, comparison.metric, min_effect, draws, unknown_rows),
        *(() if data is None else find_data_caveats(data[1], comparison.metric, names)),
        *_find_group_caveats(comparison, data, names),
        *find_run_caveats(
            clients,
            comparison.metric,
            names,
            is_tuned=has_rivals or any(method.trials for method in results),
        ),
        *find_tuning_caveats(results, ranges),
    )


def _find_seed_draws(
    comparison: MethodComparison, data: tuple[FederatedData, FederatedData] | None
) -> SeedDraws:
    """Return what a seed draws anew; of devices, whose rows nobody else sees, what they may draw.

    Devices that have test rows of their own, which every seed tests, are then taken for devices
    that split their rows: their intervals are wider than they could be.
    """
    if data is not None:
        return find_seed_draws(*data)
    settings = comparison.settings.data
    has_fixed_rows = any(getattr(settings, key, None) for key in ("test_path", "order_column"))
    test_fraction = getattr(settings, "test_fraction", DEFAULT_TEST_FRACTION)
    return assume_seed_draws(
        test_fraction,
        settings.validation_fraction,
        train_rows=settings.seed is None,
        test_rows=settings.seed is None and not has_fixed_rows,
    )


def _score_guessing(comparison: MethodComparison, jobs: StudyJobs) -> tuple[float, ...]:
    """Return the score of guessing in each seed; empty if it is not defined in one of them."""
    settings = comparison.settings.data
    scores = []
    for run in comparison.baseline.runs:
        data = load_data(settings, run.seed)
        if not can_guess(data, comparison.metric):
            return ()
        directory = jobs.runner.directory / run.folder
        scores.append(
            score_guessing(directory, data, comparison.score, comparison.metric, run.seed)
        )
    return () if any(math.isnan(score) for score in scores) else tuple(scores)


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


def _build_budget_use(jobs: StudyJobs, decision: Decision | None, seeds: int) -> BudgetUse:
    needed = MIN_SEEDS if decision is None else decision.seeds_to_decide
    extra = None if needed is None else (needed - seeds) * jobs.cost_per_seed
    budget = jobs.budget
    to_decide = None if extra is None else jobs.spent + extra
    return BudgetUse(budget.text, budget.unit, budget.amount, jobs.spent, to_decide)


def _format_command(overrides: Sequence[str], study: StudySettings, jobs: StudyJobs) -> str:
    output = format_override("output", jobs.runner.directory)
    return shlex.join(["fedquorum", "study", *overrides, *study.overrides, output])
