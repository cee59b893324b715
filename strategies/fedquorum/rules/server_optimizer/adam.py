"""Scale the server step by the mean of squared updates (FedAdam)."""

from dataclasses import dataclass

from ..description import RuleDescription
from ..types import FloatArray
from .adaptive import WithSecondDecay


@dataclass(frozen=True)
class Adam(WithSecondDecay):
    """Step as ``AdaptiveOptimizer`` with v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2.

    Flower's ``FedAdam`` instead starts at v = 0 and corrects the bias in the learning rate.

    References
    ----------
    Reddi et al. 2021, Algorithm 2, FedAdam.
    """

    description = RuleDescription(
        key="adam",
        summary=(
            "FedAdam: steps are about server_lr in every coordinate; lower it, for example to 0.01."
        ),
    )

    def _compute_second_moment(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return self.beta2 * second + (1.0 - self.beta2) * square
