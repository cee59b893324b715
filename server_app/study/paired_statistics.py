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
    the second case the claim is about those rows only, unless the variance of the rows is added.
``r = n_test / n_train``
    Each seed divides the same rows anew into those trained on and those tested. Two seeds share
    rows, so their differences are correlated: more seeds reduce the first term only. It is the
    corrected resampled t test of Nadeau and Bengio, "Inference for the Generalization Error",
    Machine Learning 52 (2003), and of Bouckaert and Frank (2004) for repeated divisions. Rows for
    validation count for neither.

**Same test rows.** Where all seeds test the same rows, their draw adds the variance

    v = sum_b (D_b - mean(D))^2 / (B - 1)

to s^2 / J, with D_b the mean difference over seeds where each test row counts w_bi times, w_bi
from the Poisson distribution with mean 1: a bootstrap of rows within clients (Hanley and
MacGibbon, Computer Methods and Programs in Biomedicine 83 (2006)). The weights are the same for
all methods and seeds. The degrees of freedom of s^2 / J + v are Satterthwaite's (Biometrics
Bulletin 2 (1946)),

    (s^2 / J + v)^2 / ((s^2 / J)^2 / (J - 1) + v^2 / (B - 1)).

An interval is never narrower than without v: more degrees of freedom might narrow it by more than v
widens it. Rows trained on are given: the claim is about new test rows of models trained on these.

**Steps.** An accuracy moves in steps of one test row. Seeds in which no row differs have s = 0, and
an interval without width would be surer than any number of them allows. So s is at least that of
J seeds of which one differs by the smallest step h of the score,

    s >= h / sqrt(J).

**Several methods.** The intervals of m methods hold simultaneously, by Bonferroni: each end
excludes (1 - confidence) / (2 m).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from fedquorum.errors import ParameterError
from fedquorum.rules.types import FloatArray, IntArray
from scipy.special import stdtr, stdtrit

NO_DIFFERENCE = "no difference"
UNDECIDED = "undecided"
NO_USABLE_MODEL = "no usable model"
"""No method is surely better than guessing, so that differences between methods mean nothing."""

BETTER, NOT_BETTER = "better", "not better"
"""What an interval may show of one method, beside ``NO_DIFFERENCE`` and ``UNDECIDED``."""

GUESSING = "guessing"
"""The name of guessing among the methods."""

Resampled = Mapping[str, FloatArray]
"""By method, its score (B,) with each set of row weights, mean over seeds."""

NOT_RESAMPLED: Resampled = {}

