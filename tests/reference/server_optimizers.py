"""Server optimizers written a number at a time, from Reddi et al. 2021, Algorithm 2."""

import math
from collections.abc import Sequence


def compute_adaptive_path(
    kind: str,
    deltas: Sequence[float],
    *,
    x: float,
    eta: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> list[float]:
    """Return x after every round, of one coordinate, with v_{-1} = tau^2 and m_{-1} = 0."""
    m, v, path = 0.0, tau * tau, []
    for delta in deltas:
        m = beta1 * m + (1 - beta1) * delta
        if kind == "adagrad":
            v = v + delta * delta
        elif kind == "adam":
            v = beta2 * v + (1 - beta2) * delta * delta
        elif v > delta * delta:  # yogi: the sign spelled out
            v = v - (1 - beta2) * delta * delta
        elif v < delta * delta:
            v = v + (1 - beta2) * delta * delta
        x = x + eta * m / (math.sqrt(v) + tau)
        path.append(x)
    return path
