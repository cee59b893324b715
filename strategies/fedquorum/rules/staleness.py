"""Let an update count in the round in which it arrives, although it is of an older model.

The staleness s of an update is the number of rounds between the one whose model it started from and
the one in which it counts; a round without a step counts too. The update is
Delta_k = w_k - w_(t - s), and its weight c_k is that of the rule times d(s) = (1 + s)^-a.

Shapes: n is the number of updates that arrived in a round.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import ParameterError
from .composition import RuleSet
from .parameters import NON_NEGATIVE, NON_NEGATIVE_INT, POSITIVE_INT
from .rule import check_parameters, parameter
from .types import FloatArray, IntArray

LATE_REPLIES = ("discard", "count")
"""What a late reply can do."""


@dataclass(frozen=True)
class LateUpdates:
    """How updates count that arrive after the round in which their clients were asked.

    Parameters
    ----------
    staleness_exponent : float
        a >= 0; 0 for no discount. In the long run a client counts in proportion to E[d(s)], so a
        trades bias for stability.
    max_staleness : int, optional
        The largest s of an update that counts; by default there is no limit.
    concurrency : int, optional
        M, the largest number of clients that are under way at the same time; by default all.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022
    (FedBuff; concurrency, buffers); Xie, Koyejo and Gupta, "Asynchronous Federated Optimization",
    2019 (the polynomial discount). Its product with a correction for participation is ours.
    """

    staleness_exponent: float = parameter(0.5, NON_NEGATIVE)
    max_staleness: int | None = parameter(None, NON_NEGATIVE_INT)
    concurrency: int | None = parameter(None, POSITIVE_INT)

    def __post_init__(self) -> None:
        check_parameters(self)

    def compute_discount(self, staleness: IntArray) -> FloatArray:
        """Return d(s) = (1 + s)^-a, shape (n,)."""
        discount: FloatArray = np.power(
            1.0 + staleness.astype(np.float64), -self.staleness_exponent
        )
        return discount


def check_late_rules(rules: RuleSet, late: LateUpdates) -> None:
    """Refuse rules whose updates must be of the newest model, and a sample beside a concurrency.

    Raises
    ------
    ParameterError
        If the rules are refused, with the reason.
    """
    reason, sampling = rules.late_unsupported_reason, rules.selection.sampling
    if reason:
        refused = (
            rules.selection.description.key
            if rules.selection.traits.late_unsupported_reason
            else rules.weighting.description.key
        )
        raise ParameterError("late_replies", f"discard with {refused}", "count", reason)
    if sampling.priority_samples is not None:
        raise ParameterError(
            "priority_samples",
            "None with late_replies=count",
            sampling.priority_samples,
            "a draw counts in the round in which it is drawn",
        )
    if late.concurrency is not None and sampling.fraction < 1.0:
        raise ParameterError(
            "concurrency",
            "None with a fraction below 1",
            late.concurrency,
            "both say how many clients a round asks",
        )
