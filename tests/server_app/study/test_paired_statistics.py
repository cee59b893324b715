"""Tests of verdicts by hand, and of their error rate on simulated tables."""

import math

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.types import FloatArray

from server_app.study.paired_statistics import (
    GUESSING,
    NUM_WEIGHT_SETS,
    compare_with_baseline,
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


def compute_chance(differences: FloatArray, n: int, margin: float, r: float) -> float:
    """Compute the probability that n seeds decide on one method, by draws of their mean."""
    from scipy import stats

    seeds, deviation = len(differences), differences.std(ddof=1)
    half = stats.t.isf(0.025, n - 1) * deviation * math.sqrt(1 / n + r)
    draws = stats.t.ppf((np.arange(20_000) + 0.5) / 20_000, seeds - 1)
    means = differences.mean() + deviation * math.sqrt(1 / seeds - 1 / n) * draws
    is_better = (means - half > 0) & (means + half > margin)
    return float((is_better | (means + half <= margin)).mean())


@pytest.mark.parametrize("ratio", [0.0, 0.02])
def test_the_seeds_that_would_decide(ratio: float) -> None:
    """That many seeds decide with a probability of 80 %, and a twentieth fewer do not."""
    differences = np.array([3.0, -1.0, 2.0, -0.5, 1.5])
    scores = {"fedavg": BASE, "fedau": raise_scores(*differences)}
    decision = decide_best_method(scores, "fedavg", 0.01, test_to_train=ratio)
    n = decision.seeds_to_decide
    assert n is not None
    assert compute_chance(differences, n, 0.01, ratio) >= 0.799
    assert compute_chance(differences, math.floor(0.95 * n), 0.01, ratio) < 0.8


def test_the_advised_seeds_decide() -> None:
    """Of 150 undecided studies, at least 70 % are decided by the number that they advise."""
    rng = np.random.default_rng(1)
    decided: list[bool] = []
    while len(decided) < 150:
        noise = rng.normal(size=(2, 400))
        table = {"a": noise[0].tolist(), "b": (noise[1] + 1.0).tolist()}
        first = decide_best_method({k: v[:5] for k, v in table.items()}, "a", 0.25)
        if first.verdict == "undecided" and (first.seeds_to_decide or 401) <= 400:
            more = {k: v[: first.seeds_to_decide] for k, v in table.items()}
            decided.append(decide_best_method(more, "a", 0.25).verdict != "undecided")
    assert np.mean(decided) >= 0.7


def test_no_number_of_seeds_decides_on_few_rows() -> None:
    """With r = 0.3125 an interval never becomes narrower than t sd sqrt(r)."""
    scores = {"fedavg": BASE, "fedau": raise_scores(3.0, -1.0, 2.0, -0.5, 1.5)}
    assert decide_best_method(scores, "fedavg", 0.01).seeds_to_decide is not None
    decision = decide_best_method(scores, "fedavg", 0.01, test_to_train=0.3125)
    assert (decision.verdict, decision.seeds_to_decide) == ("undecided", None)


def test_rows_that_seeds_share_widen_an_interval() -> None:
    """Nadeau and Bengio: the variance is (1/J + n_test/n_train) s^2; here by hand, J = 5."""
    other = raise_scores(1.0, 2.0, 0.5, 1.5, 1.0)  # mean 1.2, s^2 = 1.3 / 4
    (one,) = compare_with_baseline(
        {"fedavg": BASE, "fedau": other}, "fedavg", confidence=0.95, test_to_train=0.2 / 0.64
    )
    half = 2.7764451 * math.sqrt((0.2 + 0.3125) * 1.3 / 4)
    assert (one.low, one.high) == pytest.approx((1.2 - half, 1.2 + half))


def test_test_rows_that_all_seeds_share_widen_an_interval() -> None:
    """The variances over row weights and seeds add up, with Satterthwaite's freedom; by SciPy."""
    from scipy import stats

    rng = np.random.default_rng(2)
    scores = {"a": rng.normal(size=6), "b": rng.normal(1.0, 0.2, size=6)}
    shared = rng.normal(0.0, 3.0, size=NUM_WEIGHT_SETS)
    resampled = {name: shared + rng.normal(0.0, 0.1, NUM_WEIGHT_SETS) for name in scores}
    table = {name: values.tolist() for name, values in scores.items()}
    (one,) = compare_with_baseline(table, "a", confidence=0.9, resampled=resampled)
    of_seeds = np.var(scores["b"] - scores["a"], ddof=1) / 6
    of_rows = np.var(resampled["b"] - resampled["a"], ddof=1)
    freedom = (of_seeds + of_rows) ** 2 / (of_seeds**2 / 5 + of_rows**2 / (NUM_WEIGHT_SETS - 1))
    half = stats.t.isf(0.05, freedom) * math.sqrt(of_seeds + of_rows)
    assert one.row_variance == pytest.approx(of_rows)
    assert one.high - one.difference == pytest.approx(half)
    assert one.difference - one.low == pytest.approx(half)
    (plain,) = compare_with_baseline(table, "a", confidence=0.9)
    assert 0.1 < plain.high - plain.difference < half


def test_rows_never_narrow_an_interval() -> None:
    """Satterthwaite's freedom alone would, where the rows vary a little less than the seeds."""
    from scipy import stats

    other = raise_scores(1.0, 2.0, 0.5, 1.5, 1.0)
    scores = {"fedavg": BASE, "fedau": other}
    (plain,) = compare_with_baseline(scores, "fedavg", confidence=0.99)
    weighed = 0.15 * np.random.default_rng(0).normal(size=NUM_WEIGHT_SETS)
    resampled = {"fedavg": 0.0 * weighed, "fedau": weighed}
    of_seeds, of_rows = 1.3 / 20, weighed.var(ddof=1)
    freedom = (of_seeds + of_rows) ** 2 / (of_seeds**2 / 4 + of_rows**2 / (NUM_WEIGHT_SETS - 1))
    narrower = stats.t.isf(0.005, freedom) * math.sqrt(of_seeds + of_rows)
    assert narrower < plain.high - plain.difference
    (one,) = compare_with_baseline(scores, "fedavg", confidence=0.99, resampled=resampled)
    assert (one.low, one.high) == (plain.low, plain.high)
    assert one.row_variance > 0


def test_a_method_without_any_spread_still_depends_on_its_rows() -> None:
    """Then the degrees of freedom are those of the weights; without both, the interval is empty."""
    from scipy import stats

    scores = {"fedavg": BASE, "fedau": raise_scores(1, 1, 1, 1, 1)}
    weighed = np.random.default_rng(0).normal(size=NUM_WEIGHT_SETS)
    resampled = {"fedavg": np.zeros(NUM_WEIGHT_SETS), "fedau": weighed}
    (one,) = compare_with_baseline(scores, "fedavg", confidence=0.95, resampled=resampled)
    half = stats.t.isf(0.025, NUM_WEIGHT_SETS - 1) * weighed.std(ddof=1)
    assert one.high - one.difference == pytest.approx(half)
    same = dict.fromkeys(scores, weighed)
    (none,) = compare_with_baseline(scores, "fedavg", confidence=0.95, resampled=same)
    assert (none.low, none.high, none.row_variance) == (1.0, 1.0, 0.0)


def test_equal_scores_are_no_surer_than_one_seed_that_differs_by_a_row() -> None:
    """5 equal seeds have the deviation of 5 seeds of which one differs by the step, 0.1."""
    from scipy import stats

    scores = {"fedavg": BASE, "fedau": BASE}
    differing = np.array([0.1, 0.0, 0.0, 0.0, 0.0])
    half = stats.t.isf(0.025, 4) * differing.std(ddof=1) * math.sqrt(0.2 + 0.3125)
    (one,) = compare_with_baseline(
        scores, "fedavg", confidence=0.95, test_to_train=0.3125, step=0.1
    )
    assert (one.low, one.high) == pytest.approx((-half, half))
    assert decide_best_method(scores, "fedavg", 0.01, step=0.1).verdict == "undecided"
    assert decide_best_method(scores, "fedavg", 0.06, step=0.1).verdict == "no difference"
    assert decide_best_method(scores, "fedavg", 0.01).verdict == "no difference"


def test_a_step_changes_no_interval_of_scores_that_differ_by_more() -> None:
    """The deviation of the seeds is larger than that of one row, wherever methods are compared."""
    scores = {"fedavg": BASE, "fedau": raise_scores(1.0, 2.0, 0.5, 1.5, 1.0)}
    decision = decide_best_method(scores, "fedavg", 0.1)
    assert decide_best_method(scores, "fedavg", 0.1, step=1.0) == decision
    assert decide_best_method(scores, "fedavg", 0.1, step=9.0).verdict == "undecided"
    assert find_usable_methods(scores, BASE, 0.95) == ("fedau",)
    assert find_usable_methods(scores, BASE, 0.95, step=9.0) == ()
    three = {**scores, "afl": raise_scores(0.1, 0.1, 0.1, 0.1, 0.1)}
    best = decide_best_method(three, "fedavg", 0.01)
    assert find_indistinguishable(three, best, 0.95) == ()
    assert find_indistinguishable(three, best, 0.95, step=9.0) == ("afl",)


def test_rows_count_wherever_methods_are_compared() -> None:
    """Against each other, with guessing, and for the number of seeds that would decide."""
    rng = np.random.default_rng(0)
    scores = {
        "fedavg": BASE,
        "best": raise_scores(5.0, 5.1, 4.9, 5.0, 5.0),
        "good": raise_scores(4.0, 4.1, 3.9, 4.0, 4.1),
    }
    guessing = [one - 1.0 for one in BASE]
    decision = decide_best_method(scores, "fedavg", 0.1, guessing=guessing)
    assert decision.verdict == "best"
    assert find_indistinguishable(scores, decision, 0.95) == ()
    resampled = {name: rng.normal(size=NUM_WEIGHT_SETS) for name in (*scores, GUESSING)}
    resampled["fedavg"] = resampled["best"] + 0.001 * rng.normal(size=NUM_WEIGHT_SETS)
    decision = decide_best_method(scores, "fedavg", 0.1, guessing=guessing, resampled=resampled)
    assert decision.verdict == "best"
    assert find_indistinguishable(scores, decision, 0.95, resampled=resampled) == ("good",)
    assert set(find_usable_methods(scores, guessing, 0.95)) == {"best", "good", "fedavg"}
    usable = find_usable_methods(scores, guessing, 0.95, resampled=resampled)
    assert set(usable) == {"best", "good"}
    few = {"fedavg": BASE, "good": raise_scores(3.0, -1.0, 2.0, -0.5, 1.5)}
    assert decide_best_method(few, "fedavg", 0.01).seeds_to_decide is not None
    open_one = decide_best_method(few, "fedavg", 0.01, resampled=resampled)
    assert (open_one.verdict, open_one.seeds_to_decide) == ("undecided", None)


def test_a_useless_method_changes_nothing() -> None:
    """A gain within the margin is none, also beside a method with a wide interval."""
    rng = np.random.default_rng(0)
    base = 0.80 + 0.01 * rng.normal(size=12)
    scores = {
        "fedavg": base.tolist(),
        "A": (base + 0.002 + 0.0004 * rng.normal(size=12)).tolist(),
        "B": (base - 0.02 + 0.12 * rng.normal(size=12)).tolist(),
    }
    alone = decide_best_method({k: scores[k] for k in ("fedavg", "A")}, "fedavg", 0.01)
    beside = decide_best_method(scores, "fedavg", 0.01)
    for decision in (alone, beside):
        (one,) = (one for one in decision.differences if one.method == "A")
        assert one.low > 0
        assert one.classify(0.01) == "no difference"
    assert (alone.verdict, beside.verdict) == ("no difference", "undecided")


def test_no_method_takes_a_verdict_from_another() -> None:
    """A winner stays beside noise, and one equal method makes it no difference, in any order."""
    winner = raise_scores(5, 5.1, 5, 4.9, 5)
    noisy = raise_scores(30, -40, 20, -10, 35)
    scores = {"fedavg": BASE, "noisy": noisy, "winner": winner}
    assert decide_best_method(scores, "fedavg", 0.1).verdict == "winner"
    equal, perhaps_worse = (
        raise_scores(-0.05, -0.04, -0.05, -0.06, -0.05),
        raise_scores(-0.02, -0.04, 0.03, -0.06, -0.05),
    )
    scores = {"fedavg": BASE, "equal": equal, "other": perhaps_worse}
    decision = decide_best_method(scores, "fedavg", 0.07)
    assert [one.classify(0.07) for one in decision.differences] == ["not better", "no difference"]
    assert decision.verdict == "no difference"


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


@pytest.mark.slow
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
