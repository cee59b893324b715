"""Mix clients by bounded responses to their losses: the base of AAggFF-S and AAggFF-D."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ..parameters import CDF, NON_NEGATIVE, POSITIVE
from ..responses import check_response_range, heard
from ..rule import parameter
from ..search import Among
from ..types import BoolArray, Call, FloatArray, Responses, Weights
from .base import BY_LOSSES, Weighting


class Mixed(Protocol):
    """A state that holds p, shape (K,)."""

    @property
    def mixing(self) -> FloatArray:
        """p by the clients ascending."""
        ...


MixedT = TypeVar("MixedT", bound=Mixed)


@dataclass(frozen=True)
class ResponseMixing(Weighting[MixedT]):
    """Weight the clients heard by c_i = p_i / sum_j p_j, with p from responses to the losses.

    If no client is heard, the state stays the same.

    Parameters
    ----------
    cdf : {"weibull", "exponential", "frechet", "normal", "gumbel", "logistic"}
        The CDF of the response; see ``cdf_value``.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    baseline = False
    fixed_population = True
    unbounded = BY_LOSSES
    factor = "p_k"
    divisor = "the sum of p over {whom}"

    cdf: str = parameter("normal", CDF, Among(CDF.choices))
    c1: float | None = parameter(None, NON_NEGATIVE)
    c2: float | None = parameter(None, POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_response_range(self.c1, self.c2)

    def weigh(
        self, state: MixedT, call: Call, responses: Responses, share: FloatArray
    ) -> tuple[MixedT, Weights]:
        """Return the state after the decision, and its p restricted to the clients heard.

        Raises
        ------
        SolverError
            If a solver does not reach its accuracy.
        ValueError
            If the clients did not measure the model that they received, or a rule that needs all
            clients did not get all.
        """
        counts = heard(call, responses, share)
        if not counts.any():
            return state, Weights(np.zeros_like(share), mixing=state.mixing)
        return self.decide(state, call, responses, share, counts)

    @abstractmethod
    def decide(
        self, state: MixedT, call: Call, responses: Responses, share: FloatArray, counts: BoolArray
    ) -> tuple[MixedT, Weights]:
        """Return the next state and the weights, given the responses of at least one client."""
