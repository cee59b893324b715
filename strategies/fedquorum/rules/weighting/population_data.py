"""Weight updates by data, divided by the data of all clients that can count."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ..description import Goal, RuleDescription
from ..types import (
    AggregationWeights,
    ClientUpdates,
    FloatArray,
    IntArray,
    KnownWeights,
    PerClient,
    Population,
    RoundPlan,
)
from .base import Weighting, WeightingTraits


@dataclass(frozen=True)
class PopulationDataState:
    """The clients ascending, and lambda_k, shapes (K,)."""

    client: IntArray
    priority_weight: FloatArray


@dataclass(frozen=True)
class PopulationDataFraction(Weighting[PopulationDataState]):
    """Weight client k by c_k = s_k D_k / sum_i s_i D_i, over all registered clients that can count.

    Under a gate this is p_k / (1 + A^), with p_k = D_k / sum_{i in P} D_i over all of P, and A^ the
    sum of p_k over the aligned non-priority clients, available or not. An absent client counts as
    an update of zero, so that a weight does not depend on the other participants. s_i is the
    fraction last admitted of client i (``fedquorum.rules.round.update_admitted_fractions``), and
    D_i its last report. The sum leaves out a client that has never reported D_i. If all clients
    participate, the rule equals ``DataFraction``.
    """

    description = RuleDescription(goal=Goal.AVERAGE)
    traits = WeightingTraits(
        numerator="D_k",
        denominator="the training data of {whom}",
        has_fixed_denominator=True,
        needs_losses=False,
        weights_by_data=True,
        dp_unsupported_reason=(
            "an update counts by its client's data, so one update can be nearly the whole step"
        ),
        late_unsupported_reason="",
        sum_unsupported_reason="",
    )

    def init(self, population: Population) -> PopulationDataState:
        """Return the clients and their priority weights."""
        return PopulationDataState(population.sorted_clients, population.priority_weights)

    def compute_known_weights(self, state: PopulationDataState, plan: RoundPlan) -> KnownWeights:
        """Return D_k."""
        return KnownWeights(by_data=True)

    def weigh(
        self,
        state: PopulationDataState,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[PopulationDataState, AggregationWeights]:
        """Return the fractions of the reported data, and A^."""
        data = PerClient.from_mapping(updates.reported_examples).get_array(updates.registered, 0.0)
        total = float((updates.effective_fractions * data).sum())
        if total == 0.0:
            return state, AggregationWeights(np.zeros_like(admitted_fraction))
        priority = state.priority_weight[np.searchsorted(state.client, updates.registered)]
        base = float((priority * data).sum())
        mass = (total - base) / base if base > 0 else None
        return state, AggregationWeights(
            admitted_fraction * updates.num_examples, total, inclusion_mass=mass
        )

    def with_fixed_denominator(self) -> Self:
        """Return this rule, whose denominator is already fixed."""
        return self
