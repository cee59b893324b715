"""Compute on the probability simplex: projection, restriction, and quadratic programs."""

import numpy as np
import piqp

from ..errors import SolverError
from .types import BoolArray, FloatArray

MAX_GAP = 1e-10
"""The largest accepted optimality gap of a quadratic program's solution."""

_ACCEPTED_STATUSES = (piqp.PIQP_SOLVED, piqp.PIQP_MAX_ITER_REACHED)
_SOLVER_TOLERANCE = 1e-13
_SOLVER_RELATIVE_TOLERANCE = 1e-15
_RIDGE = 3e-15


def renormalize(
    mixing: FloatArray, admitted_fraction: FloatArray, counts: BoolArray, min_mass: float = 0.0
) -> FloatArray:
    """Return s_i p_i / sum_j s_j p_j for the clients that count and 0 for others, shape (n,).

    All values are 0 if the clients that count hold no mass.

    Parameters
    ----------
    mixing : FloatArray
        p_i >= 0 of the n clients, shape (n,).
    admitted_fraction : FloatArray
        s_i in [0, 1], the admitted fraction of each update, shape (n,).
    counts : BoolArray
        Whether each client counts, shape (n,).
    min_mass : float
        The largest mass that counts as none, because p is not exact.
    """
    mass = np.where(counts, admitted_fraction * mixing, 0.0)
    total = mass.sum()
    weights: FloatArray = mass / total if total > min_mass else np.zeros_like(mass)
    return weights


def project(point: FloatArray, mass: float = 1.0) -> FloatArray:
    """Return the nearest point with coordinates >= 0 that sum to ``mass``, shape (m,).

    x_i = max(point_i - theta, 0), theta found by sorting: O(m log m).

    References
    ----------
    Held, Wolfe and Crowder 1974; Duchi et al. 2008, figure 1.
    """
    if mass == 0.0 or len(point) == 0:
        return np.zeros_like(point)
    shifted = point - point.max()
    falling = np.sort(shifted)[::-1]
    theta = (np.cumsum(falling) - mass) / np.arange(1, len(point) + 1)
    inside = np.maximum(shifted - theta[np.flatnonzero(falling > theta)[-1]], 0.0)
    nearest: FloatArray = inside * (mass / inside.sum())
    return nearest


def minimize_quadratic(
    quadratic: FloatArray,
    linear: FloatArray,
    *,
    low: FloatArray | None = None,
    high: FloatArray | None = None,
    gap: float = MAX_GAP,
) -> FloatArray:
    """Return argmin <b, p> + p^T H p / 2 over the simplex, or over its part inside a box.

    PIQP, a proximal interior-point method, solves the program to 1e-13. This function puts the
    solution exactly on the simplex and computes the optimality gap <grad, p> - min_q <grad, q>. The
    gap bounds the distance of the objective from its minimum, independently of the solver's own
    status: if H is singular, the solver may miss its tolerances although its solution is optimal.

    Parameters
    ----------
    quadratic : FloatArray
        H, symmetric and positive semidefinite, shape (K, K).
    linear : FloatArray
        b, shape (K,).
    low, high : FloatArray, optional
        The box, 0 <= low <= high <= 1, shape (K,), sum low <= 1 <= sum high; by default the whole
        simplex.
    gap : float
        Largest allowed gap, in units of the objective.

    Raises
    ------
    SolverError
        If the solver fails or the gap is larger.
    """
    size = len(linear)
    lower = np.zeros(size) if low is None else low
    upper = np.ones(size) if high is None else high
    if np.array_equal(lower, upper):
        return lower.copy()
    solution, status = _solve(*_center(quadratic, linear), lower, upper)
    if status not in _ACCEPTED_STATUSES or not np.isfinite(solution).all():
        raise SolverError(f"the quadratic program of {size} clients was not solved: {status}")
    mixing: FloatArray = np.clip(solution, lower, upper)
    mixing /= mixing.sum()
    gradient = linear - linear.mean() + quadratic @ mixing
    reached = float(gradient @ (mixing - _find_linear_minimizer(gradient, lower, upper)))
    if not reached <= gap:
        raise SolverError(
            f"the quadratic program of {size} clients was solved to a gap of {reached:.3g}, "
            f"not to {gap:.3g}"
        )
    return mixing


def _center(quadratic: FloatArray, linear: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return H and b of the same problem without terms constant on the simplex, scaled to 1.

    With r_i the mean of row i, p^T H p = p^T (H - r 1^T - 1 r^T + mean r) p + 2 <r, p> - mean r on
    the simplex. For directions that hardly differ, the remainder may be rounding error alone, which
    has no minimum. A ridge above that error has one, and changes the objective by at most the
    ridge.
    """
    row = quadratic.mean(axis=1)
    centered = quadratic - row[:, None] - row[None, :] + row.mean()
    centered += _RIDGE * len(row) * np.abs(quadratic).max() * np.eye(len(row))
    slope = linear + row
    slope = slope - slope.mean()
    scale = max(np.abs(centered).max(), np.abs(slope).max())
    return (centered / scale, slope / scale) if scale > 0 else (centered, slope)


def _solve(
    quadratic: FloatArray, linear: FloatArray, lower: FloatArray, upper: FloatArray
) -> tuple[FloatArray, piqp.Status]:
    solver = piqp.DenseSolver()
    settings = solver.settings
    settings.eps_abs = settings.eps_duality_gap_abs = _SOLVER_TOLERANCE
    settings.eps_rel = settings.eps_duality_gap_rel = _SOLVER_RELATIVE_TOLERANCE
    settings.check_duality_gap = True
    solver.setup(
        P=np.asfortranarray(quadratic),
        c=linear,
        A=np.ones((1, len(linear)), order="F"),
        b=np.ones(1),
        x_l=lower,
        x_u=np.where(upper < 1.0, upper, np.inf),  # the simplex bounds p by 1
    )
    status = solver.solve()
    return np.array(solver.result.x, dtype=np.float64), status


def _find_linear_minimizer(
    gradient: FloatArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """Return argmin <gradient, q> over lower <= q <= upper, sum q = 1: fill the cheapest first."""
    order = np.argsort(gradient, kind="stable")
    capacity = (upper - lower)[order]
    before = np.cumsum(capacity) - capacity
    best = lower.copy()
    best[order] += np.clip(1.0 - lower.sum() - before, 0.0, capacity)
    return best
