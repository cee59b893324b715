"""Weights corrected by participation rates that somebody knows."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from strategies.parameters import PROBABILITY
from strategies.types import Call, FloatArray, Population, Proportions, Responses, Weights
from strategies.weighting.average import AverageAll
from strategies.weighting.base import Weighting
from strategies.weighting.corrected import Corrected, corrected_proportions


@dataclass(frozen=True)
class KnownRates(Corrected):
    """c_n = omega_n b_n / B for the clients that took part, omega_n = 1 / p_n given.

    b_n / B is the weight by ``base`` over a fixed population (``Weighting.over_known``), by default
    1 / N: the known-statistics baseline. Unbiased: in the mean client n counts b_n / B.

    Parameters
    ----------
    omega : mapping of int to float
        omega_n by client id, 1 where not given.
    base : Weighting
        How much the clients are to count.

    Raises
    ------
    ParameterError
        For a base that has no weights over a fixed population.

    References
    ----------
    Wang and Ji 2024, section 6, "known participation statistics". Other bases are ours.
    """

    symbol: ClassVar[str] = "(1 / p_k)"
    omega: Mapping[int, float] = field(default_factory=dict)
    base: Weighting[Any] = field(default_factory=AverageAll)

    def init(self, population: Population) -> Any:
        """Return the base's state before the first round."""
        return self.base.init(population)

    def proportions(self, state: Any, call: Call) -> Proportions | None:
        """Return omega_n and what the base is proportional to."""
        own = {k: self.omega[k] for k in call.clients if k in self.omega}
        return corrected_proportions(own, self.base, state, call)

    def weigh(
        self, state: Any, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[Any, Weights]:
        """Return omega_n b_n / B."""
        following, weights = self.base.weigh(state, call, responses, share)
        own = np.array([self.omega.get(k, 1.0) for k in responses.client.tolist()])
        omega = {k: self.omega.get(k, 1.0) for k in responses.known.tolist()}
        return following, replace(weights, weight=own * weights.weight, omega=omega)


def inverse_rates(clients: Collection[int], probabilities: Mapping[int, float]) -> dict[int, float]:
    """Return 1 / p_n of every client.

    Raises
    ------
    ParameterError
        If a client has no p_n, or one outside (0, 1].
    """
    for client in clients:
        PROBABILITY.check(f"probabilities[{client}]", probabilities.get(client))
    return {client: 1.0 / probabilities[client] for client in clients}
