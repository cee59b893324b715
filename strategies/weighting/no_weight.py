"""No update counts: the server's model stays as it is."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from strategies.parameters import ParameterError
from strategies.types import Call, FloatArray, Population, Responses, Weights
from strategies.weighting.base import Weighting


@dataclass(frozen=True)
class NoWeight:
    """c_k = 0 for every client: nothing is aggregated, as where each client learns alone."""

    needs_losses: ClassVar[bool] = False
    fixed_divisor: ClassVar[bool] = False
    factor: ClassVar[str] = "0"
    divisor: ClassVar[str] = "nothing"

    def over_known(self) -> Weighting[Any]:
        """Refuse, with the reason as a ``ParameterError``."""
        raise ParameterError("participation must be none where nothing is aggregated")

    def init(self, population: Population) -> None:
        """Return the empty state: nothing is remembered."""

    def weigh(
        self, state: None, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[None, Weights]:
        """Return zeros."""
        return None, Weights(np.zeros_like(share))
