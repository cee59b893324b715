"""The priority clients alone, or a sample of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from strategies.selection.base import admit_all
from strategies.selection.sampling import Sampling
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class PriorityOnly:
    """Ask the priority clients that are sampled and admit all their updates."""

    sampling: Sampling = field(default_factory=Sampling)

    def call(self, t: int, population: Population, examples: Mapping[int, float]) -> Call:
        """Return a call to the sampled priority clients."""
        sample = self.sampling.sample(t, population, examples)
        return Call(sample.priority, draws=sample.draws)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit every update."""
        return admit_all(responses)
