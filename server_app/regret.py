"""The regret of a run's mixing decisions, beside the bound of its method."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from conf.schema.strategy import AaggffDSettings, AaggffSSettings, StrategySettings
from strategies.regret import regret, regret_bound_d, regret_bound_s
from strategies.responses import response_range
from strategies.types import FloatArray
from strategies.weighting.aaggff_d import lipschitz_d
from strategies.weighting.aaggff_s import lipschitz_s

MAX_WORK = 10**10


def decision_summary(
    settings: StrategySettings, losses: Sequence[float], responses: Sequence[FloatArray]
) -> dict[str, Any] | None:
    """Return the sum of the decision losses, the regret and its bound; None without decisions.

    regret = sum_t l_t(p_t) - min over fixed p of sum_t l_t(p), l_t(p) = -log(1 + <p, r_t>), over
    the T rounds in which a decision was taken. Under sampling r_t are the doubly robust
    estimates that the rule used. Null where T K min(T, K) is beyond ``MAX_WORK``.

    Parameters
    ----------
    settings : StrategySettings
        Those of AAggFF-S or -D, for the bound's constants.
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
        "regret_bound": _bound(settings, rounds, clients),
    }
    if rounds * clients * min(rounds, clients) <= MAX_WORK:
        found["regret"], _ = regret(np.array(losses), np.array(responses))
    return found


def _bound(settings: StrategySettings, rounds: int, clients: int) -> float | None:
    if isinstance(settings, AaggffSSettings):
        c1, c2 = response_range(settings.c1, settings.c2, 1.0 / clients)
        return regret_bound_s(rounds, clients, lipschitz_s(c1, c2))
    if isinstance(settings, AaggffDSettings):
        fraction = max(1, round(settings.fraction * clients)) / clients
        c1, c2 = response_range(settings.c1, settings.c2, fraction)
        return regret_bound_d(rounds, clients, lipschitz_d(c1, c2, fraction))
    return None
