"""Mix clients by bounded responses to their losses: the base of AAggFF-S and AAggFF-D."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ..parameters import CDF, NON_NEGATIVE, POSITIVE, Choices
from ..rule import parameter
from ..types import AggregationWeights, BoolArray, ClientUpdates, FloatArray, RoundPlan
from .base import LATE_LOSS, WEIGHTS_DEPEND_ON_LOSSES, Weighting, WeightingTraits
from .responses import check_response_range, compute_reported_mask


class MixingState(Protocol):
    """A state that holds p, shape (K,)."""

    @property
    def mixing(self) -> FloatArray:
        """p by the clients ascending."""
        ...


MixingStateT = TypeVar("MixingStateT", bound=MixingState)


@dataclass(frozen=True)
class ResponseMixing(Weighting[MixingStateT]):
    """Weight the reporting clients by c_i = p_i / sum_j p_j, with p from responses to the losses.

    If no client reports, the state stays the same.

    Parameters
    ----------
    cdf : {"weibull", "exponential", "frechet", "normal", "gumbel", "logistic"}
        The CDF of the response; see ``compute_cdf``.
    c1, c2 : float, optional
        The range of the responses, 0 <= C1 < C2.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    traits = WeightingTraits(
        numerator="p_k",
        denominator="the sum of p over {whom}",
        requires_fixed_population=True,
        dp_unsupported_reason=WEIGHTS_DEPEND_ON_LOSSES,
        late_unsupported_reason=LATE_LOSS,
    )

    cdf: str = parameter("normal", CDF, Choices(CDF.choices))
    c1: float | None = parameter(None, NON_NEGATIVE)
    c2: float | None = parameter(None, POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_response_range(self.c1, self.c2)

    def weigh(
        self,
        state: MixingStateT,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
    ) -> tuple[MixingStateT, AggregationWeights]:
        """Return the state after the decision, and its p restricted to the reporting clients.

        Raises
        ------
        SolverError
            If a solver does not reach its accuracy.
        ValueError
            If the clients did not evaluate the model that they received, or a rule that needs all
            clients did not get all.
        """
        counts = compute_reported_mask(plan, updates, admitted_fraction)
        if not counts.any():
            return state, AggregationWeights(np.zeros_like(admitted_fraction), mixing=state.mixing)
        return self.decide(state, plan, updates, admitted_fraction, counts)

    @abstractmethod
    def decide(
        self,
        state: MixingStateT,
        plan: RoundPlan,
        updates: ClientUpdates,
        admitted_fraction: FloatArray,
        counts: BoolArray,
    ) -> tuple[MixingStateT, AggregationWeights]:
        """Return the next state and the weights, given the responses of at least one client."""
