"""Tests of the verdicts on claims: known truths, Holm's method, and the seeds that would decide."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.book.verdicts import (
    LEVEL,
    MAX_SEEDS,
    Outcome,
    PairedDifferences,
    compute_interval,
    compute_look_share,
    judge_family,
)

PUBLISHED = 3.0
REPLICATES = 1000
MOST_FALSE = LEVEL * REPLICATES + 3 * math.sqrt(REPLICATES * LEVEL * (1 - LEVEL))
"""Three standard errors above the level: one honest run in 700 would exceed it."""


def summarize(values: np.ndarray, published: float | None = None) -> PairedDifferences:
    """Return the summary of one claim's differences."""
    return PairedDifferences(
        float(values.mean()), float(values.std(ddof=1)), len(values), published
    )


@pytest.mark.parametrize("seeds", [3, 5, 20])
@pytest.mark.parametrize(
    ("truth", "false_outcomes"),
    [
        (0.0, {Outcome.REPRODUCED}),
        (PUBLISHED / 3, {Outcome.CONTRADICTED}),
        (PUBLISHED, {Outcome.CONTRADICTED}),
        (-PUBLISHED, {Outcome.REPRODUCED}),
    ],
)
def test_false_verdicts_are_as_rare_as_stated(
    seeds: int, truth: float, false_outcomes: set[Outcome]
) -> None:
    """Differences of known truth: nothing, a third of the published effect, all of it, reversed."""
    rng = np.random.default_rng(seeds)
    samples = rng.normal(truth, 2.0, size=(REPLICATES, seeds))
    outcomes = Counter(judge_family([summarize(one, PUBLISHED)])[0].outcome for one in samples)
    assert sum(outcomes[outcome] for outcome in false_outcomes) <= MOST_FALSE


@pytest.mark.parametrize("looks", [(3, 10, 20), (5, 10, 20), (10, 20), (20, 30)])
@pytest.mark.parametrize(
    ("truth", "false_outcome"),
    [(0.0, Outcome.REPRODUCED), (PUBLISHED / 3, Outcome.CONTRADICTED)],
)
def test_seeds_until_decided_give_no_more_false_verdicts(
    looks: tuple[int, ...], truth: float, false_outcome: Outcome
) -> None:
    """Seeds are added until the false verdict or the last look; somebody then adds as many again.

    Without shares of the level four looks would give more.
    """
    rng = np.random.default_rng(sum(looks))
    samples = rng.normal(truth, 2.0, size=(REPLICATES, 2 * looks[-1]))
    false = dict.fromkeys((looks, ()), 0)
    for planned in false:
        for sample in samples:
            seen = (summarize(sample[:n], PUBLISHED) for n in (*looks, len(sample)))
            judged = (judge_family([replace(one, planned_looks=planned)])[0] for one in seen)
            false[planned] += any(one.outcome is false_outcome for one in judged)
    assert false[looks] <= MOST_FALSE < false[()]


@pytest.mark.parametrize("looks", [(3, 10, 20), (5, 10, 20), (10, 20), (20,), ()])
def test_the_shares_of_all_looks_add_up_to_one(looks: tuple[int, ...]) -> None:
    """The planned looks have four fifths; one beyond them has half of the rest."""
    shares = [compute_look_share(n, looks) for n in looks or (20,)]
    assert sum(shares) == pytest.approx(0.8)
    assert compute_look_share(40, looks or (20,)) == pytest.approx(0.1)


@pytest.mark.slow
def test_a_family_of_true_nulls_has_few_false_verdicts() -> None:
    """With eight claims of one table, the probability of any false one stays at the level."""
    rng = np.random.default_rng(8)
    samples = rng.normal(0.0, 1.0, size=(REPLICATES, 8, 10))
    families = [judge_family([summarize(one) for one in family]) for family in samples]
    for outcome in (Outcome.REPRODUCED, Outcome.CONTRADICTED):
        assert sum(any(one.outcome is outcome for one in f) for f in families) <= MOST_FALSE


