"""Divide mixing coefficients by the sum over all clients that can count."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ..regret import Bound
from ..responses import heard, positions
from ..types import Call, FloatArray, Population, Responses, Weights
from .base import BY_LOSSES, Weighting


@dataclass(frozen=True)
class KnownMixing(Weighting[Any]):
    """Weight client k by c_k = s_k p_k / sum_i s_i p_i, with the mixing coefficients p of a rule.

    The sum is over all known clients that can count, present or absent; ``rule`` itself would
    divide by the p of the clients heard. An absent client counts as an update of zero, so that a
    weight does not depend on the other participants. s_i is the share last admitted of client i
    (``fedquorum.round.cover``).

    Parameters
    ----------
    rule : Weighting
        A rule that decides p for all clients: its ``Weights.mixing`` is p, shape (K,).
    """

    fixed_population = True
    fixed_divisor = True
    divisor = "the sum of p over {whom}"
    unbounded = BY_LOSSES

    rule: Weighting[Any]

    @property
    def factor(self) -> str:
        """The formula to which c_k is proportional."""
        return self.rule.factor

    def init(self, population: Population) -> Any:
        """Return the rule's state before the first round."""
        return self.rule.init(population)

    def weigh(
        self, state: Any, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[Any, Weights]:
        """Return p of the clients heard, divided by the sum over all; raises the rule's errors."""
        following, weights = self.rule.weigh(state, call, responses, share)
        mixing = weights.mixing
        if mixing is None:
            raise TypeError(f"{type(self.rule).__name__} holds no p of all clients")
        known = np.searchsorted(following.client, responses.known)
        total = float((responses.coverage * mixing[known]).sum())
        counts = heard(call, responses, share)
        numerator = np.where(counts, share * mixing[positions(following.client, responses)], 0.0)
        return following, replace(weights, factor=numerator, divisor=total)

    def over_known(self) -> Self:
        """Return this rule, whose divisor is fixed already."""
        return self

    def regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the rule's bound, since the rule decides p in the same way."""
        return self.rule.regret_bound(rounds, clients, fraction)
