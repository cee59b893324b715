"""No update counts: the server's model stays as it is."""

from dataclasses import dataclass

import numpy as np

from strategies.types import Call, FloatArray, Population, Responses, Weights


@dataclass(frozen=True)
class NoWeight:
    """c_k = 0 for every client: nothing is aggregated, as where each client learns alone."""

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return zeros."""
        return None, Weights(np.zeros_like(share))
