"""Compute the spread of a metric over clients; all of the project uses these definitions."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..rules.types import FloatArray

DISPERSION_KEYS = ("average", "worst", "best", "worst10", "best10", "gini", "std", "jain")
"""The keys of what ``compute_dispersion`` returns."""


@np.errstate(over="ignore", invalid="ignore")  # beyond the largest number, or inf - inf
def compute_dispersion(
    values: Sequence[float] | FloatArray, *, higher_is_better: bool = True
) -> dict[str, float]:
    """Return the spread of one metric over n clients, all in the metric's unit except gini, jain.

    average, worst (minimum), best (maximum); worst10 and best10: unweighted mean of the
    max(1, floor(n / 10)) lowest and highest; if lower is better, as for losses, worst is the
    maximum and best the minimum; std: population standard deviation;
    gini = sum_i (2i - n - 1) x_(i) / (n sum x), i from 1, ascending, 0 if all x are 0;
    jain = (sum x)^2 / (n sum x^2), 1 if all x are 0. Both compare fractions of a total, so they are
    NaN if a value is negative, as an R2 can be, or infinite, as the loss of a model that
    diverged. std is NaN if a value is infinite, and every number is NaN if a value is NaN.

    Parameters
    ----------
    values : sequence of float
        One value per client, at least one.
    higher_is_better : bool
        Whether the lowest value is the worst.

    Raises
    ------
    ValueError
        If ``values`` is empty.
    """
    if len(values) == 0:
        raise ValueError("the spread of no values is not defined")
    x = np.sort(np.asarray(values, dtype=np.float64))
    if np.isnan(x).any():
        return dict.fromkeys(DISPERSION_KEYS, math.nan)
    scaled, exponent = _scale_to_unit(x)
    tenth = max(1, len(x) // 10)
    low, high = ("worst", "best") if higher_is_better else ("best", "worst")
    average, lowest, highest = (
        float(np.ldexp(subset.mean(), exponent))
        for subset in (scaled, scaled[:tenth], scaled[-tenth:])
    )
    finite = bool(np.isfinite(x).all())
    gini, jain = _compute_gini_and_jain(scaled) if finite and x[0] >= 0 else (math.nan, math.nan)
    return {
        "average": average,
        low: float(x[0]),
        high: float(x[-1]),
        f"{low}10": lowest,
        f"{high}10": highest,
        "gini": gini,
        "std": float(np.ldexp(scaled.std(), exponent)) if finite else math.nan,
        "jain": jain,
    }


def _scale_to_unit(x: FloatArray) -> tuple[FloatArray, int]:
    """Return x / 2^e and e such that no finite value exceeds 1, so no square over- or underflows.

    Scaling by a power of two changes no bit of the results.
    """
    exponent = int(np.frexp(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))[1])
    return np.ldexp(x, -exponent), exponent


def _compute_gini_and_jain(x: FloatArray) -> tuple[float, float]:
    """Return gini and jain of values (n,) from 0 to 1, ascending."""
    n, total, squares = len(x), float(x.sum()), float((x * x).sum())
    if total == 0:
        return 0.0, 1.0
    ranks = 2 * np.arange(1, n + 1) - n - 1
    # Equal values would give minus the rounding error of the sum.
    return max(0.0, float(ranks @ x) / (n * total)), total * total / (n * squares)


def compute_weighted_dispersion(
    values: Sequence[float] | FloatArray,
    num_rows: Sequence[float] | FloatArray,
    *,
    higher_is_better: bool = True,
) -> dict[str, float]:
    """Return average, worst10 and best10 as means weighted by the clients' test rows.

    The tenths are the same clients as in ``compute_dispersion``; equal values keep their order.

    Parameters
    ----------
    values : sequence of float
        One value per client, shape (n,), at least one.
    num_rows : sequence of float
        The number of test rows of each client, shape (n,), with a positive sum.

    References
    ----------
    As the authors of AAggFF log them: github.com/vaseline555/AAggFF, src/server/fedavgserver.py.
    """
    x, weight = np.asarray(values, dtype=np.float64), np.asarray(num_rows, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    tenth = max(1, len(x) // 10)
    low, high = ("worst10", "best10") if higher_is_better else ("best10", "worst10")
    subsets = {"average": order, low: order[:tenth], high: order[-tenth:]}
    return {name: weighted_mean(x[clients], weight[clients]) for name, clients in subsets.items()}


def weighted_mean(
    values: Sequence[float] | FloatArray, weights: Sequence[float] | FloatArray
) -> float:
    """Return sum w x / sum w, or NaN if the weights sum to 0."""
    total = exact_sum(weights)
    if total == 0:
        return math.nan
    x, weight = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    scaled, exponent = _scale_to_unit(x)
    with np.errstate(over="ignore", invalid="ignore"):  # no data and an infinite loss: NaN
        products = weight * scaled
        return float(np.ldexp(exact_sum(products.tolist()) / total, exponent))


def exact_sum(values: Iterable[float]) -> float:
    """Return the sum, rounded once; infinite or NaN if no float64 holds it."""
    terms = list(values)
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):  # beyond the largest number, or inf - inf
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(np.asarray(terms, dtype=np.float64)))


def exact_mean(values: Sequence[float]) -> float | None:
    """Return the mean, infinite or NaN as the sum is; None without values."""
    return exact_sum(values) / len(values) if values else None
