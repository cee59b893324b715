"""Scale the server step by the sum of squared updates (FedAdagrad)."""

from dataclasses import dataclass

from ..description import RuleDescription
from ..parameters import FRACTION_BELOW_ONE
from ..rule import parameter
from ..types import FloatArray
from .adaptive import AdaptiveOptimizer


@dataclass(frozen=True)
class Adagrad(AdaptiveOptimizer):
    """Step as ``AdaptiveOptimizer`` with v_t = v_{t-1} + Delta_t^2, by default without momentum.

    References
    ----------
    Reddi et al. 2021, Algorithm 2, FedAdagrad; beta1 = 0 as in its experiments.
    """

    description = RuleDescription(
        key="adagrad",
        summary="FedAdagrad: the first steps are about server_lr in every coordinate.",
    )

    beta1: float = parameter(0.0, FRACTION_BELOW_ONE)

    def _compute_second_moment(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return second + square
