"""Tests of verdicts by hand, and of their error rate on simulated tables."""

import math

import numpy as np
import pytest
from fedquorum.errors import ParameterError

from server_app.study.paired_statistics import (
    decide_best_method,
    find_indistinguishable,
    find_usable_methods,
)

BASE = [70.0, 60.0, 80.0, 75.0, 65.0]


def compute_scipy_interval(other: list[float], level: float) -> tuple[float, float]:
    """Compute SciPy's interval of a paired t test against the baseline."""
    from scipy import stats

    found = stats.ttest_rel(other, BASE).confidence_interval(level)
    return found.low, found.high


def raise_scores(*by: float) -> list[float]:
    return [base + more for base, more in zip(BASE, by, strict=True)]


def test_an_interval_is_that_of_a_paired_t_test() -> None:
    """With one method it equals SciPy's; seeds that are hard for both do not widen it."""
    other = raise_scores(1.0, 2.0, 0.5, 1.5, 1.0)
    decision = decide_best_method({"fedavg": BASE, "fedau": other}, "fedavg", 0.1)
    low, high = compute_scipy_interval(other, 0.95)
    (one,) = decision.differences
    assert (one.low, one.high) == pytest.approx((low, high))
    assert one.difference == pytest.approx(1.2)
    assert (one.ahead, decision.seeds) == (5, 5)
    assert (decision.verdict, decision.best, decision.seeds_to_decide) == ("fedau", one, None)


def test_intervals_are_wider_for_more_methods() -> None:
    """Each of m methods has the level 1 - 0.05 / m."""
    other = raise_scores(1.0, 2.0, 0.5, 1.5, 1.0)
    scores = {"fedavg": BASE, "fedau": other, "term": raise_scores(0, 0, 0, 0.1, 0), "afl": BASE}
    decision = decide_best_method(scores, "fedavg", 0.1)
    low, _ = compute_scipy_interval(other, 1 - 0.05 / 3)
    assert decision.best.low == pytest.approx(low)
    assert [one.method for one in decision.differences] == ["fedau", "term", "afl"]


def test_the_best_of_those_that_are_better() -> None:
    """A larger difference from a single seed is not significant."""
    scores = {
        "fedavg": BASE,
        "steady": raise_scores(1, 1.1, 1, 0.9, 1),
        "lucky": raise_scores(40, 0, 0, 0, 0),
    }
    decision = decide_best_method(scores, "fedavg", 0.1)
    assert (decision.verdict, decision.best.method) == ("steady", "lucky")


def test_the_baseline_wins_if_all_others_are_worse() -> None:
    """One equally good method makes it no difference, however bad the others are."""
    scores = {"fedavg": BASE, "term": raise_scores(-1, -1.1, -1, -0.9, -1)}
    decision = decide_best_method(scores, "fedavg", 0.1)
    assert decision.best.high < 0
    assert (decision.verdict, decision.seeds_to_decide) == ("fedavg", None)
    assert decide_best_method({**scores, "afl": BASE}, "fedavg", 0.1).verdict == "no difference"


def test_no_difference_needs_all_intervals_below_the_margin() -> None:
    """The same scores are undecided with a smaller margin."""
    scores = {"fedavg": BASE, "term": raise_scores(0.1, -0.1, 0.05, -0.05, 0)}
    assert decide_best_method(scores, "fedavg", 0.2).verdict == "no difference"
    undecided = decide_best_method(scores, "fedavg", 0.05)
    assert undecided.verdict == "undecided"
    assert undecided.seeds_to_decide is not None


def test_a_difference_within_the_margin_is_none() -> None:
    """Also if the difference is significant."""
    scores = {"fedavg": BASE, "term": raise_scores(0.1, 0.11, 0.1, 0.09, 0.1)}
    assert decide_best_method(scores, "fedavg", 0.05).verdict == "term"
    assert decide_best_method(scores, "fedavg", 0.2).verdict == "no difference"


def test_methods_that_are_indistinguishable_from_the_best() -> None:
    """A method that differs only by noise is named; the baseline and worse ones are not."""
    scores = {
        "fedavg": BASE,
        "best": raise_scores(5, 5.1, 5, 4.9, 5),
        "as good": raise_scores(4.9, 5.2, 4.8, 5, 5),
        "worse": raise_scores(1, 1.1, 1, 0.9, 1),
    }
    decision = decide_best_method(scores, "fedavg", 0.1)
    assert decision.verdict == "best"
    assert find_indistinguishable(scores, decision, 0.95) == ("as good",)
    undecided = decide_best_method(
        {"fedavg": BASE, "afl": raise_scores(9, -9, 1, 0, 0)}, "fedavg", 0.1
    )
    assert find_indistinguishable({"fedavg": BASE, "afl": BASE}, undecided, 0.95) == ()


def test_seeds_that_divide_the_same_rows_have_wider_intervals() -> None:
    """The variance of the mean is s^2 (1 / J + r), as Nadeau and Bengio correct it."""
    from scipy import stats

    differences = np.array([1.0, 2.0, 0.5, 1.5, 1.0])
    scores = {"fedavg": BASE, "fedau": raise_scores(*differences)}
    decision = decide_best_method(scores, "fedavg", 0.1, test_to_train=0.3125)
    half = stats.t.isf(0.025, 4) * differences.std(ddof=1) * math.sqrt(1 / 5 + 0.3125)
    assert decision.best.high - decision.best.difference == pytest.approx(half)
    assert decision.verdict == "fedau"
    assert decide_best_method(scores, "fedavg", 0.1, test_to_train=9.0).verdict == "undecided"


