"""Count no update, so that the server's model stays the same."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import ParameterError
from ..decisions import DecisionTrace
from ..description import RuleDescription
from ..rule import Goal
from ..types import AggregationWeights, ClientUpdates, FloatArray, Population, RoundPlan
from .base import Weighting


@dataclass(frozen=True)
class ZeroWeighting(Weighting[None]):
    """Give every update the weight c_k = 0, for clients that each train a local model."""

    key = "no_weight"
    summary = "No update counts: every client keeps its local model."
    description = RuleDescription(
        use="each client should train alone",
        weight="nothing is aggregated",
        source="FedALIGN, supplement C.1",
        trusts="nothing",
        gain="nothing: nothing is aggregated",
    )
    goal = Goal.AVERAGE
    needs_losses = False
    aggregates = False
    is_strategy = False
    numerator = "0"
    denominator = "nothing"
    late_reply_effect = "It keeps what it trained."
    dp_unsupported_reason = "nothing is aggregated that could be made private"

    def build_correction_error(self, reason: str) -> ParameterError:
        """Return the error that refuses a correction for participation."""
        return super().build_correction_error("nothing is aggregated")

    def init(self, population: Population) -> None:
        """Return the empty state."""

    def weigh(
        self, state: None, plan: RoundPlan, updates: ClientUpdates, admitted_fraction: FloatArray
    ) -> tuple[None, AggregationWeights]:
        """Return zeros."""
        return None, AggregationWeights(np.zeros_like(admitted_fraction))

    def explain(self, trace: DecisionTrace, index: int) -> Iterator[str]:
        """Yield a note that no update counts."""
        yield "c_k = 0; every client keeps its local model, nothing is aggregated"
