"""The regret of a run's mixing decisions, beside the bound of its method."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..regret import regret
from ..types import FloatArray

MAX_WORK = 10**10

RegretBound = Callable[[int, int], float | None]
"""The bound on the regret after T decisions over K clients, None where the method has none."""


def decision_summary(
    bound: RegretBound, losses: Sequence[float], responses: Sequence[FloatArray]
) -> dict[str, Any] | None:
    """Return the sum of the decision losses, the regret and its bound; None without decisions.

    regret = sum_t l_t(p_t) - min over fixed p of sum_t l_t(p), l_t(p) = -log(1 + <p, r_t>), over
    the T rounds in which a decision was taken. Under sampling r_t are the doubly robust
    estimates that the rule used. Null where T K min(T, K) is beyond ``MAX_WORK``.

    Parameters
    ----------
    bound : callable
        The method's bound, of T and K.
    losses : sequence of float
        l_t(p_t), shape (T,).
    responses : sequence of FloatArray
        r_t, each of shape (K,).
    """
    if not losses:
        return None
    rounds, clients = len(losses), len(responses[0])
    found: dict[str, Any] = {
        "decisions": rounds,
        "decision_loss_sum": float(np.sum(losses)),
        "regret": None,
        "regret_bound": bound(rounds, clients),
    }
    if rounds * clients * min(rounds, clients) <= MAX_WORK:
        found["regret"], _ = regret(np.array(losses), np.array(responses))
    return found
