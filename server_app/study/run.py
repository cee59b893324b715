"""Run a study: tune, compare over paired seeds and analyze, within a budget."""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fedquorum.errors import SettingsError
from fedquorum.rng import derive_seed
from fedquorum.rules.decisions import PERSONAL_MODELS
from hydra.core.override_parser.types import Override
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from client_app.data import FederatedData, load_data
from conf import Settings
from server_app.runs.job import EXIT_INTERRUPTED, SweepUnfinished
from server_app.runs.resume import can_resume
from server_app.study.analysis import build_study_result
from server_app.study.candidates import (
    REASON_FOR_AUROC,
    Candidate,
    MethodComparison,
    build_comparison,
    choose_metric,
    collect_common_overrides,
    get_tuning_seeds,
)
from server_app.study.jobs import BudgetExhaustedError, StudyJobs
from server_app.study.looks import Look, add_look
from server_app.study.page import write_page
from server_app.study.paired_statistics import MIN_SEEDS
from server_app.study.pairing import (
    collect_restarted_run,
    collect_seed_runs,
    describe_excluded_clients,
    exclude_candidate,
)
from server_app.study.progress import ProgressFile
from server_app.study.result import ScoreCurve, StudyResult
from server_app.study.rivals import build_rival_overrides, can_have_rivals
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
from server_app.sweeps.jobs import Job
from server_app.sweeps.runner import JobRunner

MAX_TRIALS = 33
"""The maximum number of trials of a method: the settings' values and eight generations."""

RESERVE_FACTOR = 1.1
"""The allowed ratio of the duration of a comparison's run to that of the first runs."""


def run_study(
    config: DictConfig, launcher: Launcher, overrides: Sequence[Override], study: StudySettings
) -> None:
    """Run a study to its result, or resume an interrupted one.

    Parameters
    ----------
    config : DictConfig
        Hydra's settings, without those of the runs.
    launcher : Launcher
        The launcher that runs the jobs.
    overrides : sequence of Override
        The overrides that all runs share.
    study : StudySettings

    Raises
    ------
    SettingsError, RunError
        If the study cannot start, or its baseline fails.
    SweepUnfinished
        If the study was interrupted.
    """
    common_overrides = collect_common_overrides(overrides)
    comparison = build_comparison(common_overrides, study)
    budget = Budget.from_text(str(study.budget), comparison.settings.rounds)
    rounds = sum(candidate.settings.rounds for candidate in comparison.candidates)
    data = _load_data(comparison)
    chosen = () if data is None else choose_metric(common_overrides, comparison, study, data[0])
    if chosen:
        common_overrides += chosen
        comparison = build_comparison(common_overrides, study)
    budget_max = _parse_max_budget(study, budget, comparison.settings.rounds)
    _check_budget(budget, rounds, comparison, study.trials or 0)
    runner = JobRunner(config, launcher, setting="output")
    identity = {
        "settings": list(common_overrides),
        "methods": [candidate.method.name for candidate in comparison.candidates],
        "metric_key": comparison.score,
        "personal": str(study.personal).lower(),
        # Chosen after a look, it would choose the verdict.
        "confidence": study.confidence,
    }
    with runner.lock_folder():
        progress = ProgressFile(runner.directory, identity)
        jobs = StudyJobs(runner, progress, budget, rounds)
        _check_trials(study, progress)
        _check_seeds(study, progress)
        runner.say(_format_start_message(comparison, runner))
        if chosen:
            runner.say(f"AUROC decides, and average precision is beside it: {REASON_FOR_AUROC}")
        try:
            with runner.display:
                _tune(comparison, jobs, study)
                seeds, skipped = _run_comparison(comparison, jobs, study)
        except KeyboardInterrupt:
            raise SweepUnfinished(EXIT_INTERRUPTED, runner.directory) from None
        finally:
            progress.save()
        looks = _add_look(jobs, study, budget_max, len(seeds))
        result = build_study_result(
            comparison,
            jobs,
            study,
            overrides=common_overrides,
            seeds=seeds,
            skipped_seeds=skipped,
            data=data,
            looks=looks,
            is_metric_chosen=bool(chosen),
        )
        _write_result(result, runner, comparison.settings)


