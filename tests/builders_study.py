"""Build results of studies without running them, from given scores and seeded noise."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from fedquorum.registry import NAMED_STRATEGIES
from fedquorum.rules.metrics import get_metric
from fedquorum.rules.types import FloatArray

from client_app.data.seed_draws import SeedDraws
from server_app.study.looks import Look
from server_app.study.paired_statistics import MIN_SEEDS, decide_best_method
from server_app.study.result import BudgetUse, MethodResult, ScoreCurve, SeedRun, StudyResult, Trial

ROUNDS = 40
CLIENTS = 30
BASE = (0.70, 0.62, 0.80, 0.75, 0.65)
"""The baseline's score in each of five seeds."""

NEW_DATA = SeedDraws(True, True, True, True, 0.25)
DIVIDED_ANEW = SeedDraws(False, True, True, True, 0.3125)
SAME_TEST_ROWS = SeedDraws(False, False, True, True, 0.2)
"""The seeds' draws of generated data, of a table without a test set, and with one."""


def add_to_baseline(*points: float) -> list[float]:
    """Return scores that are ``points`` above those of the baseline."""
    return [base + increase / 100 for base, increase in zip(BASE, points, strict=True)]


def make_curve(score: float, start: float, rounds: int = ROUNDS) -> ScoreCurve:
    """Return a curve with a score after every second round that converges to ``score``."""
    return tuple(
        (t, score + (start - score) * math.exp(-8 * t / rounds)) for t in list_scored_rounds(rounds)
    )


def list_scored_rounds(rounds: int) -> range:
    """Return the rounds with a score."""
    return range(0, rounds + 1, 2)


def seed_run(
    seed: int, clients: FloatArray, score: float, curve: ScoreCurve, metric: str
) -> SeedRun:
    """Return a run with these metrics of the clients."""
    ascending = np.sort(clients) if get_metric(metric).higher_is_better else -np.sort(-clients)
    tenth = max(1, len(clients) // 10)
    measures = {"all": float(clients.mean()), "worst10": float(ascending[:tenth].mean())}
    by_client = dict(enumerate(clients.tolist()))
    folder, command = f"runs/{seed}", f"fedquorum strategy=fedavg seed={seed}"
    return SeedRun(seed, folder, command, score, measures, by_client, curve, 84.2, 31.0)


def make_method_result(
    name: str,
    scores: Sequence[float],
    *,
    trials: Sequence[Trial] = (),
    tuned: Sequence[str] = (),
    metric: str = "accuracy",
    start: float = 0.1,
) -> MethodResult:
    """Return a method with one run for each score, whose clients lie around it."""
    rng = np.random.default_rng(len(name))
    measured = get_metric(metric)
    runs = [
        seed_run(
            seed,
            np.clip(score + 0.08 * rng.normal(size=CLIENTS), measured.low, measured.high),
            score,
            make_curve(score, start),
            metric,
        )
        for seed, score in enumerate(scores, start=1)
    ]
    summary = NAMED_STRATEGIES[name].summary if name in NAMED_STRATEGIES else ""
    overrides = (f"strategy={name}",)
    return MethodResult(name, summary, overrides, tuple(tuned), tuple(trials), tuple(runs))


def make_study_answer(
    scores: Mapping[str, Sequence[float]],
    *,
    methods: Sequence[MethodResult] | None = None,
    min_effect: float = 0.01,
    metric: str = "accuracy",
    metric_key: str | None = None,
    to_decide: float | None = None,
    not_distinguished: Sequence[str] = (),
    left_out: Mapping[str, str] | None = None,
    caveats: Sequence[str] = (),
    data: str = "mqp",
    guessing: Sequence[float] = (),
    draws: SeedDraws = NEW_DATA,
    row_weights: int = 0,
) -> StudyResult:
    """Return the result for each method's scores by seed, the baseline's first."""
    baseline = next(iter(scores))
    sign = 1 if get_metric(metric).higher_is_better else -1
    raised = {name: [sign * value for value in values] for name, values in scores.items()}
    enough = len(scores) > 1 and min(map(len, scores.values())) >= MIN_SEEDS
    decision = (
        decide_best_method(
            raised,
            baseline,
            min_effect,
            test_to_train=draws.correction,
            guessing=[sign * value for value in guessing],
        )
        if enough
        else None
    )
    compared = methods or [
        make_method_result(name, values, metric=metric) for name, values in scores.items()
    ]
    return StudyResult(
        goal="average",
        data=data,
        metric=metric,
        metric_key=metric_key or f"test.all.{metric}",
        decision=decision,
        guessing=tuple(guessing),
        seed_draws=draws,
        row_weights=row_weights,
        looks=(Look(decision.seeds, decision.seeds),) if decision else (),
        not_distinguished=tuple(not_distinguished),
        min_effect=min_effect,
        confidence=0.95,
        baseline=baseline,
        methods=(
            *compared,
            *(
                MethodResult(name, "", (f"strategy={name}",), left_out=why)
                for name, why in (left_out or {}).items()
            ),
        ),
        caveats=tuple(caveats),
        spent=BudgetUse("20min", "seconds", 1200.0, 1111.0, to_decide),
        tuning_seeds=(7, 8),
        command=f"fedquorum study data={data} goal=average budget=20min",
    )
