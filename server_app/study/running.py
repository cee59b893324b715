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
from server_app.resuming import can_be_resumed
from server_app.study.answer import Answer, Curve
from server_app.study.answering import answer_of
from server_app.study.contenders import Contender, Contest, common_words, contest_of, tuning_seeds
from server_app.study.decision import FEWEST_SEEDS
from server_app.study.jobs import BudgetSpentError, StudyJobs
from server_app.study.page import write_page
from server_app.study.pairing import leave_out, not_counted, take_seed
from server_app.study.progress import ProgressFile
from server_app.study.scores import curve_of, no_score
from server_app.study.settings import Budget, StudySettings
from server_app.study.tables import print_answer
from server_app.study.tuning import (
    FINALISTS,
    equal_share,
    generations,
    rungs,
    runs_of,
    trial_cost,
)
from server_app.sweep_jobs import Job
from server_app.sweep_runner import JobRunner

MOST_TRIALS = 33
"""What a method is tried with at most: its settings' own values, and eight generations."""

RESERVE = 1.1
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
    words = common_words(overrides)
    contest = contest_of(words, study)
    budget = Budget.of(str(study.budget), contest.settings.rounds)
    rounds = sum(contender.settings.rounds for contender in contest.contenders)
    data = _data(contest)
    _check_budget(budget, rounds, contest, study.trials or 0)
    runner = JobRunner(config, launcher, setting="output")
    asked = {
        "settings": list(words),
        "methods": [contender.method.name for contender in contest.contenders],
        "metric_key": contest.score,
    }
    with runner.held():
        progress = ProgressFile(runner.directory, asked)
        jobs = StudyJobs(runner, progress, budget, rounds)
        _check_trials(study, progress)
        runner.say(_begun(contest, runner))
        try:
            with runner.display:
                _tune(contest, jobs, study)
                seeds = _compare(contest, jobs, study)
        except KeyboardInterrupt:
            raise SweepUnfinished(EXIT_INTERRUPTED, runner.directory) from None
        finally:
            progress.save()
        answer = answer_of(contest, jobs, study, words=words, seeds=seeds, data=data)
        _tell(answer, runner, contest.settings)


def _data(contest: Contest) -> tuple[FederatedData, FederatedData] | None:
    """Return the data of the first seeds of tuning and comparison, None where it is not here.

    Raises
    ------
    DataError
        If it is missing: before anything is run.
    """
    settings = contest.settings
    if settings.engine.superlink is not None:
        return None
    first, second = tuning_seeds(contest)
    return load_data(settings.data, first), load_data(settings.data, second + 1)


def _tell(answer: Answer, runner: JobRunner, settings: Settings) -> None:
    """Write the answer and its page, and print what they say."""
    runner.console.print()
    print_answer(answer, runner.console)
    written = (
        answer.write(runner.directory),
        write_page(answer, runner.directory, engine=settings.engine.name),
    )
    for path in written:
        runner.say(str(path))


def _check_budget(budget: Budget, rounds: int, contest: Contest, trials: int) -> None:
    """Refuse a budget that would not reach the fewest seeds; of time nobody knows."""
    methods = len(contest.contenders)
    least = FEWEST_SEEDS + math.ceil(runs_of(trials, trial_cost(_rungs(contest))))
    if budget.unit == "rounds" and budget.amount < least * rounds:
        tuned = f" after {trials} trials" if trials else ""
        fewer = "trials=... and methods=[...] take" if trials else "methods=[...] takes"
        raise SettingsError(
            f"budget must be at least {least * methods}runs ({least * rounds}rounds: "
            f"{FEWEST_SEEDS} seeds of {methods} methods{tuned}), got {budget.text}; {fewer} fewer"
        )


def _check_trials(study: StudySettings, progress: ProgressFile) -> None:
    """Refuse another number of trials than the tuning had that this folder's comparison goes by."""
    done = progress.trials
    if None not in (study.trials, done) and study.trials != done:
        raise SettingsError(
            f"trials must stay at {done} once the tuning of a study is over, got {study.trials}; a "
            "new output=DIR tunes anew"
        )


def _begun(contest: Contest, runner: JobRunner) -> str:
    names = ", ".join(contender.method.name for contender in contest.contenders[1:])
    refused = (f"\nLeft out: {one.name} ({why})" for one, why in contest.refused.items())
    return (
        f"Study in {runner.directory}: {names} against {contest.baseline.method.name}"
        f"{''.join(refused)}"
    )


def _tune(contest: Contest, jobs: StudyJobs, study: StudySettings) -> None:
    """Give every method the same number of trials, as far as the budget goes."""
    most = MOST_TRIALS if study.trials is None else study.trials
    planned, done, cost = jobs.progress.trials, 0, trial_cost(_rungs(contest))
    for size in generations(most if planned is None else planned):
        if planned is None and study.trials is None and not _affords(jobs, cost, size, done):
            break
        before = jobs.spent
        try:
            _run_generation(contest, jobs, size)
        except BudgetSpentError:
            return
        done += size
        if jobs.progress.once is None:
            jobs.progress.save(once=jobs.spent - before)
        jobs.say(f"{done} of the tuning's trials of each method")
    if planned is None:
        jobs.progress.save(trials=done)
    with suppress(BudgetSpentError):
        _confirm(contest, jobs)