def _parse_max_budget(study: StudySettings, budget: Budget, rounds: int) -> Budget:
    """Return ``budget_max``, by default the budget.

    Raises
    ------
    SettingsError
        If it is smaller than the budget, or in time where the budget is in runs.
    """
    if study.budget_max is None:
        return budget
    found = Budget.from_text(str(study.budget_max), rounds)
    if found.unit != budget.unit or found.amount < budget.amount:
        kind = "s, min or h" if budget.unit == "seconds" else "runs or rounds"
        raise SettingsError(
            f"budget_max must be a number with {kind} and no less than budget={budget.text}, got "
            f"{study.budget_max}"
        )
    return found


def _add_look(
    jobs: StudyJobs, study: StudySettings, budget_max: Budget, seeds: int
) -> tuple[Look, ...]:
    """Note a look at the scores of these seeds; return all looks, none with too few seeds.

    The look is noted before anybody sees its result, so that a second command cannot repeat it.
    """
    if seeds < MIN_SEEDS:
        return ()
    more = (budget_max.amount - jobs.spent) / jobs.cost_per_seed if jobs.cost_per_seed else 0.0
    planned = seeds + max(0, int(more))
    if study.seeds is not None:
        planned = max(seeds, min(planned, study.seeds))
    looks = add_look(jobs.progress.looks, seeds, planned)
    jobs.progress.save(looks=looks)
    return looks


def _load_data(comparison: MethodComparison) -> tuple[FederatedData, FederatedData] | None:
    """Load the data of the first seeds of tuning and comparison, or None for data on devices.

    Raises
    ------
    DataError
        If the data is missing, before any run starts.
    """
    settings = comparison.settings
    if settings.engine.superlink is not None:
        return None
    first, second = get_tuning_seeds(comparison)
    return load_data(settings.data, first), load_data(settings.data, second + 1)


def _write_result(result: StudyResult, runner: JobRunner, settings: Settings) -> None:
    """Write the result and its page, and print them."""
    runner.console.print()
    print_result(result, runner.console)
    written = (
        result.write(runner.directory),
        write_page(result, runner.directory, engine=settings.engine.name),
    )
    for path in written:
        runner.say(str(path))


def _check_budget(budget: Budget, rounds: int, comparison: MethodComparison, trials: int) -> None:
    """Refuse a budget in rounds that cannot reach the minimum number of seeds."""
    methods = len(comparison.candidates)
    min_runs = MIN_SEEDS + math.ceil(
        compute_num_runs(trials, compute_trial_cost(_get_rungs(comparison)))
    )
    min_rounds = min_runs * rounds + comparison.settings.rounds
    if budget.unit == "rounds" and budget.amount < min_rounds:
        tuned = f" after {trials} trials" if trials else ""
        fewer = "trials=... and methods=[...] take" if trials else "methods=[...] takes"
        raise SettingsError(
            f"budget must be at least {min_runs * methods + 1}runs ({min_rounds}rounds: "
            f"{MIN_SEEDS} seeds of {methods} methods{tuned}, and the baseline with another "
            f"start), got {budget.text}; {fewer} fewer"
        )


def _check_trials(study: StudySettings, progress: ProgressFile) -> None:
    """Refuse to change ``trials`` after the comparison has started."""
    done = progress.trials
    if None not in (study.trials, done) and study.trials != done:
        raise SettingsError(
            f"trials must stay at {done} after the tuning of a study, got {study.trials}; a "
            "new output=DIR tunes again"
        )


def _check_seeds(study: StudySettings, progress: ProgressFile) -> None:
    """Refuse fewer seeds than the study has looked at: they would be a look without a level."""
    seen = progress.looks[-1].seeds if progress.looks else 0
    if study.seeds is not None and study.seeds < seen:
        raise SettingsError(
            f"seeds must be at least {seen}, which the study has compared already, got "
            f"{study.seeds}; a new output=DIR compares fewer"
        )


