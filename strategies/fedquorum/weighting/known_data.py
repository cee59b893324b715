"""Weights by data whose divisor is the data of all that can count, there or not."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from ..rule import Question
from ..types import (
    ByClient,
    Call,
    FloatArray,
    IntArray,
    Population,
    Proportions,
    Responses,
    Weights,
)
from .base import Weighting


@dataclass(frozen=True)
class KnownDataState:
    """The clients ascending and lambda_k, shapes (K,): nothing else is remembered."""

    client: IntArray
    priority_weight: FloatArray


@dataclass(frozen=True)
class KnownData(Weighting[KnownDataState]):
    """c_k = s_k D_k / sum_i s_i D_i, the sum over all known clients that can count.

    In a gate that is p_k / (1 + A^) with p_k = D_k / sum_{i in P} D_i over all of P and A^ the sum
    of p_k over the non-priority clients last known to be aligned, present or not: whoever is away
    counts as an update of zero, and a weight does not depend on who else came. s_i is what was
    last known to be admitted of client i (``fedquorum.round.cover``), D_i what it last told; a
    client that never told is left out until it does. Where everyone is there it is
    ``DataFraction``.
    """

    question = Question.AVERAGE
    needs_losses = False
    fixed_divisor = True
    by_data = True
    factor = "D_k"
    divisor = "the training data of {whom}"
    late = "It counts as an update of zero."
    unbounded = "an update counts by its client's data, so one update can be nearly the whole step"

    def init(self, population: Population) -> KnownDataState:
        """Return who has priority."""
        return KnownDataState(population.ascending, population.priority_weights)

    def proportions(self, state: KnownDataState, call: Call) -> Proportions:
        """Return D_k."""
        return Proportions(by_data=True)

    def weigh(
        self, state: KnownDataState, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[KnownDataState, Weights]:
        """Return the fractions of the known data, and A^."""
        data = ByClient.of(responses.examples).at(responses.known, 0.0)
        total = float((responses.coverage * data).sum())
        if total == 0.0:
            return state, Weights(np.zeros_like(share))
        priority = state.priority_weight[np.searchsorted(state.client, responses.known)]
        base = float((priority * data).sum())
        mass = (total - base) / base if base > 0 else None
        return state, Weights(share * responses.num_examples, total, inclusion_mass=mass)

    def over_known(self) -> Self:
        """Return this rule, which divides so already."""
        return self
