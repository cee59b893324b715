"""Decide from the scores of methods over paired seeds which method is best.

The unit is the seed: all methods share its division of the data, initial model and samples. Each
method is compared with the baseline seed by seed, which cancels how easy or hard a seed is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from fedquorum.errors import ParameterError
from fedquorum.rules.types import FloatArray
from scipy.special import stdtrit

NO_DIFFERENCE = "no difference"
UNDECIDED = "undecided"
MIN_SEEDS = 5
MAX_SEEDS = 10_000
"""More seeds exceed any realistic budget."""


@dataclass(frozen=True)
class PairedDifference:
    """One method's difference from the baseline, over n paired seeds.

    Parameters
    ----------
    method : str
    difference : float
        The mean of its score minus the baseline's, in the score's unit.
    deviation : float
        The standard deviation of these differences, over n - 1.
    low, high : float
        The ends of the interval of ``difference``, simultaneous over all methods compared.
    ahead : int
        The number of seeds with a higher score of the method.
    """

    method: str
    difference: float
    deviation: float
    low: float
    high: float
    ahead: int


@dataclass(frozen=True)
class Decision:
    """The verdict on all methods, with their paired differences.

    Parameters
    ----------
    verdict : str
        The method that is better than the baseline, the baseline if all others are worse,
        ``no difference`` or ``undecided``.
    best : PairedDifference
        The method with the largest mean difference.
    baseline : str
        The method that all others are compared with.
    seeds : int
        The number of seeds.
    differences : tuple of PairedDifference
        All methods but the baseline, the largest difference first.
    seeds_to_decide : int or None
        With ``undecided``, the total number of seeds that would decide with the same differences
        and deviations, or None if ``MAX_SEEDS`` would not. None with any other verdict.
    """

    verdict: str
    best: PairedDifference
    baseline: str
    seeds: int
    differences: tuple[PairedDifference, ...]
    seeds_to_decide: int | None = None


def decide_best_method(
    scores: Mapping[str, Sequence[float]],
    baseline: str,
    min_effect: float,
    *,
    confidence: float = 0.95,
) -> Decision:
    """Decide which method is best, from runs with the same seeds.

    With d the differences of one of m methods from the baseline in n seeds, its interval is
    mean(d) +- t sd(d) / sqrt(n), where t is the quantile of Student's distribution with n - 1
    degrees of freedom at 1 - (1 - confidence) / (2 m). So with probability ``confidence`` all m
    intervals hold (Bonferroni), and so does any selection of them. A bootstrap over few seeds would
    give intervals that are too narrow.

    If no interval extends above ``min_effect``, the verdict is ``no difference``, or the baseline
    if the best method may be worse by more than that. Otherwise, if intervals are above 0, it is
    the method with the largest mean difference among them. In all other cases it is ``undecided``.

    Parameters
    ----------
    scores : mapping of str to sequence of float
        The score of each method in each seed, in the same order of seeds; higher is better.
    baseline : str
        One of the methods.
    min_effect : float
        The largest difference that counts as none, in the score's unit.
    confidence : float
        The probability with which all intervals hold.

    Raises
    ------
    ParameterError
        If there is nothing to compare, a score is not finite, or the seeds are too few or not
        paired.
    """
    table = _validate_scores(scores, baseline, min_effect, confidence)
    others = [method for method in scores if method != baseline]
    tail = compute_tail_probability(confidence, len(others))
    comparisons = sorted(
        (
            compute_paired_difference(method, table[method] - table[baseline], tail)
            for method in others
        ),
        key=lambda one: -one.difference,
    )
    seeds = len(table[baseline])
    verdict = _select_verdict(comparisons, baseline, min_effect)
    needed = (
        _find_seeds_to_decide(comparisons, min_effect, tail, seeds)
        if verdict == UNDECIDED
        else None
    )
    return Decision(verdict, comparisons[0], baseline, seeds, tuple(comparisons), needed)


def _validate_scores(
    scores: Mapping[str, Sequence[float]], baseline: str, min_effect: float, confidence: float
) -> dict[str, FloatArray]:
    table = {method: np.asarray(values, dtype=np.float64) for method, values in scores.items()}
    if baseline not in table or len(table) == 1:
        allowed = "a mapping with the baseline and at least one other method"
        raise ParameterError("scores", allowed, list(table))
    lengths = {method: len(values) for method, values in table.items()}
    if len(set(lengths.values())) > 1 or lengths[baseline] < MIN_SEEDS:
        allowed = f"of the same seeds for all methods, at least {MIN_SEEDS}"
        raise ParameterError("scores", allowed, lengths)
    for method, values in table.items():
        if not np.isfinite(values).all():
            raise ParameterError(f"scores[{method}]", "finite numbers", values.tolist())
    if not (min_effect >= 0 and math.isfinite(min_effect)):
        raise ParameterError("min_effect", "a number >= 0", min_effect)
    if not 0 < confidence < 1:
        raise ParameterError("confidence", "a number > 0 and < 1", confidence)
    return table


def compute_tail_probability(confidence: float, intervals: int) -> float:
    """Return the tail probability at each end of simultaneous intervals (Bonferroni)."""
    return (1.0 - confidence) / (2 * intervals)


def find_indistinguishable(
    scores: Mapping[str, Sequence[float]], decision: Decision, confidence: float
) -> tuple[str, ...]:
    """Return the methods that are statistically indistinguishable from the best one.

    The same scores select the best method, so the intervals are simultaneous over all pairs of
    methods.

    Parameters
    ----------
    scores : mapping of str to sequence of float
        As in ``decide_best_method``.
    decision : Decision
        The decision on these scores.
    confidence : float
        The probability with which all intervals hold.
    """
    if decision.verdict not in scores:
        return ()
    best = np.asarray(scores[decision.verdict], dtype=np.float64)
    tail = compute_tail_probability(confidence, len(scores) * (len(scores) - 1) // 2)
    others = [method for method in scores if method not in (decision.verdict, decision.baseline)]
    return tuple(
        method
        for method in others
        if compute_paired_difference(
            method, best - np.asarray(scores[method], dtype=np.float64), tail
        ).low
        <= 0
    )


def compute_paired_difference(
    method: str, differences: FloatArray, tail: float
) -> PairedDifference:
    """Compute a method's mean difference, with an interval that excludes ``tail`` at each end."""
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    half = _compute_half_width(deviation, len(differences), tail)
    ahead = int((differences > 0).sum())
    return PairedDifference(method, mean, deviation, mean - half, mean + half, ahead)


