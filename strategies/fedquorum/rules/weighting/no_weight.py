"""Count no update, so that the server's model stays the same."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..decisions import DecisionTrace
from ..description import Goal, RuleDescription
from ..types import AggregationWeights, ClientUpdates, FloatArray, Population, RoundPlan
from .base import Weighting, WeightingTraits


@dataclass(frozen=True)
class ZeroWeighting(Weighting[None]):
    """Give every update the weight c_k = 0, for clients that each train a local model."""

    description = RuleDescription(
        key="no_weight",
        summary="No update counts: every client keeps its local model.",
        use="each client should train alone",
        weight="nothing is aggregated",
        source="FedALIGN, supplement C.1",
        trusts="nothing",
        gain="nothing: nothing is aggregated",
        goal=Goal.AVERAGE,
        is_strategy=False,
    )
    traits = WeightingTraits(
        numerator="0",
        denominator="nothing",
        needs_losses=False,
        aggregates=False,
        dp_unsupported_reason="nothing is aggregated that could be made private",
        late_unsupported_reason="nothing is aggregated",
        uncorrectable_reason="nothing is aggregated",
    )

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
