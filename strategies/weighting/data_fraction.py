"""Weights proportional to the amount of training data: FedAvg's, and FedALIGN's p_k / (1 + A)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from strategies.types import Call, Draws, FloatArray, Population, Proportions, Responses, Weights
from strategies.weighting.known_data import KnownData


@dataclass(frozen=True)
class DataFraction:
    """c_k = s_k D_k / sum_i s_i D_i with s_k the admitted share, 1 or 0 unless weighted.

    This is FedAvg on whoever was admitted, and it is FedALIGN as well: with
    p_k = D_k / sum_{i in P} D_i and A = sum of p_k over the admitted non-priority clients,
    p_k / (1 + A) is the same fraction. One formula for both makes the limits exact: a closed
    gate is FedAvg on the priority clients, an open one FedAvg on all. Where a uniform fraction
    was sampled, P is the sampled priority clients. With priority weights lambda_k, p_k is
    D_k / sum_i lambda_i D_i and s_k = lambda_k + (1 - lambda_k) [k inside the gate].

    Where priority clients were drawn with replacement, each draw counts 1 / |S| in place of
    p_k: c_k = n_k / |S| / (1 + A) for a client drawn n_k times, with p_k and A of the others by
    the data of all priority clients. |S| counts the draws of the clients that answered.

    Where nobody is admitted, all weights are 0 and the model stays as it is.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Algorithm 1 and, for draws, the
    supplement's partial participation; McMahan et al. 2017.
    """

    needs_losses: ClassVar[bool] = False
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "D_k"
    divisor: ClassVar[str] = "the training data of {whom}"

    def over_known(self) -> KnownData:
        """Return the fractions of the data of all known clients that can count."""
        return KnownData()

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def proportions(self, state: None, call: Call) -> Proportions | None:
        """Return D_k; open where priority clients were drawn, whose data counts otherwise."""
        return Proportions(by_data=True) if call.draws is None else None

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return the fractions of the admitted data and A."""
        data = share * responses.num_examples
        objective_data = responses.priority_weight * responses.num_examples
        if call.draws is not None:
            drawn = _drawn_data(call.draws, responses)
            data = np.where(responses.priority, drawn, data)
            objective_data = np.where(responses.priority, drawn, 0.0)
        total, base = float(data.sum()), float(objective_data.sum())
        if total == 0.0:
            return None, Weights(np.zeros_like(data))
        mass = (total - base) / base if base > 0 else None
        return None, Weights(data / total, inclusion_mass=mass)


def _drawn_data(draws: Draws, responses: Responses) -> FloatArray:
    """Return n_k / |S| of all priority data for the drawn clients, 0 for others."""
    count = np.array([draws.count.get(int(k), 0) for k in responses.client], dtype=np.float64)
    total = count.sum()
    drawn: FloatArray = count * (draws.priority_data / total) if total > 0 else count
    return drawn
