"""Decide from the scores of methods over paired seeds which method is best.

**Estimand.** The expected difference of a method's score from the baseline's on new rows of the
same clients. The unit is the seed: all methods share its division of the data, initial model and
samples, so a difference within a seed does not depend on how easy the seed is. Clients are never
drawn anew: nothing is claimed about other clients.

**Assumption.** With d_1..d_J the differences of one method in J seeds and s their standard
deviation over J - 1, the mean difference has the standard error

    se = s sqrt(1 / J + r)

and (mean - truth) / se has Student's t distribution with J - 1 degrees of freedom. r depends on
what a seed draws anew (``client_app.data.seed_draws``):

``r = 0``
    Each seed draws new data, or all seeds test the same rows. The differences are independent; in
    the second case the claim is about those rows only.
``r = n_test / n_train``
    Each seed divides the same rows anew into those trained on and those tested. Two seeds share
    rows, so their differences are correlated: more seeds reduce the first term only. It is the
    corrected resampled t test of Nadeau and Bengio, "Inference for the Generalization Error",
    Machine Learning 52 (2003), and of Bouckaert and Frank (2004) for repeated divisions. Rows for
    validation count for neither.

**Several methods.** The intervals of m methods hold simultaneously, by Bonferroni: each end
excludes (1 - confidence) / (2 m).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from fedquorum.errors import ParameterError
from fedquorum.rules.types import FloatArray
from scipy.special import ndtr, stdtrit

NO_DIFFERENCE = "no difference"
UNDECIDED = "undecided"
NO_USABLE_MODEL = "no usable model"
"""No method is surely better than guessing, so that differences between methods mean nothing."""

MIN_SEEDS = 5
MAX_SEEDS = 10_000
"""More seeds exceed any realistic budget."""

DECIDING_PROBABILITY = 0.8
"""The probability with which the advised number of seeds decides."""


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
        ``no difference``, ``undecided`` or ``no usable model``.
    best : PairedDifference
        The method with the largest mean difference.
    baseline : str
        The method that all others are compared with.
    seeds : int
        The number of seeds.
    differences : tuple of PairedDifference
        All methods but the baseline, the largest difference first.
    seeds_to_decide : int or None
        With ``undecided``, the fewest seeds, those so far included, that decide with probability
        ``DECIDING_PROBABILITY`` or more; None if ``MAX_SEEDS`` would not. None with any other
        verdict.
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
    test_to_train: float = 0.0,
    next_confidence: float | None = None,
    guessing: Sequence[float] = (),
) -> Decision:
    """Decide which method is best, from runs with the same seeds.

    If the scores of guessing are known and no method is surely better, the verdict is
    ``no usable model``.

    Otherwise a method is better than the baseline if its interval lies above 0 and reaches above
    ``min_effect``: a gain that is surely smaller than the margin is none. The verdict is the better
    method with the largest mean difference. Without one, it is ``no difference`` if no interval
    extends above ``min_effect``, or the baseline if the best method may be worse by more than that.
    In all other cases it is ``undecided``.

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
    test_to_train : float
        r, the number of test rows over the number of rows trained on if each seed divides the same
        rows anew, otherwise 0.
    next_confidence : float, optional
        The confidence of the next look at these methods, for ``seeds_to_decide``; by default the
        same.
    guessing : sequence of float
        The score of a model that has learned nothing, in the same seeds; empty if it is unknown.

    Raises
    ------
    ParameterError
        If there is nothing to compare, a score is not finite, or the seeds are too few or not
        paired.
    """
    table = _validate_scores(scores, baseline, min_effect, confidence)
    if not (test_to_train >= 0 and math.isfinite(test_to_train)):
        raise ParameterError("test_to_train", "a number >= 0", test_to_train)
    others = [method for method in scores if method != baseline]
    tail = compute_tail_probability(confidence, len(others))
    comparisons = sorted(
        (
            compute_paired_difference(method, table[method] - table[baseline], tail, test_to_train)
            for method in others
        ),
        key=lambda one: -one.difference,
    )
    seeds = len(table[baseline])
    verdict = _select_verdict(comparisons, baseline, min_effect)
    if len(guessing) and not find_usable_methods(table, guessing, confidence, test_to_train):
        verdict = NO_USABLE_MODEL
    needed = None
    if verdict == UNDECIDED:
        next_tail = compute_tail_probability(next_confidence or confidence, len(others))
        advice = SeedAdvice(tuple(comparisons), seeds, min_effect, next_tail, test_to_train)
        needed = advice.find_seeds_to_decide()
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
    scores: Mapping[str, Sequence[float]],
    decision: Decision,
    confidence: float,
    test_to_train: float = 0.0,
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
    test_to_train : float
        As in ``decide_best_method``.
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
            method, best - np.asarray(scores[method], dtype=np.float64), tail, test_to_train
        ).low
        <= 0
    )


def find_usable_methods(
    scores: Mapping[str, Sequence[float] | FloatArray],
    guessing: Sequence[float],
    confidence: float,
    test_to_train: float = 0.0,
) -> tuple[str, ...]:
    """Return the methods that are better than guessing, whose intervals lie above 0.

    Parameters
    ----------
    scores : mapping of str to sequence of float
        As in ``decide_best_method``.
    guessing : sequence of float
        The score of a model that has learned nothing but how frequent each class is, in the same
        seeds.
    confidence : float
        The probability with which all intervals hold.
    test_to_train : float
        As in ``decide_best_method``.
    """
    tail, guess = compute_tail_probability(confidence, len(scores)), np.asarray(guessing)
    return tuple(
        method
        for method, values in scores.items()
        if compute_paired_difference(method, np.asarray(values) - guess, tail, test_to_train).low
        > 0
    )


def compute_paired_difference(
    method: str, differences: FloatArray, tail: float, test_to_train: float = 0.0
) -> PairedDifference:
    """Compute a method's mean difference, with an interval that excludes ``tail`` at each end."""
    mean, deviation = float(differences.mean()), float(differences.std(ddof=1))
    half = _compute_half_width(deviation, len(differences), tail, test_to_train)
    ahead = int((differences > 0).sum())
    return PairedDifference(method, mean, deviation, mean - half, mean + half, ahead)


