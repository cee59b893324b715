"""Mixing coefficients divided by what all that can count hold, there or not."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ..regret import Bound
from ..responses import heard, positions
from ..types import Call, FloatArray, Population, Responses, Weights
from .base import BY_LOSSES, Weighting


@dataclass(frozen=True)
class KnownMixing(Weighting[Any]):
    """c_k = s_k p_k / sum_i s_i p_i, p as ``rule`` decides it, over all known that can count.

    The rule itself divides by p of the clients heard. Divided by p of everybody, there or not,
    whoever is away counts as an update of zero, and a weight does not depend on who else came.
    s_i is what was last known to be admitted of client i (``fedquorum.round.cover``).

    Parameters
    ----------
    rule : Weighting
        One that holds p of all clients: its ``Weights.mixing`` is p, shape (K,).
    """

    fixed_population = True
    fixed_divisor = True
    divisor = "the sum of p over {whom}"
    unbounded = BY_LOSSES

    rule: Weighting[Any]

    @property
    def factor(self) -> str:
        """What c_k is proportional to."""
        return self.rule.factor

    def init(self, population: Population) -> Any:
        """Return the rule's state before the first round."""
        return self.rule.init(population)

    def weigh(
        self, state: Any, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[Any, Weights]:
        """Return p of the clients heard over that of all; raises what the rule raises."""
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
        """Return this rule, which divides so already."""
        return self

    def regret_bound(self, rounds: int, clients: int, fraction: float) -> Bound | None:
        """Return the rule's own: p is decided the same way."""
        return self.rule.regret_bound(rounds, clients, fraction)
