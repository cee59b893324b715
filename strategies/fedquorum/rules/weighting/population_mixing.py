"""Divide mixing coefficients by the sum over all clients that can count."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ..regret import Bound, compute_regret_bound
from ..types import AggregationWeights, ClientUpdates, FloatArray, Population, RoundPlan
from .base import LATE_LOSS, WEIGHTS_DEPEND_ON_LOSSES, Weighting, WeightingTraits
from .responses import compute_reported_mask, find_client_indices


@dataclass(frozen=True)
class PopulationMixing(Weighting[Any]):
    """Weight client k by c_k = s_k p_k / sum_i s_i p_i, with the mixing coefficients p of a rule.

    The sum is over all registered clients that can count, available or not; ``rule`` itself would
    divide by the p of the reporting clients. An absent client counts as an update of zero, so that
    a weight does not depend on the other participants. s_i is the fraction last admitted of client
    i (``fedquorum.rules.round.update_admitted_fractions``).

    Parameters
    ----------
    rule : Weighting
        A rule that decides p for all clients: its ``AggregationWeights.mixing`` is p, shape (K,).
    """

    rule: Weighting[Any]

    @property
    def traits(self) -> WeightingTraits:
        """Those of a rule that mixes a fixed population by losses."""
        return WeightingTraits(
            numerator=self.rule.traits.numerator,
            denominator="the sum of p over {whom}",
            has_fixed_denominator=True,
            requires_fixed_population=True,
            dp_unsupported_reason=WEIGHTS_DEPEND_ON_LOSSES,
            late_unsupported_reason=LATE_LOSS,
        )

    def init(self, population: Population) -> Any:
        """Return the rule's state before the first round."""
        return self.rule.init(population)

    def weigh(
        self, state: Any, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[Any, AggregationWeights]:
        """Return p of the reporting clients over the sum over all; raises the rule's errors."""
        next_state, weights = self.rule.weigh(state, plan, updates, admitted_fraction)
        mixing = weights.mixing
        assert mixing is not None, f"{type(self.rule).__name__} holds no p of all clients"
        registered = np.searchsorted(next_state.client, updates.registered)
        total = float((updates.effective_fractions * mixing[registered]).sum())
        counts = compute_reported_mask(plan, updates, admitted_fraction)
        numerator = np.where(
            counts, admitted_fraction * mixing[find_client_indices(next_state.client, updates)], 0.0
        )
        return next_state, replace(weights, numerator=numerator, denominator=total)

    def with_fixed_denominator(self) -> Self:
        """Return this rule, whose denominator is already fixed."""
        return self


@compute_regret_bound.register
def _(weighting: PopulationMixing, rounds: int, clients: int, fraction: float) -> Bound | None:
    """Return the rule's bound, since the rule decides p in the same way."""
    return compute_regret_bound(weighting.rule, rounds, clients, fraction)
