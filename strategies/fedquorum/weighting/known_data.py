"""Weight updates by data, divided by the data of all clients that can count."""

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
    """The state: the clients ascending, and lambda_k, shapes (K,)."""

    client: IntArray
    priority_weight: FloatArray


@dataclass(frozen=True)
class KnownData(Weighting[KnownDataState]):
    """Weight client k by c_k = s_k D_k / sum_i s_i D_i, over all known clients that can count.

    Under a gate this is p_k / (1 + A^), with p_k = D_k / sum_{i in P} D_i over all of P, and A^ the
    sum of p_k over the non-priority clients last known to be aligned, present or absent. An absent
    client counts as an update of zero, so that a weight does not depend on the other participants.
    s_i is the share last admitted of client i (``fedquorum.round.cover``), and D_i its last report.
    The sum leaves out a client that has never reported D_i. If all clients are present, the rule
    equals ``DataFraction``.
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
        """Return the state: the clients and their priority weights."""
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
        """Return this rule, whose divisor is fixed already."""
        return self