def _compute_half_width(deviation: float, seeds: int, tail: float) -> float:
    return -float(stdtrit(seeds - 1, tail)) * deviation / math.sqrt(seeds)


def _select_verdict(
    comparisons: Sequence[PairedDifference], baseline: str, min_effect: float
) -> str:
    """Return the verdict on comparisons, which start with the largest difference."""
    if all(one.high <= min_effect for one in comparisons):
        return NO_DIFFERENCE if comparisons[0].low >= -min_effect else baseline
    return next((one.method for one in comparisons if one.low > 0), UNDECIDED)


def _find_seeds_to_decide(
    comparisons: Sequence[PairedDifference], min_effect: float, tail: float, seeds: int
) -> int | None:
    """Find the fewest seeds with a verdict by bisection; more seeds only narrow the intervals."""

    def is_decided(n: int) -> bool:
        halves = [_compute_half_width(one.deviation, n, tail) for one in comparisons]
        pairs = list(zip(comparisons, halves, strict=True))
        better = any(one.difference > half for one, half in pairs)
        return better or all(one.difference + half <= min_effect for one, half in pairs)

    if not is_decided(MAX_SEEDS):
        return None
    few, enough = seeds, MAX_SEEDS
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if is_decided(middle) else (middle, enough)
    return enough
