"""FedAdam."""

from dataclasses import dataclass

from ..types import FloatArray
from .adaptive import WithSecondDecay


@dataclass(frozen=True)
class Adam(WithSecondDecay):
    """v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2; the step and the parameters of ``Adaptive``.

    Flower's ``FedAdam`` starts at v = 0 and corrects the bias in the learning rate instead.

    References
    ----------
    Reddi et al. 2021, Algorithm 2, FedAdam.
    """

    key = "adam"
    summary = (
        "FedAdam: steps are about server_lr in every coordinate; lower it, for example to 0.01."
    )

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return self.beta2 * second + (1.0 - self.beta2) * square