NUM_WEIGHT_SETS = 100
"""B, the number of sets of row weights."""

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
        The standard deviation of these differences, over n - 1, and at least ``step / sqrt(n)``.
    low, high : float
        The ends of the interval of ``difference``, simultaneous over all methods compared.
    ahead : int
        The number of seeds with a higher score of the method.
    row_variance : float
        v, the variance of ``difference`` over draws of the test rows that all seeds share; 0 where
        it is not known, or there are none.
    """

    method: str
    difference: float
    deviation: float
    low: float
    high: float
    ahead: int
    row_variance: float = 0.0

    def classify(self, min_effect: float) -> str:
        """Return what the interval shows, for this method alone.

        ``better`` if it lies above 0 and reaches above the margin ``min_effect``; ``no difference``
        if it lies within the margin; ``not better`` if it does not reach above the margin, but
        below it; otherwise ``undecided``.
        """
        if self.high <= min_effect:
            return NO_DIFFERENCE if self.low >= -min_effect else NOT_BETTER
        return BETTER if self.low > 0 else UNDECIDED


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
        ``DECIDING_PROBABILITY`` or more, see ``find_seeds_to_decide``; None if ``MAX_SEEDS`` do
        not. None with any other verdict.
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
    resampled: Resampled = NOT_RESAMPLED,
    step: float = 0.0,
) -> Decision:
    """Decide which method is best, from runs with the same seeds.

    If the scores of guessing are known and no method is surely better, the verdict is
    ``no usable model``.

    Otherwise a method is better if its interval lies above 0 and reaches above ``min_effect``: a
    gain that is surely smaller than the margin is none. The verdict is the better method with the
    largest mean difference. Without one, it is ``undecided`` if an interval reaches above
    ``min_effect``, ``no difference`` if one lies within the margin, or the baseline if all methods
    may be worse by more than that. What holds for one method, ``PairedDifference.classify``,
    depends on the others by Bonferroni's correction alone.

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
    resampled : mapping of str to array
        For each method, and for ``GUESSING`` if it is known, the score (B,) with each of B sets of
        weights of the test rows, mean over the seeds; empty unless all seeds test the same rows.
    step : float
        h, the smallest change of a score that one test row can cause; 0 if there is none.

    Raises
    ------
    ParameterError
        If there is nothing to compare, a score is not finite, or the seeds are too few or not
        paired.
    """
    _validate_margin(min_effect)
    differences = compare_with_baseline(
        scores,
        baseline,
        confidence=confidence,
        test_to_train=test_to_train,
        resampled=resampled,
        step=step,
    )
    seeds = len(scores[baseline])
    verdict = _select_verdict(differences, baseline, min_effect)
    if len(guessing) and not find_usable_methods(
        scores, guessing, confidence, test_to_train, resampled, step=step
    ):
        verdict = NO_USABLE_MODEL
    needed = None
    if verdict == UNDECIDED:
        tail = compute_tail_probability(next_confidence or confidence, len(differences))
        needed = find_seeds_to_decide(
            differences, seeds, min_effect, tail=tail, test_to_train=test_to_train
        )
    return Decision(verdict, differences[0], baseline, seeds, differences, needed)


def compare_with_baseline(
    scores: Mapping[str, Sequence[float]],
    baseline: str,
    *,
    confidence: float,
    test_to_train: float = 0.0,
    resampled: Resampled = NOT_RESAMPLED,
    step: float = 0.0,
) -> tuple[PairedDifference, ...]:
    """Compare a family of methods with one method; all intervals hold with ``confidence``.

    Parameters
    ----------
    scores, baseline, confidence, test_to_train, resampled, step
        As in ``decide_best_method``.

    Returns
    -------
    tuple of PairedDifference
        All methods but the baseline, the largest difference first.

    Raises
    ------
    ParameterError
        As ``decide_best_method``.
    """
    table = _validate_scores(scores, baseline, confidence)
    if not (test_to_train >= 0 and math.isfinite(test_to_train)):
        raise ParameterError("test_to_train", "a number >= 0", test_to_train)
    tail = compute_tail_probability(confidence, len(table) - 1)
    differences = (
        compute_paired_difference(
            method,
            values - table[baseline],
            tail,
            test_to_train,
            _compute_row_variance(resampled, method, baseline),
            step=step,
        )
        for method, values in table.items()
        if method != baseline
    )
    return tuple(sorted(differences, key=lambda one: -one.difference))


def _validate_margin(min_effect: float) -> None:
    if not (min_effect >= 0 and math.isfinite(min_effect)):
        raise ParameterError("min_effect", "a number >= 0", min_effect)


def _validate_scores(
    scores: Mapping[str, Sequence[float]], baseline: str, confidence: float
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
    resampled: Resampled = NOT_RESAMPLED,
    *,
    step: float = 0.0,
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
    test_to_train, resampled, step
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
            method,
            best - np.asarray(scores[method], dtype=np.float64),
            tail,
            test_to_train,
            _compute_row_variance(resampled, decision.verdict, method),
            step=step,
        ).low
        <= 0
    )


def find_usable_methods(
    scores: Mapping[str, Sequence[float]],
    guessing: Sequence[float],
    confidence: float,
    test_to_train: float = 0.0,
    resampled: Resampled = NOT_RESAMPLED,
    *,
    step: float = 0.0,
) -> tuple[str, ...]:
    """Return the methods that are better than guessing, whose intervals lie above 0.

    Parameters
    ----------
    scores : mapping of str to sequence of float
        As in ``decide_best_method``.
    guessing : sequence of float
        The score of guessing in the same seeds.
    confidence : float
        The probability with which all intervals hold.
    test_to_train, resampled, step
        As in ``decide_best_method``.
    """
    compared = compare_with_baseline(
        {**scores, GUESSING: guessing},
        GUESSING,
        confidence=confidence,
        test_to_train=test_to_train,
        resampled=resampled,
        step=step,
    )
    return tuple(one.method for one in compared if one.low > 0)


def compute_paired_difference(
    method: str,
    differences: FloatArray,
    tail: float,
    test_to_train: float = 0.0,
    row_variance: float = 0.0,
    *,
    step: float = 0.0,
) -> PairedDifference:
    """Compute a method's mean difference, with an interval that excludes ``tail`` at each end."""
    mean = float(differences.mean())
    deviation = max(float(differences.std(ddof=1)), step / math.sqrt(len(differences)))
    half = float(
        _compute_half_widths(
            np.array(deviation),
            np.array(len(differences)),
            tail,
            test_to_train,
            np.array(row_variance),
        )
    )
    ahead = int((differences > 0).sum())
    return PairedDifference(method, mean, deviation, mean - half, mean + half, ahead, row_variance)


