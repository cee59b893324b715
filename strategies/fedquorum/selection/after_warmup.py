"""Ask every client, after a warm-up with the priority clients alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..description import RuleDescription
from ..errors import ParameterError
from ..parameters import COUNT, FRACTION, NON_NEGATIVE_COUNT
from ..rule import RunFacts, parameter, supplied
from ..types import ByClient, Call, Population, Told
from .sampling import Sampling
from .warmup import WarmUp


@dataclass(frozen=True)
class AfterWarmup(WarmUp):
    """Ask the priority clients in rounds t < warm-up, all clients from then on; admit all updates.

    Without a warm-up, which is the default, this is the selection of FedAvg on all clients, like
    ``Everyone``. With FedALIGN's warm-up it is the papers' baseline "All".

    Parameters
    ----------
    num_rounds : int
        T, the number of rounds; the fraction refers to it. It may be 0 without a warm-up.
    warmup_fraction : float
        Length of the warm-up, in which only priority clients are asked, as a share of all rounds.
    warmup_rounds : int, optional
        Length of the warm-up in rounds, >= 0; overrides the fraction.
    sampling : Sampling
        Partial participation; by default all clients take part.

    Raises
    ------
    ParameterError
        If a value is outside its range, or a fraction refers to a run of unknown length.

    References
    ----------
    Ravi and Shomorony, "Prioritized Federated Learning", Figure 1: "after the first 20 warm-up
    rounds [...] a deterioration is observed for All".
    """

    key = "after_warmup"
    summary = "The priority clients in the first rounds, all clients from then on."
    description = RuleDescription(
        clients=(
            "all clients or a sample, after a warm-up of the priority clients if "
            "`warmup_fraction` says so (FedALIGN's presets: 0.1)"
        ),
    )
    needs_objective = False
    asks_losses = False
    unbounded = ""

    num_rounds: int = supplied(NON_NEGATIVE_COUNT, default=0)
    warmup_fraction: float = parameter(0.0, FRACTION)
    warmup_rounds: int | None = parameter(None, NON_NEGATIVE_COUNT)
    sampling: Sampling = field(default_factory=Sampling)

    @classmethod
    def of(cls, options: Mapping[str, Any], facts: RunFacts) -> Self:
        """Return the selection of a run of ``facts.num_rounds`` rounds."""
        made = cls(num_rounds=facts.num_rounds or 0, **options)
        if facts.num_rounds is None and made.warmup_rounds is None and made.warmup_fraction > 0.0:
            raise ParameterError(
                "num_rounds", COUNT.describe(), None, "the warm-up is a share of it"
            )
        return made

    def call(self, t: int, population: Population, told: Told) -> Call:
        """Return a call to sampled priority clients during the warm-up, then to all groups."""
        sample = self.sampling.sample(t, population, told)
        if t < self.warmup:
            return Call(sample.priority, draws=sample.draws, pool=population.priority)
        return Call(sample.clients, draws=sample.draws)

    def probabilities(self, population: Population, told: Told) -> ByClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.probabilities(population, told)
