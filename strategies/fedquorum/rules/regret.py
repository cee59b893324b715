"""Compute the regret of a run's decisions against the best fixed p, and the papers' bounds.

Shapes: T rounds, K clients. l_t(p) = -log(1 + <p, r_t>) for the response r_t of round t.
"""

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from ..errors import SolverError
from .simplex import minimize_quadratic
from .types import FloatArray, IntArray

_MAX_STEPS = 200
_RELATIVE_GAP = 1e-9
_MIN_MASS = 1e-13
_MAX_FULL_STEP = 0.25
_NUM_COLUMNS = 200


@dataclass(frozen=True)
class BestFixedWeights:
    """The best constant p in hindsight.

    ``mixing`` is p*, shape (K,); ``loss`` is sum_t l_t(p*). ``gap`` certifies it: no p on the
    simplex has a loss below ``loss - gap``.
    """

    mixing: FloatArray
    loss: float
    gap: float


@dataclass(frozen=True)
class Bound:
    """A bound on the regret of the decision losses, and whether it is proven for the run."""

    value: float
    is_proven: bool


@singledispatch
def compute_regret_bound(
    weighting: object,  # noqa: ARG001
    rounds: int,  # noqa: ARG001
    clients: int,  # noqa: ARG001
    fraction: float,  # noqa: ARG001
) -> Bound | None:
    """Return the paper's bound on the regret after T rounds with a fraction of K clients.

    It is None for a weighting without one; a weighting with a bound registers it here.
    """
    return None


def compute_best_fixed_weights(
    responses: FloatArray, multiplicity: IntArray | None = None
) -> BestFixedWeights:
    """Return argmin over the simplex of f(p) = sum_t -log(1 + <p, r_t>).

    The function takes Newton steps, each to the minimum over the simplex of the quadratic
    approximation of f at p (``minimize_quadratic``). With many clients it starts from those with
    the steepest gradients, solves for p on them, and adds steeper clients until there are none. By
    convexity f(p) - f(p*) <= <grad f(p), p> - min_i grad f(p)_i over all clients, which is the gap
    returned. T = 1,000 and K = 10,000 take a second and the memory of a few tables.

    Parameters
    ----------
    responses : FloatArray
        r_t, doubly robust under sampling, finite, shape (T, K). 1 + mean_i r_ti must be positive,
        as it is for responses >= 0 and for the estimates of AAggFF-D.
    multiplicity : IntArray, optional
        The number of clients that each column represents, shape (K,); one by default. p then
        belongs to the columns.

    Raises
    ------
    ValueError
        If the responses are not such a table.
    SolverError
        If the gap stays above 1e-9 times the size of the gradient (at least 1), or a quadratic
        program is not solved.

    References
    ----------
    The regret of Hahn, Kim and Lee 2024, eq. 5; the length of the steps, Tran-Dinh, Kyrillidis and
    Cevher 2015, "Composite self-concordant minimization".
    """
    table = np.asarray(responses, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] == 0 or not np.isfinite(table).all():  # noqa: PLR2004
        raise ValueError(f"responses must be finite numbers of shape (T, K), got {table.shape}")
    num_clients = table.shape[1]
    size = (
        np.ones(num_clients)
        if multiplicity is None
        else multiplicity * (num_clients / multiplicity.sum())
    )
    uniform = table.mean(axis=1) if multiplicity is None else (table @ size) / num_clients
    if (uniform <= -1.0).any():
        raise ValueError("1 + <p, r> must be positive for the uniform p in every round")
    best = _certify(table, size / num_clients)
    active = np.empty(0, dtype=np.int64)
    for _ in range(_MAX_STEPS):
        gradient = _compute_gradient(table, best.mixing)
        if best.gap <= _compute_max_gap(gradient):
            return best
        steepest = np.setdiff1d(np.argsort(gradient, kind="stable")[:_NUM_COLUMNS], active)
        if len(steepest) == 0:
            break
        active = np.union1d(active[best.mixing[active] > _MIN_MASS], steepest)
        # the uniform p represents the inactive clients: there 1 + <p, r> is positive
        columns = np.column_stack([uniform, table[:, active]])
        on_active = _minimize(columns, np.eye(1, columns.shape[1])[0])
        mixing = on_active[0] * size / num_clients
        mixing[active] += on_active[1:]
        best = min(best, _certify(table, mixing), key=lambda found: found.loss)
    raise SolverError(f"the best fixed p was found to a gap of {best.gap:.3g} only")


