"""Ask every client to train a local model."""

from dataclasses import dataclass, field

from ..description import RuleDescription
from ..types import ByClient, Call, Population, Told
from .base import Selection
from .sampling import Sampling


@dataclass(frozen=True)
class Alone(Selection):
    """Ask all sampled clients to continue training their local models."""

    key = "alone"
    summary = "Every client trains a local model."
    description = RuleDescription(
        clients="every client, each alone",
        secure_sum="nothing is sent",
    )
    covers = "nobody"
    asks_all = True
    keeps_models = True
    unbounded = "nothing is aggregated that could be made private"

    sampling: Sampling = field(default_factory=Sampling)

    def call(self, t: int, population: Population, told: Told) -> Call:
        """Return a call to the sampled clients with and without priority."""
        return Call(self.sampling.sample(t, population, told).clients, keeps_model=True)

    def probabilities(self, population: Population, told: Told) -> ByClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.probabilities(population, told)