def _format_start_message(comparison: MethodComparison, runner: JobRunner) -> str:
    names = ", ".join(candidate.method.name for candidate in comparison.candidates[1:])
    rejected = (f"\nLeft out: {one.name} ({reason})" for one, reason in comparison.rejected.items())
    return (
        f"Study in {runner.directory}: {names} against {comparison.baseline.method.name}"
        f"{''.join(rejected)}"
    )


def _tune(comparison: MethodComparison, jobs: StudyJobs, study: StudySettings) -> None:
    """Run the same number of trials for every method, as many as the budget allows."""
    max_trials = MAX_TRIALS if study.trials is None else study.trials
    planned, done, cost = jobs.progress.trials, 0, compute_trial_cost(_get_rungs(comparison))
    for size in compute_generation_sizes(max_trials if planned is None else planned):
        if (
            planned is None
            and study.trials is None
            and not _can_afford(jobs, cost, size, done, restart=comparison.settings.rounds)
        ):
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
    """Run each method's finalists with the second seed of the tuning, if it has several."""
    _, second = get_tuning_seeds(comparison)
    final_jobs = {
        candidate.method: {
            trial.words: _get_job(candidate, jobs, trial.words, second)
            for trial in candidate.tuning.finalists
        }
        for candidate in comparison.active_candidates
        if len(candidate.tuning.finalists) > 1
    }
    jobs.run([job for by_values in final_jobs.values() for job in by_values.values()])
    for candidate in comparison.active_candidates:
        second_scores = {
            values: _get_last_score(_read_validation_curve(job, comparison.score))
            for values, job in final_jobs.get(candidate.method, {}).items()
        }
        candidate.tuning.add_second_scores(second_scores)


def _get_last_score(curve: ScoreCurve | None) -> float | None:
    return curve[-1][1] if curve else None


def _get_rungs(comparison: MethodComparison) -> tuple[int, ...]:
    """Return the rounds after which trials are compared."""
    rounds, every = comparison.settings.rounds, comparison.settings.evaluation.every
    assert every is not None, "a study with evaluations by time alone is refused"
    is_last = comparison.score.partition(".")[0] in PERSONAL_MODELS  # evaluated once
    return compute_rungs(rounds, rounds if is_last else every)


def _can_afford(jobs: StudyJobs, cost: float, size: int, done: int, *, restart: int) -> bool:
    """Return whether a generation of trials of this cost fits into the tuning's budget."""
    if done == 0:
        needed = jobs.cost_per_seed * (MIN_SEEDS + 1) + restart
        return jobs.budget.unit == "seconds" or jobs.budget.amount >= needed
    available = compute_tuning_budget(
        jobs.budget.amount, jobs.spent, jobs.cost_per_seed, MIN_SEEDS * RESERVE_FACTOR
    )
    return available >= jobs.cost_per_seed * (size * cost + NUM_FINALISTS)


def _run_generation(comparison: MethodComparison, jobs: StudyJobs, size: int) -> None:
    """Run the next trials of every method, rung by rung."""
    settings = comparison.settings
    for candidate in comparison.active_candidates:
        candidate.tuning.start_generation(size)
    for after in _get_rungs(comparison):
        active_jobs = {
            candidate.method: {
                values: replace(
                    _get_job(candidate, jobs, values, settings.seed),
                    stop_after=_get_stop_round(candidate, after),
                )
                for values in candidate.tuning.list_active()
            }
            for candidate in comparison.active_candidates
        }
        jobs.run([job for by_values in active_jobs.values() for job in by_values.values()])
        for candidate in comparison.active_candidates:
            curves = {
                values: _read_validation_curve(job, comparison.score)
                for values, job in active_jobs[candidate.method].items()
            }
            candidate.tuning.report_scores(after, curves, last=after == settings.rounds)
    for candidate in comparison.active_candidates:
        candidate.tuning.finish_generation()
        if candidate.tuning.best is None:
            first = _get_job(candidate, jobs, (), settings.seed)
            exclude_candidate(
                comparison, candidate, first, _explain_failure(first, comparison, "validation")
            )