def compute_regret(
    decision_losses: FloatArray, responses: FloatArray, multiplicity: IntArray | None = None
) -> tuple[float, BestFixedWeights]:
    """Return sum_t l_t(p_t) - min_p sum_t l_t(p), and the p that attains the minimum.

    Parameters
    ----------
    decision_losses : FloatArray
        l_t(p_t) of the p before round t's decision, shape (T,).
    responses, multiplicity
        As for ``compute_best_fixed_weights``.

    Raises
    ------
    ValueError, SolverError
        As for ``compute_best_fixed_weights``; ValueError also if the numbers of rounds differ.
    """
    if len(decision_losses) != len(responses):
        raise ValueError(
            f"{len(decision_losses)} decision losses, but responses of {len(responses)} rounds"
        )
    best = compute_best_fixed_weights(responses, multiplicity)
    return float(np.sum(decision_losses)) - best.loss, best


def compute_regret_bound_s(num_rounds: int, num_clients: int, lipschitz: float) -> float:
    """Return 2 L K (1 + log(1 + T / (16 K))), the bound on AAggFF-S's regret.

    Its proof needs -log(1 - u) >= u + u^2 / (8 L) for u = <g, q - p> in [-L, 1), which holds if
    log(1 + L) <= 7 L / 8, that is L >= 0.3. Responses in [0, 1] meet this condition, but those in
    the default range [0, 1 / K] only for K <= 3. Otherwise the paper states the bound without a
    valid proof.

    References
    ----------
    Hahn, Kim and Lee 2024, the theorem on AAggFF-S.
    """
    growth = math.log1p(num_rounds / (16.0 * num_clients))
    return 2.0 * lipschitz * num_clients * (1.0 + growth)


def is_bound_s_proven(lipschitz: float) -> bool:
    """Say whether the proof of ``compute_regret_bound_s`` covers responses with this L."""
    return math.log1p(lipschitz) <= 0.875 * lipschitz


def compute_regret_bound_d(num_rounds: int, num_clients: int, lipschitz: float) -> float:
    """Return 2 L sqrt(T log K), the bound on AAggFF-D's regret.

    The bound holds for sum_t <g_t, p_t - p>, with g_t the linearized gradients that the rule sums.
    The paper states it for the decision losses too (C = 1, or in expectation), but that would need
    exact gradients: an adversary that knows the rule makes the regret of the losses grow in
    proportion to T, beyond this bound after some 10^5 rounds.

    References
    ----------
    Hahn, Kim and Lee 2024, the theorem and the corollary on AAggFF-D.
    """
    return 2.0 * lipschitz * math.sqrt(num_rounds * math.log(num_clients))


def kl_divergence(mixing: FloatArray, base: FloatArray) -> float:
    """Return KL(p || w) = sum_i p_i log(p_i / w_i) in nats, of two vectors on the simplex.

    Terms with p_i = 0 are 0; inf where w_i = 0 < p_i.
    """
    positive = mixing > 0
    if (base[positive] == 0).any():
        return math.inf
    return float((mixing[positive] * np.log(mixing[positive] / base[positive])).sum())


def _compute_gradient(table: FloatArray, mixing: FloatArray) -> FloatArray:
    gradient: FloatArray = -((1.0 / (1.0 + table @ mixing)) @ table)
    return gradient


def _certify(table: FloatArray, mixing: FloatArray) -> BestFixedWeights:
    gradient = _compute_gradient(table, mixing)
    return BestFixedWeights(
        mixing,
        loss=-float(np.log1p(table @ mixing).sum()),
        gap=float((gradient - gradient.min()) @ mixing),
    )


def _minimize(table: FloatArray, mixing: FloatArray) -> FloatArray:
    """Return argmin f on the simplex of the columns, from a p with 1 + <p, r_t> > 0 for all t.

    The step is scaled by 1 / (1 + d) while d = sqrt(s^T H s) is large, H the Hessian and s the
    step: f is self-concordant, so that 1 + <p, r_t> stays positive and f falls without a search.
    """
    for _ in range(_MAX_STEPS):
        scaled = table / (1.0 + table @ mixing)[:, None]
        gradient = -scaled.sum(axis=0)
        if float(gradient @ mixing - gradient.min()) <= 0.1 * _compute_max_gap(gradient):
            break
        hessian = scaled.T @ scaled
        linear = gradient - hessian @ mixing
        step = minimize_quadratic(hessian, linear, gap=math.inf) - mixing
        decrement = float(np.linalg.norm(scaled @ step))
        mixing = mixing + (step / (1.0 + decrement) if decrement > _MAX_FULL_STEP else step)
    return mixing


def _compute_max_gap(gradient: FloatArray) -> float:
    """Return the largest accepted gap; it grows with the gradient, as rounding does."""
    return _RELATIVE_GAP * max(1.0, float(np.abs(gradient).max()))
