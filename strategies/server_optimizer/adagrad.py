"""FedAdagrad."""

from dataclasses import dataclass

from strategies.server_optimizer.adaptive import Adaptive
from strategies.types import FloatArray


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """v_t = v_{t-1} + Delta_t^2; the step of ``Adaptive``, without momentum by default.

    References
    ----------
    Reddi et al. 2021, Algorithm 2, FedAdagrad; beta1 = 0 as in its experiments.
    """

    beta1: float = 0.0

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return second + square