def _get_stop_round(candidate: Candidate, after: int) -> int:
    """Return the round after which a trial pauses at a rung.

    A run that cannot be resumed does not pause before its end.
    """
    return after if can_resume(candidate.settings) else candidate.settings.rounds


def _explain_failure(job: Job, comparison: MethodComparison, split: str) -> str:
    """Return the reason why a job has no score."""
    state = job.read_state()
    if state.status in ("failed", "died"):
        return state.reason
    return explain_missing_score(job.directory, split, comparison.score, comparison.metric)


def _get_job(
    candidate: Candidate,
    jobs: StudyJobs,
    values: Sequence[str],
    seed: int,
    *,
    further: Sequence[str] = (),
) -> Job:
    overrides = (*candidate.overrides, *values, *further, f"seed={seed}")
    return jobs.get_job(overrides, " ".join((candidate.method.name, *values, f"seed={seed}")))


def _read_validation_curve(job: Job, score: str) -> ScoreCurve | None:
    """Read a trial's scores on validation splits so far, or None if it failed."""
    if job.read_state().status != "completed":
        return None
    return read_curve(job.directory, "validation", score)


def _run_comparison(
    comparison: MethodComparison, jobs: StudyJobs, study: StudySettings
) -> tuple[list[int], dict[int, str]]:
    """Run the tuned methods seed by seed, and return the seeds that all of them completed.

    Only the budget decides their number, never the scores: stopping at a large difference would
    find differences that do not exist. Beside them are the seeds in which the baseline has no
    score, with the reason.

    Raises
    ------
    RunError
        If the baseline has no score in most seeds.
    """
    seeds: list[int] = []
    has_rivals = study.personal and can_have_rivals(comparison)
    rivals = build_rival_overrides(comparison.settings) if has_rivals else ()
    skipped: dict[int, str] = {}
    for seed in itertools.count(get_tuning_seeds(comparison)[-1] + 1):
        if len(seeds) == study.seeds:
            break
        seed_jobs = {
            candidate.method: _get_job(
                candidate,
                jobs,
                candidate.tuning.best_overrides,
                seed,
                further=rivals if candidate is comparison.baseline else (),
            )
            for candidate in comparison.active_candidates
        }
        todo = jobs.select_pending(list(seed_jobs.values()))
        has_min_seeds = len(seeds) >= MIN_SEEDS
        if todo and has_min_seeds and jobs.spent + jobs.cost_per_seed > jobs.budget.amount:
            break
        before = jobs.spent
        try:
            jobs.run(todo)
        except BudgetExhaustedError:
            break
        if problem := collect_seed_runs(comparison, seed_jobs, jobs):
            skipped[seed] = problem
            if len(skipped) > len(seeds) + 1:
                baseline = comparison.baseline
                exclude_candidate(comparison, baseline, seed_jobs[baseline.method], problem)
            continue
        seeds.append(seed)
        if len(todo) == len(seed_jobs):
            jobs.progress.save(once=jobs.spent - before)
        if len(seeds) == 1:
            _restart_baseline(comparison, jobs, seed)
        if todo:
            number = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
            jobs.print_progress(
                f"{number} compared{describe_excluded_clients(comparison, seed_jobs)}"
            )
    return seeds, skipped


def _restart_baseline(comparison: MethodComparison, jobs: StudyJobs, seed: int) -> None:
    """Run the baseline with the data of a seed, but another start.

    The clients that it leaves worse off are so by chance.
    """
    baseline, data_seed = comparison.baseline, comparison.settings.data.seed
    job = _get_job(
        baseline,
        jobs,
        baseline.tuning.best_overrides,
        derive_seed(seed, "restart"),
        further=(f"data.seed={seed if data_seed is None else data_seed}",),
    )
    with suppress(BudgetExhaustedError):
        jobs.run([job])
    collect_restarted_run(comparison, job, jobs)
