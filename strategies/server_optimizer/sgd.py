"""The plain server step."""

from dataclasses import dataclass

from strategies.parameters import POSITIVE
from strategies.server_optimizer.base import Parameters


@dataclass(frozen=True)
class SGD:
    """x_{t+1} = x_t + learning_rate * sum_k c_k Delta_k.

    With learning rate 1 and weights that sum to 1 this is the weighted mean of the clients'
    models, as in FedAvg and FedALIGN.
    """

    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        POSITIVE.check("server_lr", self.learning_rate)

    def init(self, parameters: Parameters) -> None:
        """Return the empty state: nothing is remembered."""

    def step(
        self, state: None, parameters: Parameters, update: Parameters
    ) -> tuple[None, Parameters]:
        """Return x_{t+1}."""
        return None, {
            name: value + self.learning_rate * update[name] for name, value in parameters.items()
        }
