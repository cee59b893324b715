"""The interface of a server optimizer."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from strategies.types import FloatArray, StateT

Parameters = Mapping[str, FloatArray]
"""Named model arrays in float64."""


class ServerOptimizer(Protocol[StateT]):
    """Moves the model by the combined update. Pure: state in, state out.

    It gets the parameters that are trained. What a model only counts or measures (see
    ``strategies.aggregation.is_statistic``) is averaged, whatever the optimizer.
    """

    def init(self, parameters: Parameters) -> StateT:
        """Return the state before the first round."""

    def step(
        self, state: StateT, parameters: Parameters, update: Parameters
    ) -> tuple[StateT, Parameters]:
        """Return the next state and x_{t+1}, given x_t and sum_k c_k Delta_k."""


OptimizerOf = Callable[[float], ServerOptimizer[Any]]
"""Returns a server optimizer of a learning rate: ``SGD``, or ``partial(Adam, beta1=0.8)``."""
