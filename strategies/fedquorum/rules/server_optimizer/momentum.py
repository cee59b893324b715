"""Step with heavy-ball momentum (FedAvgM)."""

from dataclasses import dataclass

import numpy as np

from ..description import RuleDescription
from ..parameters import FRACTION_BELOW_ONE, POSITIVE, Choices
from ..rule import injected_value, parameter
from .base import Parameters, ServerOptimizer


@dataclass(frozen=True)
class Momentum(ServerOptimizer[Parameters]):
    """Step by x_{t+1} = x_t + learning_rate * v_t with v_t = momentum * v_{t-1} + Delta_t.

    Delta_t = sum_k c_k Delta_k and v_{-1} = 0. Momentum 0 is ``SGD``. The state is v, which has the
    size of a model.

    Parameters
    ----------
    learning_rate : float
        eta > 0. In the long run a constant Delta moves the model by eta / (1 - momentum) Delta.
    momentum : float
        In [0, 1).

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification", 2019, section 4.3 (FedAvgM). As ``torch.optim.SGD`` without dampening.
    """

    description = RuleDescription(
        key="momentum",
        summary="SGD with heavy-ball momentum, as FedAvgM.",
    )

    learning_rate: float = injected_value(POSITIVE, default=1.0)
    momentum: float = parameter(0.9, FRACTION_BELOW_ONE, Choices((0.5, 0.9, 0.97)))

    def init(self, parameters: Parameters) -> Parameters:
        """Return v = 0, by the parameters' names."""
        return {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(
        self, state: Parameters, parameters: Parameters, update: Parameters
    ) -> tuple[Parameters, Parameters]:
        """Return v_t and x_{t+1}."""
        velocity = {name: self.momentum * state[name] + update[name] for name in parameters}
        return velocity, {
            name: value + self.learning_rate * velocity[name] for name, value in parameters.items()
        }