def test_a_gain_within_the_margin_is_none_whoever_stands_beside_it() -> None:
    """A useless, noisy method leaves open whether it is better itself, and names no other."""
    tiny = raise_scores(0.2, 0.21, 0.2, 0.19, 0.2)
    alone = decide_best_method({"fedavg": BASE, "tiny": tiny}, "fedavg", 1.0)
    noisy = raise_scores(-20, 12, -9, 11, -6)
    beside = decide_best_method({"fedavg": BASE, "tiny": tiny, "noisy": noisy}, "fedavg", 1.0)
    assert alone.verdict == "no difference"
    assert beside.verdict == "undecided"


def test_no_model_is_usable_if_guessing_is_as_good() -> None:
    """Even if one method is far better than another: all of them are useless."""
    better = raise_scores(5, 5.1, 5, 4.9, 5)
    scores = {"fedavg": BASE, "fedau": better}
    assert decide_best_method(scores, "fedavg", 0.1, guessing=BASE).verdict == "fedau"
    assert decide_best_method(scores, "fedavg", 0.1, guessing=better).verdict == "no usable model"
    assert find_usable_methods(scores, BASE, 0.95) == ("fedau",)
    # The baseline alone may be usable: then nothing is better than a usable model.
    worse = {"fedavg": BASE, "fedau": raise_scores(-5, -5.1, -5, -4.9, -5)}
    guess = raise_scores(-9, -9.1, -9, -9.2, -9)
    assert decide_best_method(worse, "fedavg", 0.1, guessing=guess).verdict == "fedavg"


def test_the_advised_seeds_decide_as_often_as_stated() -> None:
    """Of studies that are undecided with 5 seeds, about 80 % are decided with the advised number.

    The advice takes the deviation of five seeds for the true one, so the share may be lower.
    """
    rng = np.random.default_rng(2)
    decided = []
    for effect in (0.0, 0.7, 1.0) * 200:
        table = rng.normal(size=(2, 400)) + np.array([[0.0], [effect]])
        first, names = table[:, :5], ("fedavg", "fedau")
        scores = dict(zip(names, first.tolist(), strict=True))
        needed = decide_best_method(scores, "fedavg", 0.25).seeds_to_decide
        if needed is not None and needed <= table.shape[1]:
            more = dict(zip(names, table[:, :needed].tolist(), strict=True))
            decided.append(decide_best_method(more, "fedavg", 0.25).verdict != "undecided")
    assert len(decided) > 100
    assert np.mean(decided) > 0.65


def test_more_seeds_of_the_same_rows_may_never_decide() -> None:
    """The interval never gets narrower than s sqrt(r) on each side."""
    scores = {"fedavg": BASE, "fedau": raise_scores(1.0, -1.0, 2.0, 0.0, 1.5)}
    assert decide_best_method(scores, "fedavg", 0.1).seeds_to_decide is not None
    decision = decide_best_method(scores, "fedavg", 0.1, test_to_train=0.3125)
    assert (decision.verdict, decision.seeds_to_decide) == ("undecided", None)


def test_false_claims_are_rare() -> None:
    """Of 400 tables of five equal methods, at most 5 % name a best one."""
    rng = np.random.default_rng(0)
    named = 0
    for _ in range(400):
        table = rng.normal(size=(6, 5)) + rng.normal(size=5)
        verdict = decide_best_method(dict(zip("abcdef", table, strict=True)), "a", 0.0).verdict
        named += verdict != "undecided"
    assert named <= 20


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"a": BASE}, "scores must be a mapping with the baseline and at least one other"),
        ({"b": BASE, "c": BASE}, "scores must be a mapping with the baseline"),
        ({"a": BASE[:4], "b": BASE[:4]}, "same seeds for all methods, at least 5, got"),
        ({"a": BASE, "b": BASE[:4]}, "same seeds for all methods, at least 5, got"),
        (
            {"a": BASE, "b": raise_scores(0, 0, math.nan, 0, 0)},
            r"scores\[b\] must be finite numbers",
        ),
    ],
)
def test_scores_that_cannot_be_compared(scores: dict[str, list[float]], message: str) -> None:
    """One line names the problem."""
    with pytest.raises(ParameterError, match=message):
        decide_best_method(scores, "a", 0.1)


def test_settings_of_a_decision() -> None:
    """Margin, confidence and correction have their ranges."""
    scores = {"a": BASE, "b": BASE}
    with pytest.raises(ParameterError, match="test_to_train must be a number >= 0, got -1"):
        decide_best_method(scores, "a", 0.1, test_to_train=-1.0)
    with pytest.raises(ParameterError, match="min_effect must be a number >= 0, got -1"):
        decide_best_method(scores, "a", -1.0)
    with pytest.raises(ParameterError, match="confidence must be a number > 0 and < 1, got 1"):
        decide_best_method(scores, "a", 0.1, confidence=1.0)