def test_the_whole_effect_is_found_with_enough_seeds() -> None:
    """Twenty seeds, and an effect of one and a half deviations."""
    rng = np.random.default_rng(1)
    samples = rng.normal(PUBLISHED, 2.0, size=(REPLICATES, 20))
    outcomes = Counter(judge_family([summarize(one, PUBLISHED)])[0].outcome for one in samples)
    assert outcomes[Outcome.REPRODUCED] > 0.99 * REPLICATES


def test_one_claim_is_judged_by_students_t() -> None:
    """SciPy's test of the same numbers gives the same p-values."""
    from scipy.stats import ttest_1samp

    values = np.random.default_rng(3).normal(0.8, 1.0, size=7)
    one = summarize(values, PUBLISHED)
    up = ttest_1samp(values, 0.0, alternative="greater").pvalue
    down = ttest_1samp(values, PUBLISHED / 3, alternative="less").pvalue
    assert one.compute_p_value_of_nothing() == pytest.approx(up, rel=1e-12)
    assert one.compute_p_value_of_something() == pytest.approx(down, rel=1e-12)


def test_holm_divides_the_level_by_the_claims_left() -> None:
    """p = 0.02 is decided after 0.01 among two claims, not alone before it."""
    strong, weak = (PairedDifferences(mean, 1.0, 1000) for mean in (0.08, 0.065))
    p_values = [one.compute_p_value_of_nothing() for one in (strong, weak)]
    assert p_values[0] < LEVEL / 3 < p_values[1] < LEVEL / 2
    nothing = PairedDifferences(0.0, 1.0, 1000)
    both = judge_family([weak, strong])
    assert [one.outcome for one in both] == [Outcome.REPRODUCED] * 2
    # With two further claims, the weak one must pass a third of the level.
    four = judge_family([weak, nothing, strong, nothing])
    assert [one.outcome for one in four].count(Outcome.REPRODUCED) == 1


@pytest.mark.parametrize(
    ("mean", "published", "outcome", "is_far_smaller"),
    [
        (0.2, 3.0, Outcome.REPRODUCED, True),
        (0.2, None, Outcome.REPRODUCED, False),
        (2.0, 3.0, Outcome.REPRODUCED, False),
        (0.0, 3.0, Outcome.CONTRADICTED, True),
        (-0.2, None, Outcome.CONTRADICTED, False),
    ],
)
def test_a_claim_far_below_the_published_size_says_so(
    mean: float, published: float | None, outcome: Outcome, is_far_smaller: bool
) -> None:
    """A claim is about the direction, so a small difference above 0 is still reproduced."""
    (judgment,) = judge_family([PairedDifferences(mean, 0.5, 100, published)])
    assert (judgment.outcome, judgment.is_far_smaller) == (outcome, is_far_smaller)


def test_the_seeds_to_decide_are_the_fewest() -> None:
    """With that number the same mean and deviation have a verdict, with one less they have none."""
    one = PairedDifferences(1.0, 2.0, 4)
    (judgment,) = judge_family([one])
    needed = judgment.seeds_to_decide
    assert judgment.outcome is Outcome.UNDECIDED
    assert needed is not None
    level = one.look_share * LEVEL
    assert (
        one.compute_p_value_of_nothing(needed) <= level < one.compute_p_value_of_nothing(needed - 1)
    )


def test_differences_that_no_number_of_seeds_decides() -> None:
    """A tiny mean needs too many seeds; equal results in all seeds stay undecided."""
    tiny, equal = judge_family([PairedDifferences(0.001, 1.0, 5), PairedDifferences(0.0, 0.0, 20)])
    for judgment in (tiny, equal):
        assert judgment.outcome is Outcome.UNDECIDED
        assert judgment.seeds_to_decide is None
    assert MAX_SEEDS == 100


def test_an_interval_ends_where_the_one_sided_tests_do() -> None:
    """A true value at an end has a one-sided p-value of the level."""
    low, high = compute_interval(1.0, 2.0, 9)
    assert PairedDifferences(1.0 - low, 2.0, 9).compute_p_value_of_nothing() == pytest.approx(LEVEL)
    below = PairedDifferences(1.0 - high, 2.0, 9).compute_p_value_of_something()
    assert below == pytest.approx(LEVEL)
