"""Select every client, after a warm-up with the priority clients alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ...errors import ParameterError
from ..description import RuleDescription
from ..parameters import FRACTION, NON_NEGATIVE_INT, POSITIVE_INT
from ..rule import RunContext, injected_value, parameter
from ..types import ClientReports, PerClient, Population, RoundPlan
from .base import SelectionTraits
from .sampling import Sampling
from .warmup import WarmUpSelection


@dataclass(frozen=True)
class AfterWarmup(WarmUpSelection):
    """Select the priority clients in rounds t < warm-up, then all clients; admit all updates.

    Without a warm-up, which is the default, this is the selection of FedAvg on all clients, like
    ``AllClients``. With FedALIGN's warm-up it is the papers' baseline "All".

    Parameters
    ----------
    num_rounds : int
        T, the number of rounds; the fraction refers to it. It may be 0 without a warm-up.
    warmup_fraction : float
        Length of the warm-up, with only priority clients, as a fraction of all rounds.
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

    description = RuleDescription(
        key="after_warmup",
        summary="The priority clients in the first rounds, all clients from then on.",
        clients=(
            "all clients or a sample, after a warm-up of the priority clients if "
            "`warmup_fraction` says so (FedALIGN's presets: 0.1)"
        ),
    )
    traits = SelectionTraits(
        needs_objective=False,
        requests_losses=False,
        dp_unsupported_reason="",
        late_unsupported_reason="",
        sum_unsupported_reason="",
    )

    num_rounds: int = injected_value(NON_NEGATIVE_INT, default=0)
    warmup_fraction: float = parameter(0.0, FRACTION)
    warmup_rounds: int | None = parameter(None, NON_NEGATIVE_INT)
    sampling: Sampling = field(default_factory=Sampling)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], context: RunContext) -> Self:
        """Return the selection of a run of ``context.num_rounds`` rounds."""
        selection = cls(num_rounds=context.num_rounds or 0, **options)
        if (
            context.num_rounds is None
            and selection.warmup_rounds is None
            and selection.warmup_fraction > 0.0
        ):
            raise ParameterError(
                "num_rounds", POSITIVE_INT.describe(), None, "the warm-up is a share of it"
            )
        return selection

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return a plan with sampled priority clients during the warm-up, then with both groups."""
        sample = self.sampling.sample(t, population, reports)
        if t < self.num_warmup_rounds:
            return RoundPlan(
                sample.priority, replacement_sample=sample.draws, eligible=population.priority
            )
        return RoundPlan(sample.clients, replacement_sample=sample.draws)

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that the sample has each client."""
        return self.sampling.compute_probabilities(population, reports)
