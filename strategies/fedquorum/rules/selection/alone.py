"""Select every client to train a local model."""

from dataclasses import dataclass, field

from ..description import RuleDescription
from ..types import ClientReports, PerClient, Population, RoundPlan
from .base import Selection, SelectionTraits
from .sampling import Sampling


@dataclass(frozen=True)
class LocalModelSelection(Selection):
    """Select all sampled clients to continue training their local models."""

    description = RuleDescription(
        key="alone",
        summary="Every client trains a local model.",
        clients="every client, each alone",
        secure_sum="nothing is sent",
        population="",
    )
    traits = SelectionTraits(
        selects_all=True,
        trains_local_models=True,
        dp_unsupported_reason="nothing is aggregated that could be made private",
        late_unsupported_reason="nothing is aggregated",
    )

    sampling: Sampling = field(default_factory=Sampling)

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a plan with the sampled clients, with and without priority."""
        return RoundPlan(
            self.sampling.sample(t, population, reports).clients, trains_local_model=True
        )

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.compute_probabilities(population, reports)
