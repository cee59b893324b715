"""``fedquorum study``: tuning, paired seeds and an answer, within a budget."""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fedquorum.errors import SettingsError
from hydra.core.override_parser.types import Override
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from client_app.data import FederatedData, load_data
from conf import Settings
from server_app.job import EXIT_INTERRUPTED, SweepUnfinished
from server_app.resume import can_resume
from server_app.study.analysis import build_study_result
from server_app.study.candidates import (
    Candidate,
    MethodComparison,
    build_comparison,
    collect_common_overrides,
    get_tuning_seeds,
)
from server_app.study.jobs import BudgetExhaustedError, StudyJobs
from server_app.study.page import write_page
from server_app.study.paired_statistics import MIN_SEEDS
from server_app.study.pairing import collect_seed_runs, describe_excluded_clients, exclude_candidate
from server_app.study.progress import ProgressFile
from server_app.study.result import ScoreCurve, StudyResult
from server_app.study.scores import explain_missing_score, read_curve
from server_app.study.settings import Budget, StudySettings
from server_app.study.tables import print_result
from server_app.study.tuning import (
    NUM_FINALISTS,
    compute_generation_sizes,
    compute_num_runs,
    compute_rungs,
    compute_trial_cost,
    compute_tuning_budget,
)
from server_app.sweep_jobs import Job
from server_app.sweep_runner import JobRunner

MAX_TRIALS = 33
"""What a method is tried with at most: its settings' own values, and eight generations."""

RESERVE_FACTOR = 1.1
"""How much longer than the first runs those of the comparison may take, each."""


def run_study(
    config: DictConfig, launcher: Launcher, overrides: Sequence[Override], study: StudySettings
) -> None:
    """Run a study to its answer, or on with one that was interrupted.

    Parameters
    ----------
    config : DictConfig
        Hydra's settings, of which the runs' own are no part.
    launcher : Launcher
        What runs the jobs.
    overrides : sequence of Override
        The settings that all runs share.
    study : StudySettings
        What is asked.

    Raises
    ------
    SettingsError, RunError
        If the study cannot start, or its baseline fails.
    SweepUnfinished
        If it was interrupted.
    """
    words = collect_common_overrides(overrides)
    contest = build_comparison(words, study)
    budget = Budget.from_text(str(study.budget), contest.settings.rounds)
    rounds = sum(contender.settings.rounds for contender in contest.candidates)
    data = _load_data(contest)
    _check_budget(budget, rounds, contest, study.trials or 0)
    runner = JobRunner(config, launcher, setting="output")
    asked = {
        "settings": list(words),
        "methods": [contender.method.name for contender in contest.candidates],
        "metric_key": contest.score,
    }
    with runner.lock_folder():
        progress = ProgressFile(runner.directory, asked)
        jobs = StudyJobs(runner, progress, budget, rounds)
        _check_trials(study, progress)
        runner.say(_format_start_message(contest, runner))
        try:
            with runner.display:
                _tune(contest, jobs, study)
                seeds = _run_comparison(contest, jobs, study)
        except KeyboardInterrupt:
            raise SweepUnfinished(EXIT_INTERRUPTED, runner.directory) from None
        finally:
            progress.save()
        answer = build_study_result(contest, jobs, study, overrides=words, seeds=seeds, data=data)
        _write_result(answer, runner, contest.settings)


def _load_data(comparison: MethodComparison) -> tuple[FederatedData, FederatedData] | None:
    """Return the data of the first seeds of tuning and comparison, None where it is not here.

    Raises
    ------
    DataError
        If it is missing: before anything is run.
    """
    settings = comparison.settings
    if settings.engine.superlink is not None:
        return None
    first, second = get_tuning_seeds(comparison)
    return load_data(settings.data, first), load_data(settings.data, second + 1)


