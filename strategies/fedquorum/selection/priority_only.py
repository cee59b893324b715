"""Ask the priority clients alone, or a sample of them."""

from dataclasses import dataclass, field

from ..description import RuleDescription
from ..types import Admission, ByClient, Call, Objective, Population, Responses, Told
from .base import Selection
from .sampling import Sampling


@dataclass(frozen=True)
class PriorityOnly(Selection):
    """Ask the sampled priority clients and admit all their updates."""

    key = "priority_only"
    summary = "The priority clients alone."
    description = RuleDescription(
        clients="the priority clients alone",
    )
    covers = "the known priority clients"

    sampling: Sampling = field(default_factory=Sampling)

    def call(self, t: int, population: Population, told: Told) -> Call:
        """Return a call to the sampled priority clients."""
        sample = self.sampling.sample(t, population, told)
        return Call(sample.priority, draws=sample.draws, pool=population.priority)

    def probabilities(self, population: Population, told: Told) -> ByClient | None:
        """Return the probability that the sample has each priority client."""
        asked = self.sampling.probabilities(population, told)
        return None if asked is None else asked.among(population.priority)

    def admit(self, call: Call, objective: Objective, responses: Responses) -> Admission:
        """Admit the share lambda_k of every update."""
        weight = responses.priority_weight
        reasons = tuple(None if w == 1.0 else f"priority weight {w:g}" for w in weight)
        return Admission(weight, reasons)
