"""Step by the combined update."""

from dataclasses import dataclass

from ..description import RuleDescription
from ..parameters import POSITIVE
from ..rule import injected_value
from .base import Parameters, ServerOptimizer


@dataclass(frozen=True)
class SGD(ServerOptimizer[None]):
    """Step by x_{t+1} = x_t + learning_rate * sum_k c_k Delta_k.

    If the learning rate is 1 and the weights sum to 1, the result is the weighted mean of the
    clients' models, as in FedAvg and FedALIGN.
    """

    description = RuleDescription(
        key="sgd",
        summary="A plain step: x + server_lr times the combined update.",
    )
    is_linear = True

    learning_rate: float = injected_value(POSITIVE, default=1.0)

    def init(self, parameters: Parameters) -> None:
        """Return the empty state."""

    def step(
        self, state: None, parameters: Parameters, update: Parameters
    ) -> tuple[None, Parameters]:
        """Return x_{t+1}."""
        return None, {
            name: parameters[name] + self.learning_rate * step for name, step in update.items()
        }
