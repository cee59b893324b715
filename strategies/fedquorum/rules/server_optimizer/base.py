"""Define the interface of a server optimizer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Generic

from ..rule import Rule
from ..types import FloatArray, StateT

Parameters = Mapping[str, FloatArray]
"""Named model arrays in float64."""


class ServerOptimizer(Rule, ABC, Generic[StateT]):
    """Step the model by the combined update.

    An optimizer is pure: it takes the state and returns the next one. It receives the trained
    parameters only; the server averages buffers (see ``fedquorum.server.aggregation.is_buffer``). A
    subclass has a field ``learning_rate``.

    Attributes
    ----------
    is_linear : bool
        Whether every step is the learning rate times the combined update.
    """

    is_linear: ClassVar[bool] = False
    learning_rate: float

    @abstractmethod
    def init(self, parameters: Parameters) -> StateT:
        """Return the state before the first round."""

    @abstractmethod
    def step(
        self, state: StateT, parameters: Parameters, update: Parameters
    ) -> tuple[StateT, Parameters]:
        """Return the next state and x_{t+1}, given x_t and sum_k c_k Delta_k."""