def _compute_row_variance(resampled: Resampled, method: str, baseline: str) -> float:
    """Return v, the variance over sets of row weights of a method's mean difference."""
    if not resampled:
        return 0.0
    difference = np.asarray(resampled[method]) - np.asarray(resampled[baseline])
    return float(difference.var(ddof=1))


def _compute_half_widths(
    deviation: FloatArray,
    seeds: IntArray,
    tail: float,
    test_to_train: float,
    row_variance: FloatArray,
) -> FloatArray:
    """Return half of the widths of intervals from ``seeds`` seeds."""
    of_seeds = deviation**2 / seeds
    both = of_seeds + row_variance
    # The part of the seeds, because the squares of small variances would be 0.
    part = np.where(row_variance > 0, of_seeds / np.where(both > 0, both, 1.0), 1.0)
    sets = NUM_WEIGHT_SETS - 1.0
    freedom = np.where(
        part < 1, 1.0 / (part**2 / (seeds - 1.0) + (1.0 - part) ** 2 / sets), seeds - 1.0
    )
    on_these_rows = -stdtrit(seeds - 1.0, tail) * deviation * np.sqrt(1.0 / seeds + test_to_train)
    half: FloatArray = np.maximum(on_these_rows, -stdtrit(freedom, tail) * np.sqrt(both))
    return half if np.any(row_variance) else on_these_rows


def _select_verdict(
    comparisons: Sequence[PairedDifference], baseline: str, min_effect: float
) -> str:
    """Return the verdict on comparisons, which start with the largest difference."""
    found = [one.classify(min_effect) for one in comparisons]
    if BETTER in found:
        return comparisons[found.index(BETTER)].method
    if UNDECIDED in found:
        return UNDECIDED
    return NO_DIFFERENCE if NO_DIFFERENCE in found else baseline


def find_seeds_to_decide(
    comparisons: Sequence[PairedDifference],
    seeds: int,
    min_effect: float,
    *,
    tail: float,
    test_to_train: float = 0.0,
) -> int | None:
    """Return the fewest seeds that probably decide an undecided comparison, None if none do.

    Given the mean d and the deviation s of J seeds, the mean of all n seeds, J of them included, is
    d + s sqrt(1/J - 1/n) T with T of Student's t distribution with J - 1 degrees of freedom (the
    predictive distribution under a flat prior). r and v are not in it: the rows are the same. n
    seeds decide if one method is better, or if none reaches above the margin. The two exclude each
    other, so their probability is at least
    max_i P(i is better) + max(0, 1 - sum_i P(i reaches above)).

    Parameters
    ----------
    comparisons : sequence of PairedDifference
        m methods.
    seeds : int
        J.
    min_effect : float
        The margin.
    tail : float
        The tail probability at each end of the intervals of n seeds.
    test_to_train : float
        As in ``decide_best_method``.

    Returns
    -------
    int or None
        n > J, to about 2 %, with a probability of at least ``DECIDING_PROBABILITY``.
    """
    n = np.unique(np.geomspace(seeds + 1, MAX_SEEDS, 400).astype(np.int64))
    mean = np.array([[one.difference] for one in comparisons])
    deviation = np.array([[one.deviation] for one in comparisons])
    row_variance = np.array([[one.row_variance] for one in comparisons])
    half = _compute_half_widths(deviation, n, tail, test_to_train, row_variance)
    # A method without any deviation stays where it is.
    spread = np.maximum(deviation * np.sqrt(1.0 / seeds - 1.0 / n), np.finfo(float).tiny)
    with np.errstate(over="ignore"):
        better = stdtr(seeds - 1, (mean - np.maximum(half, min_effect - half)) / spread)
        above = stdtr(seeds - 1, (mean + half - min_effect) / spread)
    probability = better.max(axis=0) + np.maximum(0.0, 1.0 - above.sum(axis=0))
    deciding = n[probability >= DECIDING_PROBABILITY]
    return int(deciding[0]) if len(deciding) else None
