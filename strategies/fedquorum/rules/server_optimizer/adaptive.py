"""Scale the server step in each coordinate: the base of Adam, Yogi and Adagrad.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ..parameters import FRACTION_BELOW_ONE, POSITIVE, FloatRange
from ..rule import injected_value, parameter
from ..types import FloatArray
from .base import Parameters, ServerOptimizer


@dataclass(frozen=True)
class AdaptiveState:
    """Two arrays per trained array, by its name: ``mean`` is m and ``second`` is v."""

    mean: Parameters
    second: Parameters


@dataclass(frozen=True)
class AdaptiveOptimizer(ServerOptimizer[AdaptiveState]):
    """Step by x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau), coordinate by coordinate.

    m_t = beta1 m_{t-1} + (1 - beta1) Delta_t with Delta_t = sum_k c_k Delta_k. The start is
    m_{-1} = 0 and v_{-1} = tau^2, the smallest that the paper allows. A step has the length eta in
    each coordinate, approximately, whatever the length of Delta. eta is therefore much smaller than
    for SGD: the paper searches 0.001 to 1, with tau 1e-3. As in the paper, the bias towards the
    start is not corrected.

    Parameters
    ----------
    learning_rate : float
        eta > 0.
    beta1 : float
        In [0, 1).
    tau : float
        > 0, in units of Delta. A larger tau adapts less.
    """

    learning_rate: float = injected_value(POSITIVE, default=0.01)
    beta1: float = parameter(0.9, FRACTION_BELOW_ONE)
    tau: float = parameter(1e-3, POSITIVE, FloatRange(1e-4, 0.1))

    def init(self, parameters: Parameters) -> AdaptiveState:
        """Return m = 0 and v = tau^2."""
        return AdaptiveState(
            mean={name: np.zeros_like(value) for name, value in parameters.items()},
            second={name: np.full_like(value, self.tau**2) for name, value in parameters.items()},
        )

    def step(
        self, state: AdaptiveState, parameters: Parameters, update: Parameters
    ) -> tuple[AdaptiveState, Parameters]:
        """Return m_t, v_t and x_{t+1}."""
        mean = {
            name: self.beta1 * state.mean[name] + (1.0 - self.beta1) * update[name]
            for name in parameters
        }
        second = {
            name: self._compute_second_moment(state.second[name], np.square(update[name]))
            for name in parameters
        }
        return AdaptiveState(mean, second), {
            name: value + self.learning_rate * mean[name] / (np.sqrt(second[name]) + self.tau)
            for name, value in parameters.items()
        }

    @abstractmethod
    def _compute_second_moment(self, second: FloatArray, square: FloatArray) -> FloatArray:
        """Return v_t from v_{t-1} and Delta_t^2."""


@dataclass(frozen=True)
class WithSecondDecay(AdaptiveOptimizer):
    """A base with ``beta2`` in [0, 1), the decay rate of v per round."""

    beta2: float = parameter(0.99, FRACTION_BELOW_ONE)
