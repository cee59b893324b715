"""The interface of a server optimizer."""

from collections.abc import Mapping
from typing import Protocol

from strategies.types import FloatArray, StateT

Parameters = Mapping[str, FloatArray]
"""Named model arrays in float64."""


class ServerOptimizer(Protocol[StateT]):
    """Moves the model by the combined update. Pure: state in, state out."""

    def init(self, parameters: Parameters) -> StateT:
        """Return the state before the first round."""

    def step(
        self, state: StateT, parameters: Parameters, update: Parameters
    ) -> tuple[StateT, Parameters]:
        """Return the next state and x_{t+1}, given x_t and sum_k c_k Delta_k."""