def _write_result(result: StudyResult, runner: JobRunner, settings: Settings) -> None:
    """Write the answer and its page, and print what they say."""
    runner.console.print()
    print_result(result, runner.console)
    written = (
        result.write(runner.directory),
        write_page(result, runner.directory, engine=settings.engine.name),
    )
    for path in written:
        runner.say(str(path))


def _check_budget(budget: Budget, rounds: int, comparison: MethodComparison, trials: int) -> None:
    """Refuse a budget that would not reach the fewest seeds; of time nobody knows."""
    methods = len(comparison.candidates)
    least = MIN_SEEDS + math.ceil(
        compute_num_runs(trials, compute_trial_cost(_get_rungs(comparison)))
    )
    if budget.unit == "rounds" and budget.amount < least * rounds:
        tuned = f" after {trials} trials" if trials else ""
        fewer = "trials=... and methods=[...] take" if trials else "methods=[...] takes"
        raise SettingsError(
            f"budget must be at least {least * methods}runs ({least * rounds}rounds: "
            f"{MIN_SEEDS} seeds of {methods} methods{tuned}), got {budget.text}; {fewer} fewer"
        )


def _check_trials(study: StudySettings, progress: ProgressFile) -> None:
    """Refuse another number of trials than the tuning had that this folder's comparison goes by."""
    done = progress.trials
    if None not in (study.trials, done) and study.trials != done:
        raise SettingsError(
            f"trials must stay at {done} once the tuning of a study is over, got {study.trials}; a "
            "new output=DIR tunes anew"
        )


def _format_start_message(comparison: MethodComparison, runner: JobRunner) -> str:
    names = ", ".join(contender.method.name for contender in comparison.candidates[1:])
    refused = (f"\nLeft out: {one.name} ({why})" for one, why in comparison.rejected.items())
    return (
        f"Study in {runner.directory}: {names} against {comparison.baseline.method.name}"
        f"{''.join(refused)}"
    )


def _tune(comparison: MethodComparison, jobs: StudyJobs, study: StudySettings) -> None:
    """Give every method the same number of trials, as far as the budget goes."""
    most = MAX_TRIALS if study.trials is None else study.trials
    planned, done, cost = jobs.progress.trials, 0, compute_trial_cost(_get_rungs(comparison))
    for size in compute_generation_sizes(most if planned is None else planned):
        if planned is None and study.trials is None and not _can_afford(jobs, cost, size, done):
            break
        before = jobs.spent
        try:
            _run_generation(comparison, jobs, size)
        except BudgetExhaustedError:
            return
        done += size
        if jobs.progress.once is None:
            jobs.progress.save(once=jobs.spent - before)
        jobs.print_progress(f"{done} of the tuning's trials of each method")
    if planned is None:
        jobs.progress.save(trials=done)
    with suppress(BudgetExhaustedError):
        _run_finalists(comparison, jobs)


def _run_finalists(comparison: MethodComparison, jobs: StudyJobs) -> None:
    """Run each method's finalists with the second seed of the tuning, where there is a choice."""
    _, second = get_tuning_seeds(comparison)
    finals = {
        contender.method: {
            trial.words: _get_job(contender, jobs, trial.words, second)
            for trial in contender.tuning.finalists
        }
        for contender in comparison.active_candidates
        if len(contender.tuning.finalists) > 1
    }
    jobs.run([job for of_method in finals.values() for job in of_method.values()])
    for contender in comparison.active_candidates:
        again = {
            values: _get_last_score(_read_validation_curve(job, comparison.score))
            for values, job in finals.get(contender.method, {}).items()
        }
        contender.tuning.add_second_scores(again)


def _get_last_score(curve: ScoreCurve | None) -> float | None:
    return curve[-1][1] if curve else None


def _get_rungs(comparison: MethodComparison) -> tuple[int, ...]:
    """Return after which rounds trials are compared."""
    return compute_rungs(comparison.settings.rounds, comparison.settings.evaluation.every)


