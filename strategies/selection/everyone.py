"""Every client, or a sample of each group."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from strategies.selection.base import admit_all
from strategies.selection.sampling import Sampling
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class Everyone:
    """Ask all clients that are sampled and admit all updates: the selection of FedAvg on all.

    Parameters
    ----------
    sampling : Sampling
        Partial participation; by default everyone takes part.
    measures : bool
        Whether F(w_t) is measured for every round.
    asks_losses : bool
        Whether the clients measure the model they receive, F_k(w_t).
    """

    covers: ClassVar[str] = "all known clients"
    sampling: Sampling = field(default_factory=Sampling)
    measures: bool = True
    asks_losses: bool = True

    def call(self, t: int, population: Population, examples: Mapping[int, float]) -> Call:
        """Return a call to the sampled clients of both groups."""
        sample = self.sampling.sample(t, population, examples)
        clients = tuple(sorted(sample.priority + sample.others))
        return Call(clients, draws=sample.draws, measure=self.asks_losses)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit every update."""
        return admit_all(responses)