def _confirm(contest: Contest, jobs: StudyJobs) -> None:
    """Run each method's finalists with the second seed of the tuning, where there is a choice."""
    _, second = tuning_seeds(contest)
    finals = {
        contender.method: {
            trial.words: _job(contender, jobs, trial.words, second)
            for trial in contender.tuning.finalists
        }
        for contender in contest.live
        if len(contender.tuning.finalists) > 1
    }
    jobs.run([job for of_method in finals.values() for job in of_method.values()])
    for contender in contest.live:
        again = {
            values: _last(_validated(job, contest.score))
            for values, job in finals.get(contender.method, {}).items()
        }
        contender.tuning.confirm(again)


def _last(curve: Curve | None) -> float | None:
    return curve[-1][1] if curve else None


def _rungs(contest: Contest) -> tuple[int, ...]:
    """Return after which rounds trials are compared."""
    return rungs(contest.settings.rounds, contest.settings.evaluation.every)


def _affords(jobs: StudyJobs, cost: float, size: int, done: int) -> bool:
    """Say whether a generation of trials of this cost fits into the tuning's part of the budget."""
    if done == 0:
        return jobs.budget.unit == "seconds" or jobs.budget.amount >= jobs.once * (FEWEST_SEEDS + 1)
    share = equal_share(jobs.budget.amount, jobs.spent, jobs.once, FEWEST_SEEDS * RESERVE)
    return share >= jobs.once * (size * cost + FINALISTS)


def _run_generation(contest: Contest, jobs: StudyJobs, size: int) -> None:
    """Run the next trials of every method, rung by rung."""
    settings = contest.settings
    for contender in contest.live:
        contender.tuning.ask(size)
    for after in _rungs(contest):
        live = {
            contender.method: {
                values: replace(
                    _job(contender, jobs, values, settings.seed), until=_until(contender, after)
                )
                for values in contender.tuning.live()
            }
            for contender in contest.live
        }
        jobs.run([job for of_method in live.values() for job in of_method.values()])
        for contender in contest.live:
            curves = {
                values: _validated(job, contest.score)
                for values, job in live[contender.method].items()
            }
            contender.tuning.report(after, curves, last=after == settings.rounds)
    for contender in contest.live:
        contender.tuning.tell()
        if contender.tuning.best is None:
            first = _job(contender, jobs, (), settings.seed)
            leave_out(contest, contender, first, _why_failed(first, contest, "validation"))


def _until(contender: Contender, after: int) -> int:
    """Return the round after which a trial is left for now.

    One whose run cannot go on is not left before its end: of it, less is known to be pruned by.
    """
    return after if can_be_resumed(contender.settings) else contender.settings.rounds


def _why_failed(job: Job, contest: Contest, part: str) -> str:
    """Return why a job has no score."""
    state = job.state()
    if state.status in ("failed", "died"):
        return state.reason
    return no_score(job.directory, part, contest.score, contest.metric)


def _job(contender: Contender, jobs: StudyJobs, values: Sequence[str], seed: int) -> Job:
    words = (*contender.words, *values, f"seed={seed}")
    return jobs.job(words, " ".join((contender.method.name, *values, f"seed={seed}")))


def _validated(job: Job, score: str) -> Curve | None:
    """Return a trial's scores on validation parts so far, None if it failed."""
    if job.state().status != "completed":
        return None
    return curve_of(job.directory, "validation", score)


def _compare(contest: Contest, jobs: StudyJobs, study: StudySettings) -> list[int]:
    """Run the tuned methods, seed by seed, and return the seeds that all of them have.

    The budget decides how many these are, never what they say: whoever stops when a difference
    looks large finds one where there is none.
    """
    seeds: list[int] = []
    for seed in itertools.count(tuning_seeds(contest)[-1] + 1):
        if len(seeds) == study.seeds:
            break
        of_seed = {
            contender.method: _job(contender, jobs, contender.tuning.values, seed)
            for contender in contest.live
        }
        todo = jobs.to_run(list(of_seed.values()))
        enough = len(seeds) >= FEWEST_SEEDS
        if todo and enough and jobs.spent + jobs.once > jobs.budget.amount:
            break
        before = jobs.spent
        try:
            jobs.run(todo)
        except BudgetSpentError:
            break
        take_seed(contest, of_seed, jobs)
        seeds.append(seed)
        if len(todo) == len(of_seed):
            jobs.progress.save(once=jobs.spent - before)
        if todo:
            number = f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"
            jobs.say(f"{number} compared{not_counted(contest, of_seed)}")
    return seeds