def _compute_half_width(deviation: float, seeds: int, tail: float, test_to_train: float) -> float:
    return -float(stdtrit(seeds - 1, tail)) * deviation * math.sqrt(1.0 / seeds + test_to_train)


def is_better(one: PairedDifference, min_effect: float) -> bool:
    """Say whether a method's gain is above 0, and not surely within the margin."""
    return one.low > 0 and one.high > min_effect


def _select_verdict(
    comparisons: Sequence[PairedDifference], baseline: str, min_effect: float
) -> str:
    """Return the verdict on comparisons, which start with the largest difference."""
    if all(one.high <= min_effect for one in comparisons):
        return NO_DIFFERENCE if comparisons[0].low >= -min_effect else baseline
    return next((one.method for one in comparisons if is_better(one, min_effect)), UNDECIDED)


@dataclass(frozen=True)
class SeedAdvice:
    """The chance that more seeds over the same rows decide an undecided comparison.

    Given the mean d and the deviation s of J seeds, and nothing known before them, the mean of n
    seeds is normal around d with variance s^2 (1/J - 1/n): what the rows themselves contribute has
    happened already. So the chance follows from where the interval of n seeds ends.

    Parameters
    ----------
    comparisons : tuple of PairedDifference
    seeds : int
        J.
    min_effect : float
        The margin.
    tail : float
        What the intervals exclude at each end.
    test_to_train : float
        As in ``decide_best_method``.
    """

    comparisons: tuple[PairedDifference, ...]
    seeds: int
    min_effect: float
    tail: float
    test_to_train: float

    def compute_probability(self, seeds: int) -> float:
        """Return a lower bound of the probability that ``seeds`` seeds decide.

        They decide if one method is better, or if none can be better by more than the margin.
        """
        better, within = [], []
        for one in self.comparisons:
            half = _compute_half_width(one.deviation, seeds, self.tail, self.test_to_train)
            spread = one.deviation * math.sqrt(1.0 / self.seeds - 1.0 / seeds)
            least = max(half, self.min_effect - half)
            better.append(_compute_normal_tail(one.difference - least, spread))
            within.append(_compute_normal_tail(self.min_effect - half - one.difference, spread))
        return min(1.0, max(better) + min(within))

    def find_seeds_to_decide(self) -> int | None:
        """Return the fewest seeds that decide with ``DECIDING_PROBABILITY``, None if too many."""
        seeds = np.unique(np.geomspace(self.seeds + 1, MAX_SEEDS, 400).astype(int)).tolist()
        return next((n for n in seeds if self.compute_probability(n) >= DECIDING_PROBABILITY), None)


def _compute_normal_tail(gap: float, spread: float) -> float:
    """Return the probability that a normal number around ``gap`` is above 0."""
    if spread == 0.0:
        return float(gap > 0)
    return float(ndtr(gap / spread))
