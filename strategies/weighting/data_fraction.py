"""Weights proportional to the amount of training data: FedAvg's, and FedALIGN's p_k / (1 + A)."""

from dataclasses import dataclass

import numpy as np

from strategies.types import BoolArray, Population, Responses, Weights


@dataclass(frozen=True)
class DataFraction:
    """c_k = D_k / sum of D_i over the admitted clients i.

    This is FedAvg on whoever was admitted, and it is FedALIGN as well: with
    p_k = D_k / sum_{i in P} D_i and A = sum of p_k over the admitted non-priority clients,
    p_k / (1 + A) is the same fraction. One formula for both makes the limits exact: a closed
    gate is FedAvg on the priority clients, an open one FedAvg on all.

    Where nobody is admitted, all weights are 0 and the model stays as it is.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Algorithm 1; McMahan et al. 2017.
    """

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def weigh(self, state: None, responses: Responses, admitted: BoolArray) -> tuple[None, Weights]:
        """Return the data fractions of the admitted clients and A."""
        data = np.where(admitted, responses.num_examples, 0.0)
        total = float(data.sum())
        priority_data = float(data[responses.priority].sum())
        if total == 0.0:
            return None, Weights(np.zeros_like(data))
        mass = (total - priority_data) / priority_data if priority_data > 0 else None
        return None, Weights(data / total, inclusion_mass=mass)
