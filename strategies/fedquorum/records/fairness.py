"""Measure the spread of a metric over clients; the project's only definitions of these numbers."""

import math
from collections.abc import Sequence

import numpy as np

from ..types import FloatArray

SPREAD = ("average", "worst", "best", "worst10", "best10", "gini", "std", "jain")
"""What ``spread`` tells of a metric over clients."""


def spread(
    values: Sequence[float] | FloatArray, *, higher_is_better: bool = True
) -> dict[str, float]:
    """Return the spread of one metric over n clients, all in the metric's unit except gini, jain.

    average, worst (minimum), best (maximum); worst10 and best10: unweighted mean of the
    max(1, floor(n / 10)) lowest and highest; where lower is better, as of losses, worst is the
    maximum and best the minimum; std: population standard deviation;
    gini = sum_i (2i - n - 1) x_(i) / (n sum x), i from 1, ascending, 0 if all x are 0;
    jain = (sum x)^2 / (n sum x^2), 1 if all x are 0. Both compare shares of a total, so they are
    NaN where a value is negative, as an R2 can be.

    Parameters
    ----------
    values : sequence of float
        One value per client, at least one.
    higher_is_better : bool
        Whether the lowest value is the worst.

    Raises
    ------
    ValueError
        If there is no value.
    """
    if len(values) == 0:
        raise ValueError("the spread of no values is not defined")
    x = np.sort(np.asarray(values, dtype=np.float64))
    n, total, squares = len(x), float(x.sum()), float((x * x).sum())
    tenth = max(1, n // 10)
    ranks = 2 * np.arange(1, n + 1) - n - 1
    shares = not (x < 0).any()
    low, high = ("worst", "best") if higher_is_better else ("best", "worst")
    return {
        "average": float(x.mean()),
        low: float(x[0]),
        high: float(x[-1]),
        f"{low}10": float(x[:tenth].mean()),
        f"{high}10": float(x[-tenth:].mean()),
        # Equal values would give minus the rounding error of the sum.
        "gini": _where(shares, max(0.0, float(ranks @ x) / (n * total)) if total > 0 else 0.0),
        "std": float(x.std()),
        "jain": _where(shares, total * total / (n * squares) if squares > 0 else 1.0),
    }


def _where(defined: bool, value: float) -> float:
    return value if defined else math.nan


def spread_by_rows(
    values: Sequence[float] | FloatArray,
    rows: Sequence[float] | FloatArray,
    *,
    higher_is_better: bool = True,
) -> dict[str, float]:
    """Return average, worst10 and best10 of ``spread`` as means weighted by the clients' test rows.

    The tenths are the same clients as there; of equal values the first ones given are the lower.

    Parameters
    ----------
    values : sequence of float
        One value per client, shape (n,), at least one.
    rows : sequence of float
        How many test rows each client has, shape (n,), with a positive sum.

    References
    ----------
    As the authors of AAggFF log them: github.com/vaseline555/AAggFF, src/server/fedavgserver.py.
    """
    x, weight = np.asarray(values, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    tenth = max(1, len(x) // 10)
    low, high = ("worst10", "best10") if higher_is_better else ("best10", "worst10")
    of = {"average": order, low: order[:tenth], high: order[-tenth:]}
    return {name: weighted_mean(x[clients], weight[clients]) for name, clients in of.items()}


def weighted_mean(
    values: Sequence[float] | FloatArray, weights: Sequence[float] | FloatArray
) -> float:
    """Return sum w x / sum w, NaN where the weights sum to 0."""
    total = math.fsum(weights)
    if total == 0:
        return math.nan
    with np.errstate(invalid="ignore"):  # no data and an infinite loss: NaN
        products = np.asarray(weights, dtype=np.float64) * np.asarray(values, dtype=np.float64)
    return math.fsum(products.tolist()) / total
