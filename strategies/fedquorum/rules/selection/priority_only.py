"""Select the priority clients alone, or a sample of them."""

from dataclasses import dataclass, field

from ..description import RuleDescription
from ..types import (
    Admission,
    ClientReports,
    ClientUpdates,
    Objective,
    PerClient,
    Population,
    RoundPlan,
)
from .base import Selection, SelectionTraits
from .sampling import Sampling


@dataclass(frozen=True)
class PriorityOnly(Selection):
    """Select the sampled priority clients and admit all their updates."""

    description = RuleDescription(
        key="priority_only",
        summary="The priority clients alone.",
        clients="the priority clients alone",
        population="the registered priority clients",
    )

    traits = SelectionTraits(
        sum_unsupported_reason="",
        late_unsupported_reason="a round draws from all free clients, also those without priority",
    )

    sampling: Sampling = field(default_factory=Sampling)

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a plan with the sampled priority clients."""
        sample = self.sampling.sample(t, population, reports)
        return RoundPlan(
            sample.priority, replacement_sample=sample.draws, eligible=population.priority
        )

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that the sample has each priority client."""
        probabilities = self.sampling.compute_probabilities(population, reports)
        return None if probabilities is None else probabilities.select(population.priority)

    def admit(self, plan: RoundPlan, objective: Objective, updates: ClientUpdates) -> Admission:
        """Admit the fraction lambda_k of every update."""
        weight = updates.priority_weight
        reasons = tuple(None if w == 1.0 else f"priority weight {w:g}" for w in weight)
        return Admission(weight, reasons)
