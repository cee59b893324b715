"""Scale the server step by slowly changing squared updates (FedYogi)."""

from dataclasses import dataclass

import numpy as np

from ..description import RuleDescription
from ..types import FloatArray
from .adaptive import WithSecondDecay


@dataclass(frozen=True)
class Yogi(WithSecondDecay):
    """Step as ``AdaptiveOptimizer`` with a second moment v that changes additively.

    v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2) changes by at most
    (1 - beta2) Delta^2, so that it forgets large updates more slowly than Adam. v stays >= 0,
    because it falls only if Delta^2 < v.

    References
    ----------
    Reddi et al. 2021, Algorithm 2, FedYogi.
    """

    description = RuleDescription(
        key="yogi",
        summary=(
            "FedYogi: steps are about server_lr in every coordinate; lower it, for example to 0.01."
        ),
    )

    def _compute_second_moment(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return second - (1.0 - self.beta2) * square * np.sign(second - square)
