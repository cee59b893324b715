"""Tests of one method's trials: their values, the pruning and the choice."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fedquorum.rules.parameters import Choices, FloatRange

from conf.compose import parse_override
from server_app.study.methods import SearchDimension
from server_app.study.result import ScoreCurve
from server_app.study.tuning import (
    MethodTuning,
    compute_generation_sizes,
    compute_num_runs,
    compute_rungs,
    compute_trial_cost,
    compute_tuning_budget,
    find_score_at,
)

LR: dict[str, SearchDimension] = {"client.lr": FloatRange(0.01, 1.0)}


def tune_method(
    score: Callable[[Mapping[str, float]], float],
    space: Mapping[str, SearchDimension],
    initial_values: Mapping[str, float],
    *,
    trials: int = 9,
    higher_is_better: bool = True,
) -> MethodTuning:
    """Tune a method with a constant score over its 8 rounds."""
    tuning = MethodTuning(space, initial_values, higher_is_better, 1)
    for size in compute_generation_sizes(trials):
        tuning.start_generation(size)
        for after in compute_rungs(8, 1):
            curves = {
                overrides: compute_curve(score, initial_values, overrides, after)
                for overrides in tuning.list_active()
            }
            tuning.report_scores(after, curves, last=after == 8)
        tuning.finish_generation()
    return tuning


def compute_curve(
    score: Callable[[Mapping[str, float]], float],
    initial_values: Mapping[str, float],
    overrides: tuple[str, ...],
    after: int,
) -> ScoreCurve | None:
    """Compute the scores of a choice, or None if undefined."""
    parsed = [parse_override(override) for override in overrides]
    chosen: dict[str, Any] = {one.get_key_element(): one.value() for one in parsed}
    value = score({**initial_values, **chosen})
    return None if math.isnan(value) else make_flat_curve(value, after)


def test_rungs_are_evaluated_rounds() -> None:
    """A quarter, a half and all of the rounds, rounded up to evaluated rounds."""
    assert compute_rungs(100, 1) == (25, 50, 100)
    assert compute_rungs(100, 10) == (30, 50, 100)
    assert compute_rungs(100, 40) == (40, 80, 100)
    assert compute_rungs(2, 1) == (1, 2)
    assert compute_rungs(1, 5) == (1,)


def test_the_score_at_a_round_is_the_last_one_before_it() -> None:
    """Before the first evaluation there is none."""
    curve = ((5, 0.1), (10, 0.2))
    assert [find_score_at(curve, t) for t in (4, 5, 9, 10, 11)] == [None, 0.1, 0.1, 0.2, 0.2]


def test_generations() -> None:
    """The settings' values alone, then generations of four."""
    assert [tuple(compute_generation_sizes(n)) for n in (0, 1, 2, 5, 8)] == [
        (),
        (1,),
        (1, 1),
        (1, 4),
        (1, 4, 3),
    ]


def test_the_cost_of_all_trials() -> None:
    """The first is a whole run, others cost half; finalists run again."""
    assert [compute_num_runs(trials, 0.5) for trials in (0, 1, 2, 5)] == [0, 1, 1.5 + 2, 3 + 3]


def test_the_cost_of_a_trial() -> None:
    """Half of a run, or more if evaluations are too rare for early pruning."""
    assert [compute_trial_cost(one) for one in ((25, 50, 100), (8, 15, 30))] == [0.5, 0.5]
    assert compute_trial_cost((60, 100)) == 0.8  # 0.6, and a half of 0.4
    assert compute_trial_cost((100,)) == 1.0


def test_tuning_takes_at_most_half_of_the_budget_and_leaves_the_seeds_theirs() -> None:
    """Of 100, half if 40 are reserved, and 20 if 80 are reserved."""
    assert compute_tuning_budget(100, 10, 4, 10) == 40
    assert compute_tuning_budget(100, 10, 8, 10) == 10


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_first_trial_is_the_settings_values_and_the_best_is_found(
    higher_is_better: bool,
) -> None:
    """Of 17 trials of a score with its peak at 0.3, one near it is the best."""
    sign = 1 if higher_is_better else -1

    def score(values: Mapping[str, float]) -> float:
        return -sign * abs(math.log(values["client.lr"] / 0.3))

    tuning = tune_method(
        score, LR, {"client.lr": 0.02}, trials=17, higher_is_better=higher_is_better
    )
    assert tuning.trials[0].words == ()
    assert tuning.trials[0].status == "completed"
    (word,) = tuning.best_overrides
    assert 0.15 < float(word.removeprefix("client.lr=")) < 0.6


def test_worse_trials_are_pruned_early() -> None:
    """Most of 17 trials with constant scores end at the first rungs."""
    tuning = tune_method(lambda values: values["client.lr"], LR, {"client.lr": 0.02}, trials=17)
    rounds = [len(trial.curve) for trial in tuning.trials]
    statuses = {len(trial.curve): trial.status for trial in tuning.trials}
    assert statuses == {2: "pruned", 4: "pruned", 8: "completed"}
    assert sum(rounds) < 17 * 8 * 0.7
    best = max(tuning.trials, key=lambda trial: trial.score or 0)
    assert best.status == "completed"


