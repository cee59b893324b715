"""An independent implementation of AAggFF in high precision; shares no code with ``fedquorum``.

Transforms, estimates and gradients are computed by mpmath with 40 digits, from the formulas of
Hahn, Kim and Lee 2024 (Algorithms 2 and 3). The quadratic programs of AAggFF-S are solved exactly,
up to the arithmetic, by an active-set method: in 40 digits, or for many clients in NumPy's long
double (19 digits on x86-64).
"""

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

mpmath.mp.dps = 40

Real = Any  # an mpmath number
Vector = NDArray[Any]

CDFS: dict[str, Callable[[Real], Real]] = {
    "weibull": lambda x: 1 - mpmath.exp(-(x**2)),
    "exponential": lambda x: 1 - mpmath.exp(-x),
    "frechet": lambda x: mpmath.exp(-1 / x) if x > 0 else mpmath.mpf(0),
    "normal": lambda x: (1 + mpmath.erf((x - 1) / mpmath.sqrt(2))) / 2,
    "gumbel": lambda x: mpmath.exp(-mpmath.exp(-(x - 1))),
    "logistic": lambda x: 1 / (1 + mpmath.exp(-(x - 1))),
}


def compute_responses(losses: Sequence[float], cdf: str, c1: Real, c2: Real) -> list[Real]:
    """Return C1 + (C2 - C1) CDF(F_i / mean F)."""
    exact = [mpmath.mpf(float(loss)) for loss in losses]
    mean = sum(exact) / len(exact)
    return [
        c1 + (c2 - c1) * CDFS[cdf](loss / mean if mean > 0 else mpmath.mpf(1)) for loss in exact
    ]


def compute_newton_trajectory(
    rounds: Sequence[dict[int, float]],
    num_clients: int,
    cdf: str,
    *,
    c1: float = 0.0,
    c2: float | None = None,
    extended: bool = False,
) -> NDArray[np.float64]:
    """Return AAggFF-S's p after every round, shape (T, K).

    ``rounds`` has the reported losses by client. ``extended`` solves in long double.
    """
    low = mpmath.mpf(c1)
    high = 1 / mpmath.mpf(num_clients) if c2 is None else mpmath.mpf(c2)
    lipschitz = high / (1 + low)
    number = _to_long_double if extended else _return_number
    alpha, beta = number(4 * num_clients * lipschitz), number(1 / (4 * lipschitz))
    hessian = np.array([[number(mpmath.mpf(0))] * num_clients] * num_clients)
    for i in range(num_clients):
        hessian[i, i] = alpha
    linear = np.array([number(mpmath.mpf(0))] * num_clients)
    mixing = np.array([number(mpmath.mpf(1) / num_clients)] * num_clients)
    support = np.ones(num_clients, dtype=np.bool_)
    trajectory = []
    for losses in rounds:
        reported = dict(
            zip(losses, compute_responses(list(losses.values()), cdf, low, high), strict=True)
        )
        mean = sum(reported.values()) / len(reported)
        response = np.array([number(reported.get(k, mean)) for k in range(num_clients)])
        gradient = -response / (1 + mixing @ response)
        hessian = hessian + beta * np.outer(gradient, gradient)
        linear = linear + gradient - beta * gradient * (gradient @ mixing)
        mixing, support = _solve_quadratic_program(hessian, linear, support)
        trajectory.append([float(p) for p in mixing])
    return np.array(trajectory)


def compute_published_cdf(x: Real) -> Real:
    """Return the function of the authors' code that replaces the normal CDF."""
    return (1 + mpmath.erfc((x - 1) / mpmath.sqrt(2))) / 2


def compute_published_trajectory(
    rounds: Sequence[dict[int, float]], num_clients: int, cdf: str
) -> NDArray[np.float64]:
    """Return p after every round by AAggFF-S as in the authors' code, shape (T, K).

    That code has the range [0, 1 / K] built in: L = 1 / K, alpha = 4 K L, beta = 1 / (4 L). It
    minimizes <sum g, p> + (alpha / 2) |p|^2 + (beta / 2) p' (alpha I + sum g g') p. All clients are
    reporting in every round; p starts uniform here.
    """
    size = mpmath.mpf(num_clients)
    alpha, beta = mpmath.mpf(4), size / 4
    value = compute_published_cdf if cdf == "normal" else CDFS[cdf]
    zero = mpmath.mpf(0)
    identity = np.array(
        [[mpmath.mpf(int(i == j)) for j in range(num_clients)] for i in range(num_clients)]
    )
    total, hessian = np.array([zero] * num_clients), alpha * identity
    mixing = np.array([1 / size] * num_clients)
    support = np.ones(num_clients, dtype=np.bool_)
    trajectory = []
    for losses in rounds:
        exact = [mpmath.mpf(losses[k]) for k in range(num_clients)]
        mean = sum(exact) / size
        response = np.array([value(loss / mean) / size for loss in exact])
        gradient = -response / (mixing @ response + 1)
        total = total + gradient
        hessian = hessian + np.outer(gradient, gradient)
        mixing, support = _solve_quadratic_program(
            alpha * identity + beta * hessian, total, support
        )
        trajectory.append([float(p) for p in mixing])
    return np.array(trajectory)