def _can_afford(jobs: StudyJobs, cost: float, size: int, done: int) -> bool:
    """Say whether a generation of trials of this cost fits into the tuning's part of the budget."""
    if done == 0:
        return jobs.budget.unit == "seconds" or jobs.budget.amount >= jobs.cost_per_seed * (
            MIN_SEEDS + 1
        )
    share = compute_tuning_budget(
        jobs.budget.amount, jobs.spent, jobs.cost_per_seed, MIN_SEEDS * RESERVE_FACTOR
    )
    return share >= jobs.cost_per_seed * (size * cost + NUM_FINALISTS)


def _run_generation(comparison: MethodComparison, jobs: StudyJobs, size: int) -> None:
    """Run the next trials of every method, rung by rung."""
    settings = comparison.settings
    for contender in comparison.active_candidates:
        contender.tuning.start_generation(size)
    for after in _get_rungs(comparison):
        live = {
            contender.method: {
                values: replace(
                    _get_job(contender, jobs, values, settings.seed),
                    stop_after=_get_stop_round(contender, after),
                )
                for values in contender.tuning.list_active()
            }
            for contender in comparison.active_candidates
        }
        jobs.run([job for of_method in live.values() for job in of_method.values()])
        for contender in comparison.active_candidates:
            curves = {
                values: _read_validation_curve(job, comparison.score)
                for values, job in live[contender.method].items()
            }
            contender.tuning.report_scores(after, curves, last=after == settings.rounds)
    for contender in comparison.active_candidates:
        contender.tuning.finish_generation()
        if contender.tuning.best is None:
            first = _get_job(contender, jobs, (), settings.seed)
            exclude_candidate(
                comparison, contender, first, _explain_failure(first, comparison, "validation")
            )


def _get_stop_round(candidate: Candidate, after: int) -> int:
    """Return the round after which a trial is left for now.

    One whose run cannot go on is not left before its end: of it, less is known to be pruned by.
    """
    return after if can_resume(candidate.settings) else candidate.settings.rounds


def _explain_failure(job: Job, comparison: MethodComparison, split: str) -> str:
    """Return why a job has no score."""
    state = job.read_state()
    if state.status in ("failed", "died"):
        return state.reason
    return explain_missing_score(job.directory, split, comparison.score, comparison.metric)


def _get_job(candidate: Candidate, jobs: StudyJobs, values: Sequence[str], seed: int) -> Job:
    words = (*candidate.overrides, *values, f"seed={seed}")
    return jobs.get_job(words, " ".join((candidate.method.name, *values, f"seed={seed}")))


def _read_validation_curve(job: Job, score: str) -> ScoreCurve | None:
    """Return a trial's scores on validation parts so far, None if it failed."""
    if job.read_state().status != "completed":
        return None
    return read_curve(job.directory, "validation", score)


def _run_comparison(
    comparison: MethodComparison, jobs: StudyJobs, study: StudySettings
) -> list[int]:
    """Run the tuned methods, seed by seed, and return the seeds that all of them have.

    The budget decides how many these are, never what they say: whoever stops when a difference
    looks large finds one where there is none.
    """
    seeds: list[int] = []
    for seed in itertools.count(get_tuning_seeds(comparison)[-1] + 1):
        if len(seeds) == study.seeds:
            break
        of_seed = {
            contender.method: _get_job(contender, jobs, contender.tuning.best_overrides, seed)
            for contender in comparison.active_candidates
        }
        todo = jobs.select_pending(list(of_seed.values()))
        enough = len(seeds) >= MIN_SEEDS
        if todo and enough and jobs.spent + jobs.cost_per_seed > jobs.budget.amount:
            break
        before = jobs.spent
        try:
            jobs.run(todo)
        except BudgetExhaustedError:
            break
        collect_seed_runs(comparison, of_seed, jobs)
        seeds.append(seed)
        if len(todo) == len(of_seed):
            jobs.progress.save(once=jobs.spent - before)
        if todo:
            number = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
            jobs.print_progress(
                f"{number} compared{describe_excluded_clients(comparison, of_seed)}"
            )
    return seeds
