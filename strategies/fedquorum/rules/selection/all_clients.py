"""Select every client, or a sample of each group."""

from dataclasses import dataclass, field

from ..description import RuleDescription
from ..types import ClientReports, PerClient, Population, RoundPlan
from .base import Selection, SelectionTraits
from .sampling import Sampling


@dataclass(frozen=True)
class AllClients(Selection):
    """Select all sampled clients and admit all updates: the selection of FedAvg on all clients.

    Clients evaluate the model that they receive if the weighting needs their losses.

    Parameters
    ----------
    sampling : Sampling
        Partial participation; by default all clients take part.
    """

    description = RuleDescription(
        key="everyone",
        summary="All clients, with and without priority.",
        clients="all clients available in the round, or a sample of them",
    )
    traits = SelectionTraits(
        selects_all=True,
        needs_objective=False,
        requests_losses=False,
        dp_unsupported_reason="",
        late_unsupported_reason="",
        sum_unsupported_reason="",
    )

    sampling: Sampling = field(default_factory=Sampling)

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a plan with the sampled clients, with and without priority."""
        sample = self.sampling.sample(t, population, reports)
        return RoundPlan(sample.clients, replacement_sample=sample.draws)

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.compute_probabilities(population, reports)