def _return_number(x: Real) -> Real:
    return x


def _to_long_double(x: Real) -> Real:
    return np.longdouble(mpmath.nstr(x, 30))


def _solve_quadratic_program(
    hessian: Vector, linear: Vector, support: NDArray[np.bool_]
) -> tuple[Vector, NDArray[np.bool_]]:
    """Return argmin <b, p> + p^T H p / 2 on the simplex and its support, starting from a guess.

    On the support p solves the equality-constrained problem. A client with a negative p leaves the
    support, and one with a negative multiplier enters it, until the optimality conditions hold.
    """
    size = len(linear)
    for _ in range(10 * size + 50):
        both = np.stack([-linear[support], np.ones_like(linear[support])], axis=1)
        solved = _solve(hessian[np.ix_(support, support)], both)
        level = (1 - solved[:, 0].sum()) / solved[:, 1].sum()
        mixing = np.zeros_like(linear)
        mixing[support] = solved[:, 0] + level * solved[:, 1]
        multiplier = linear + hessian @ mixing - level
        next_support = np.where(support, mixing > 0, multiplier < 0)
        if np.array_equal(next_support, support):
            return mixing, support
        support = next_support
    raise AssertionError("the active sets do not settle")


def _solve(matrix: Vector, right: Vector) -> Vector:
    """Return the solution of a positive definite system by elimination, in the given arithmetic."""
    matrix, right = matrix.copy(), right.copy()
    size = len(matrix)
    for k in range(size - 1):
        factor = matrix[k + 1 :, k] / matrix[k, k]
        matrix[k + 1 :, k + 1 :] -= np.outer(factor, matrix[k, k + 1 :])
        right[k + 1 :] -= np.outer(factor, right[k])
    for k in range(size - 1, -1, -1):
        right[k] = (right[k] - matrix[k, k + 1 :] @ right[k + 1 :]) / matrix[k, k]
    return right


def follow_the_leader_trajectory(
    rounds: Sequence[dict[int, float]],
    num_clients: int,
    num_selected: int,
    cdf: str,
    *,
    c1: float = 0.0,
    c2: float | None = None,
    running: bool = False,
) -> tuple[NDArray[np.float64], list[float]]:
    """Return AAggFF-D's p after every round, shape (T, K), and l_t of the p before it.

    ``rounds`` has the reported losses by client, ``num_selected`` the clients of a round.
    """
    fraction = mpmath.mpf(num_selected) / num_clients
    low = mpmath.mpf(c1)
    high = fraction if c2 is None else mpmath.mpf(c2)
    lipschitz = high / (1 + low) + 2 * (high - low) / (fraction * (1 + low))
    mixing = [mpmath.mpf(1) / num_clients] * num_clients
    total = [mpmath.mpf(0)] * num_clients
    means: list[Real] = []
    trajectory, decision_losses = [], []
    for losses in rounds:
        reported = dict(
            zip(losses, compute_responses(list(losses.values()), cdf, low, high), strict=True)
        )
        mean = sum(reported.values()) / len(reported)
        rbar = mean
        if running:
            first = low + (high - low) * CDFS[cdf](mpmath.mpf(1))
            rbar = sum(means) / len(means) if means else first
        means.append(mean)
        estimate = [
            (1 - 1 / fraction) * rbar + reported[k] / fraction if k in reported else rbar
            for k in range(num_clients)
        ]
        mass = sum(mixing)
        deviation = sum(p * (r - rbar) for p, r in zip(mixing, estimate, strict=True))
        decision_losses.append(
            float(-mpmath.log(1 + sum(p * r for p, r in zip(mixing, estimate, strict=True))))
        )
        growth = 1 + rbar * mass
        total = [
            g - r / growth + rbar * deviation / growth**2
            for g, r in zip(total, estimate, strict=True)
        ]
        step = mpmath.sqrt(mpmath.log(num_clients)) / (lipschitz * mpmath.sqrt(len(means) + 1))
        powers = [mpmath.exp(-step * g) for g in total]
        power_sum = sum(powers)
        mixing = [power / power_sum for power in powers]
        trajectory.append([float(p) for p in mixing])
    return np.array(trajectory), decision_losses
