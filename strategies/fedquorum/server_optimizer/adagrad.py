"""FedAdagrad."""

from dataclasses import dataclass

from ..parameters import SHARE_BELOW_ONE
from ..rule import parameter
from ..types import FloatArray
from .adaptive import Adaptive


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """v_t = v_{t-1} + Delta_t^2; the step of ``Adaptive``, without momentum by default.

    References
    ----------
    Reddi et al. 2021, Algorithm 2, FedAdagrad; beta1 = 0 as in its experiments.
    """

    key = "adagrad"
    summary = "FedAdagrad: the first steps are about server_lr in every coordinate."

    beta1: float = parameter(0.0, SHARE_BELOW_ONE)

    def _second(self, second: FloatArray, square: FloatArray) -> FloatArray:
        return second + square
