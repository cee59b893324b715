"""From the scores of a study's runs to its answer."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from fedquorum.records.reader import load_run
from fedquorum.search import Between

from client_app.data import FederatedData
from conf.schema.data import CsvSettings
from server_app.study.answer import Answer, MethodResult, Spent
from server_app.study.caveats import (
    Measured,
    comparison_caveats,
    data_caveats,
    divides_the_same_rows,
    guessing_caveat,
    measured_clients,
    run_caveats,
    tuning_caveats,
)
from server_app.study.contenders import Contender, Contest, tuning_seeds
from server_app.study.decision import (
    FEWEST_SEEDS,
    Comparison,
    Decision,
    compared,
    decide,
    not_told_apart,
    tail_of,
)
from server_app.study.jobs import StudyJobs
from server_app.study.scores import mean_by_client, rounds_to
from server_app.study.settings import StudySettings
from server_app.study.words import clients_of


def answer_of(
    contest: Contest,
    jobs: StudyJobs,
    study: StudySettings,
    *,
    words: Sequence[str],
    seeds: Sequence[int],
    data: tuple[FederatedData, FederatedData] | None,
) -> Answer:
    """Return what the runs say.

    Parameters
    ----------
    contest : Contest
        The methods with their trials and runs.
    jobs : StudyJobs
        What was run, and the budget.
    study : StudySettings
        What was asked.
    words : sequence of str
        The settings of all runs.
    seeds : sequence of int
        The seeds that all methods were run with.
    data : tuple of FederatedData, optional
        The data of the first seed of the tuning and of the comparison, where it is here.
    """
    sign = 1.0 if contest.higher_is_better else -1.0
    scores = {c.method.name: [sign * run.score for run in c.runs] for c in contest.live}
    plain = contest.baseline.method.name
    min_effect = study.margin_of(contest.measured, float(np.mean(scores[plain] or [0.0])))
    decision = None
    if len(seeds) >= FEWEST_SEEDS and len(scores) > 1:
        decision = decide(scores, plain, min_effect, confidence=study.confidence)
    caveats = _caveats(contest, jobs, min_effect, data)
    return Answer(
        goal=study.asked.value,
        data=_data_name(contest),
        metric=contest.metric,
        metric_key=f"test.{contest.score}",
        decision=decision,
        over_clients=_over_clients(contest, study.confidence),
        not_told_apart=()
        if decision is None
        else not_told_apart(scores, decision, study.confidence),
        min_effect=min_effect,
        confidence=study.confidence,
        baseline=plain,
        methods=(
            *(_result(contest, contender) for contender in contest.contenders),
            *(
                MethodResult(method.name, method.summary, method.words, left_out=reason)
                for method, reason in contest.refused.items()
            ),
        ),
        caveats=caveats,
        spent=_spent(jobs, decision, len(seeds)),
        tuning_seeds=tuning_seeds(contest),
        command=_command(words, study, jobs),
    )


def _data_name(contest: Contest) -> str:
    """Return the name of the file, or of the data set where that has a name."""
    data = contest.settings.data
    return Path(str(getattr(data, "path", ""))).name or data.name


def _result(contest: Contest, contender: Contender) -> MethodResult:
    plain = contest.baseline
    compared_with_plain = contender is not plain and not contender.left_out
    return MethodResult(
        name=contender.method.name,
        summary=contender.method.summary,
        words=contender.method.words,
        tuned=contender.tuning.values,
        trials=tuple(contender.tuning.trials),
        runs=tuple(contender.runs),
        left_out=contender.left_out,
        rounds_to_baseline=_rounds_to_baseline(contest, contender),
        worse_off=_worse_off(contest, contender) if compared_with_plain else math.nan,
    )


def _rounds_to_baseline(contest: Contest, contender: Contender) -> float | None:
    """Return the mean rounds to the baseline's last score, None if few runs reach it."""
    pairs = zip(contender.runs, contest.baseline.runs, strict=False)
    better = contest.higher_is_better
    reached = [rounds_to(run.curve, plain.score, higher_is_better=better) for run, plain in pairs]
    found = [number for number in reached if number is not None]
    return math.fsum(found) / len(found) if found and 2 * len(found) >= len(reached) else None


