"""Compute bounded responses to the clients' losses, and estimate them under sampling.

Shapes: K clients in all, n that sent an update in this round, m of which count. Losses have the
unit of the training loss; responses, mixing vectors and decision losses have no unit.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..parameters import NON_NEGATIVE, POSITIVE, Interval
from ..types import BoolArray, ClientUpdates, FloatArray, IntArray, RoundPlan


# Imported where they are used: SciPy takes half a second to load, and nodes do not need it.
def _normal(x: FloatArray) -> Any:
    from scipy.special import ndtr

    return ndtr(x - 1.0)


def _logistic(x: FloatArray) -> Any:
    from scipy.special import expit

    return expit(x - 1.0)


_CDFS: Mapping[str, Callable[[FloatArray], Any]] = {
    "weibull": lambda x: -np.expm1(-np.square(x)),
    "exponential": lambda x: -np.expm1(-x),
    "frechet": lambda x: np.exp(-1.0 / x),
    "normal": _normal,
    "gumbel": lambda x: np.exp(-np.exp(1.0 - x)),
    "logistic": _logistic,
}


def compute_cdf(cdf: str, x: FloatArray) -> FloatArray:
    """Return the cumulative distribution function ``cdf`` at x >= 0, elementwise, in [0, 1].

    ``weibull`` (shape 2, scale 1): 1 - exp(-x^2). ``exponential`` (rate 1): 1 - exp(-x).
    ``frechet`` (shape 1, scale 1): exp(-1/x), 0 at 0. ``normal`` (mean 1, sd 1). ``gumbel``
    (location 1, scale 1): exp(-exp(1 - x)). ``logistic`` (location 1, scale 1):
    1 / (1 + exp(1 - x)).

    Raises
    ------
    KeyError
        If there is no such function.

    References
    ----------
    Hahn, Kim and Lee 2024, eq. 8 and appendix B. The authors' published normal function is
    another one, see ``compute_authors_cdf``.
    """
    with np.errstate(divide="ignore", over="ignore"):  # the limits are right
        return np.asarray(_CDFS[cdf](x), dtype=np.float64)


def compute_authors_cdf(cdf: str, x: FloatArray) -> FloatArray:
    """Return the function in the authors' published code instead of ``cdf``, elementwise.

    For ``normal`` it is (1 + erfc((x - 1) / sqrt 2)) / 2 = 3/2 - Phi(x - 1), which falls from 1.34
    at x = 0 towards 1/2. For all others it is ``compute_cdf``.

    References
    ----------
    github.com/vaseline555/AAggFF, src/server/aaggffserver.py, ``fair_const == 3``.
    """
    value = compute_cdf(cdf, x)
    return 1.5 - value if cdf == "normal" else value


CdfFunction = Callable[[str, FloatArray], FloatArray]
"""Computes the CDF of that name, elementwise: ``compute_cdf`` or ``compute_authors_cdf``."""


def compute_relative_losses(loss: FloatArray) -> FloatArray:
    """Return F_i / mean F over the given losses, shape (m,); 1 if all losses are 0.

    The function divides by the largest loss first, so that no finite loss overflows.
    """
    largest = loss.max(initial=0.0)
    if largest == 0.0:
        return np.ones_like(loss)
    scaled = loss / largest
    ratio: FloatArray = scaled / scaled.mean()
    return ratio


def compute_bounded_responses(
    loss: FloatArray, cdf: str, c1: float, c2: float, value: CdfFunction = compute_cdf
) -> FloatArray:
    """Return r_i = C1 + (C2 - C1) CDF(F_i / mean F) in [C1, C2] for m losses >= 0, shape (m,).

    ``value`` computes the CDF. With ``compute_authors_cdf`` a response may exceed C2.

    References
    ----------
    Hahn, Kim and Lee 2024, eq. 8.
    """
    return c1 + (c2 - c1) * value(cdf, compute_relative_losses(loss))


def check_response_range(c1: float | None, c2: float | None) -> None:
    """Raise ParameterError unless 0 <= C1 < C2, for the given ones."""
    if c1 is not None:
        NON_NEGATIVE.check("c1", c1)
    if c2 is not None:
        POSITIVE.check("c2", c2)
        if c1 is not None:
            Interval(low=c1, open_low=True).check("c2", c2)


def resolve_response_range(
    c1: float | None, c2: float | None, default_c2: float
) -> tuple[float, float]:
    """Return (C1, C2), by default 0 and ``default_c2``.

    Raises
    ------
    ParameterError
        If C1 >= C2, which can happen if only C1 is given.
    """
    low = 0.0 if c1 is None else c1
    high = default_c2 if c2 is None else c2
    Interval(low=low, open_low=True).check("c2", high)
    return low, high


def compute_decision_loss(mixing: FloatArray, response: FloatArray) -> float:
    """Return l(p) = -log(1 + <p, r>) for p and r of shape (K,); inf if 1 + <p, r> <= 0.

    Responses in [0, C] keep it finite. With a larger C2, a doubly robust response may be below -1,
    where the loss is not defined and inf is its convex extension.

    References
    ----------
    Hahn, Kim and Lee 2024, section 4 (the negative logarithmic growth).
    """
    expected_response = float(mixing @ response)
    return -math.log1p(expected_response) if expected_response > -1.0 else math.inf


def estimate_doubly_robust(
    response: FloatArray, indices: IntArray, num_clients: int, fraction: float, rbar: float
) -> FloatArray:
    """Return the estimate r~_i = (1 - I_i / C) rbar + (I_i / C) r_i for all clients, shape (K,).

    If rbar is fixed before sampling, E r~_i = r_i. If rbar is the mean over a sample of fixed size
    m = C K, the estimate shrinks: E r~_i = mean r + (1 - (K - m) / (m (K - 1))) (r_i - mean r), and
    a sample of one carries no information. If C = 1 and all clients report, r~ has the bits of r.

    Parameters
    ----------
    response : FloatArray
        r_i of the reporting clients, shape (m,).
    indices : IntArray
        The indices of these clients among all K, shape (m,).
    num_clients : int
        K.
    fraction : float
        C in (0, 1], the probability of being selected.
    rbar : float
        The value for a response that was not reported.

    References
    ----------
    Hahn, Kim and Lee 2024, Lemma 4.3.
    """
    estimate = np.full(num_clients, rbar)
    estimate[indices] = (1.0 - 1.0 / fraction) * rbar + response / fraction
    return estimate


def compute_reported_mask(
    plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
) -> BoolArray:
    """Say for each client whether its loss counts, shape (n,): admitted (fraction > 0) and finite.

    A rule that weights by losses gives no weight to an update without a loss.

    Raises
    ------
    ValueError
        If no update has a loss: the clients do not send what the plan requests.
    """
    assert plan.requests_loss, "a plan requests the losses that its weighting needs"
    has_loss = np.isfinite(updates.loss)
    if len(has_loss) > 0 and not has_loss.any():
        raise ValueError(
            "weights by losses need each client's loss of the model it received, but none was sent"
        )
    counts: BoolArray = has_loss & (admitted_fraction > 0)
    return counts


def find_client_indices(clients: IntArray, updates: ClientUpdates) -> IntArray:
    """Return the index of each update's client among all K, shape (n,); both ascending."""
    if np.array_equal(clients, updates.client):
        return np.arange(len(clients))
    return np.searchsorted(clients, updates.client).astype(np.int64)


def scatter(values: FloatArray, counts: BoolArray) -> FloatArray:
    """Return ``values`` of the clients that count, shape (n,), with NaN for the others."""
    scattered = np.full(len(counts), math.nan)
    scattered[counts] = values
    return scattered
