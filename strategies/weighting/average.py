"""Averages of the updates, over who took part or over all, without regard to amounts of data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from strategies.types import Call, FloatArray, Population, Proportions, Responses, Weights


@dataclass(frozen=True)
class AverageParticipating:
    """c_n = 1 / |S_t| for the |S_t| clients that took part: FedAvg on updates of equal weight.

    References
    ----------
    Wang and Ji 2024, section 6, "average participating".
    """

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def proportions(self, state: None, call: Call) -> Proportions:
        """Return 1 for every client."""
        return Proportions()

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return equal weights that sum to 1, or zeros where nobody took part."""
        total = float(share.sum())
        return None, Weights(share / total if total > 0 else np.zeros_like(share))


@dataclass(frozen=True)
class AverageAll:
    """c_n = omega_n / N for the clients that took part, N all known clients, omega fixed.

    Whoever is away counts as an update of zero. With omega_n = 1 / p_n the average is unbiased:
    the known-statistics baseline.

    Parameters
    ----------
    omega : mapping of int to float
        omega_n by client id, 1 where not given.

    References
    ----------
    Wang and Ji 2024, section 6, "average all" and "known participation statistics".
    """

    omega: Mapping[int, float] = field(default_factory=dict)

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def proportions(self, state: None, call: Call) -> Proportions:
        """Return omega_n."""
        return Proportions({k: self.omega[k] for k in call.clients if k in self.omega})

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return omega_n / N."""
        omega = {int(k): self.omega.get(int(k), 1.0) for k in responses.known}
        own = np.array([omega[int(k)] for k in responses.client], dtype=np.float64)
        return None, Weights(share * own / max(len(responses.known), 1), omega=omega)