def _gains(contest: Contest, contender: Contender) -> Mapping[int, float]:
    """Return by client how much better its metric is than with the baseline."""
    sign = 1.0 if contest.measured.higher_is_better else -1.0
    one, plain = mean_by_client(contender.runs), mean_by_client(contest.baseline.runs)
    return {client: sign * (one[client] - plain[client]) for client in one if client in plain}


def _worse_off(contest: Contest, contender: Contender) -> float:
    gains = _gains(contest, contender)
    return sum(gain < 0 for gain in gains.values()) / len(gains) if gains else math.nan


def _over_clients(contest: Contest, confidence: float) -> tuple[Comparison, ...]:
    """Return each method's mean difference over clients, with intervals that hold together."""
    others = [contender for contender in contest.live if contender is not contest.baseline]
    gains = {c.method.name: np.array([*_gains(contest, c).values()]) for c in others}
    tail = tail_of(confidence, len(others))
    found = [compared(name, values, tail) for name, values in gains.items() if len(values) > 1]
    return tuple(sorted(found, key=lambda one: -one.difference))


def _caveats(
    contest: Contest,
    jobs: StudyJobs,
    min_effect: float,
    data: tuple[FederatedData, FederatedData] | None,
) -> tuple[str, ...]:
    """Return what makes the answer weaker than it looks, what may overturn it first."""
    results = [_result(contest, contender) for contender in contest.live]
    spaces = [contender.tuning.space for contender in contest.live]
    ranges = {
        key: (space.low, space.high, space.log)
        for of_method in spaces
        for key, space in of_method.items()
        if isinstance(space, Between)
    }
    clients: tuple[Measured, ...] = ()
    if contest.baseline.runs:
        folder = jobs.runner.directory / contest.baseline.runs[0].folder
        clients = measured_clients(load_run(folder), contest.metric)
    pooled = data is not None and _pooled(contest, data)
    return (
        *filter(None, [_guessing(contest, results, min_effect, data)]),
        *comparison_caveats(results, contest.metric, min_effect, pooled=pooled),
        *(() if data is None else data_caveats(data[1], contest.metric)),
        *run_caveats(clients, contest.metric),
        *tuning_caveats(results, ranges),
    )


def _guessing(
    contest: Contest,
    results: Sequence[MethodResult],
    min_effect: float,
    data: tuple[FederatedData, FederatedData] | None,
) -> str:
    """Return whether any method does better than guessing; the server of devices cannot tell."""
    if data is None or data[1].target != "class":
        return ""
    whose, classes = clients_of(contest.score), data[1].num_classes
    return guessing_caveat(results, whose, contest.metric, classes, min_effect)


def _pooled(contest: Contest, data: tuple[FederatedData, FederatedData]) -> bool:
    """Say whether each seed divides the same rows; a table's are scaled by the seed's own."""
    return isinstance(contest.settings.data, CsvSettings) or divides_the_same_rows(*data)


def _spent(jobs: StudyJobs, decision: Decision | None, seeds: int) -> Spent:
    needed = FEWEST_SEEDS if decision is None else decision.seeds_to_decide
    more = None if needed is None else (needed - seeds) * jobs.once
    budget = jobs.budget
    to_decide = None if more is None else jobs.spent + more
    return Spent(budget.text, budget.unit, budget.amount, jobs.spent, to_decide)


def _command(words: Sequence[str], study: StudySettings, jobs: StudyJobs) -> str:
    output = f"output={jobs.runner.directory}"
    return shlex.join(["fedquorum", "study", *words, *study.words, output])
