"""Ask every client, or a sample of each group."""

from dataclasses import dataclass, field

from ..description import RuleDescription
from ..types import ByClient, Call, Population, Told
from .base import Selection
from .sampling import Sampling


@dataclass(frozen=True)
class Everyone(Selection):
    """Ask all sampled clients and admit all updates: the selection of FedAvg on all clients.

    Clients measure the model that they receive if the weighting needs their losses.

    Parameters
    ----------
    sampling : Sampling
        Partial participation; by default all clients take part.
    """

    key = "everyone"
    summary = "All clients, with and without priority."
    description = RuleDescription(
        clients="all clients available in the round, or a sample of them",
    )
    asks_all = True
    needs_objective = False
    asks_losses = False
    unbounded = ""

    sampling: Sampling = field(default_factory=Sampling)

    def call(self, t: int, population: Population, told: Told) -> Call:
        """Return a call to the sampled clients with and without priority."""
        sample = self.sampling.sample(t, population, told)
        return Call(sample.clients, draws=sample.draws)

    def probabilities(self, population: Population, told: Told) -> ByClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.probabilities(population, told)