def make_flat_curve(score: float, after: int) -> ScoreCurve:
    """Return the same score after every round."""
    return tuple((t, score) for t in range(1, after + 1))


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_better_half_continues_in_any_order(higher_is_better: bool) -> None:
    """After an unbeaten first trial, two of four continue, and one of them to the end."""
    sign = 1 if higher_is_better else -1
    scores = (0.5, 0.4, 0.3, 0.6)
    for shift in range(4):
        mixed = (*scores[shift:], *scores[:shift])
        tuning = MethodTuning(LR, {"client.lr": 0.1}, higher_is_better, 1)
        tuning.start_generation(1)
        for after in (2, 4, 8):
            tuning.report_scores(after, {(): make_flat_curve(sign * 0.9, after)}, last=after == 8)
        tuning.finish_generation()
        score_by_overrides = dict(zip(tuning.start_generation(4), mixed, strict=True))
        remaining = []
        for after in (2, 4, 8):
            curves = {
                overrides: make_flat_curve(sign * score_by_overrides[overrides], after)
                for overrides in tuning.list_active()
            }
            tuning.report_scores(after, curves, last=after == 8)
            remaining.append(
                sorted(score_by_overrides[overrides] for overrides in tuning.list_active())
            )
        tuning.finish_generation()
        assert remaining == [[0.5, 0.6], [0.6], [0.6]]
        assert [trial.score for trial in tuning.finalists] == [sign * 0.9, sign * 0.6]


def test_a_generation_that_is_worse_than_those_before_is_pruned() -> None:
    """Its better half is not run to the end either."""
    tuning = MethodTuning(LR, {"client.lr": 0.1}, True, 1)
    for size, level in ((1, 0.9), (4, 0.8), (4, 0.1)):
        tuning.start_generation(size)
        for after in (2, 4, 8):
            curves = {
                overrides: make_flat_curve(level, after) for overrides in tuning.list_active()
            }
            tuning.report_scores(after, curves, last=after == 8)
        tuning.finish_generation()
    assert [len(trial.curve) for trial in tuning.trials] == [8, 8, 4, 2, 2, 2, 2, 2, 2]
    assert [trial.status for trial in tuning.trials] == [
        *("completed", "completed", *["pruned"] * 3),
        *["pruned"] * 4,
    ]


def test_all_methods_are_tried_with_the_same_learning_rates() -> None:
    """A rule's parameter does not shift the samples, so equal methods get equal values."""
    with_cutoff: dict[str, SearchDimension] = {**LR, "strategy.cutoff": Choices((10, 50, math.inf))}
    initial_values = {"client.lr": 0.1, "strategy.cutoff": math.inf}

    def score(values: Mapping[str, float]) -> float:
        return -abs(math.log(values["client.lr"] / 0.3))

    reference = tune_method(score, LR, {"client.lr": 0.1})
    other = tune_method(score, with_cutoff, initial_values)
    rates = [[word for word in trial.words if "lr" in word] for trial in other.trials]
    assert rates == [list(trial.words) for trial in reference.trials]
    assert len(set(map(tuple, rates))) == 9


def test_a_failed_trial_is_not_the_best() -> None:
    """Rates above 0.1 diverge: the best is one of the others."""
    tuning = tune_method(
        lambda values: math.nan if values["client.lr"] > 0.1 else values["client.lr"],
        LR,
        {"client.lr": 0.02},
    )
    assert {trial.status for trial in tuning.trials} >= {"failed", "completed"}
    assert all(trial.score is None for trial in tuning.trials if trial.status == "failed")
    assert tuning.best is not None


def test_finalists_are_decided_by_both_seeds() -> None:
    """The best of the first seed may lose with the second; a failed finalist is out."""
    tuning = tune_method(lambda values: values["client.lr"], LR, {"client.lr": 0.02}, trials=17)
    first, second, third = tuning.finalists
    assert tuning.best == first
    tuning.add_second_scores(
        {first.words: 0.0, second.words: (second.score or 0) + 1, third.words: None}
    )
    assert tuning.best_overrides == second.words
    assert [trial.again for trial in tuning.finalists] == [0.0, (second.score or 0) + 1, None]


def test_finalists_have_different_values() -> None:
    """Of four possible values, the three best ones run again, also where many trials tried one."""
    first = {"10": 0.70, "50": 0.76, "200": 0.755, "inf": 0.75}
    space: dict[str, SearchDimension] = {"strategy.cutoff": Choices((10, 50, 200, math.inf))}
    tuning = MethodTuning(space, {"strategy.cutoff": math.inf}, True, 1)

    def get_value(overrides: tuple[str, ...]) -> str:
        return overrides[0].partition("=")[2] if overrides else "inf"

    for size in compute_generation_sizes(33):
        started = tuning.start_generation(size)
        curves = {one: make_flat_curve(first[get_value(one)], 5) for one in started}
        tuning.report_scores(5, curves, last=True)
        tuning.finish_generation()
    found = [trial.words for trial in tuning.finalists]
    assert [get_value(words) for words in found] == ["50", "200", "inf"]
    second = {**first, "50": 0.60}
    tuning.add_second_scores({words: second[get_value(words)] for words in found})
    assert tuning.best_overrides == ("strategy.cutoff=200",)


def test_without_completed_trials_there_is_no_best() -> None:
    """The settings' values remain."""
    tuning = tune_method(lambda _: math.nan, LR, {"client.lr": 0.1}, trials=2)
    assert (tuning.best, tuning.best_overrides) == (None, ())
