"""The priority clients alone, or a sample of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from strategies.selection.sampling import Sampling
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class PriorityOnly:
    """Ask the priority clients that are sampled and admit all their updates."""

    covers: ClassVar[str] = "the known priority clients"
    sampling: Sampling = field(default_factory=Sampling)
    measures: bool = field(default=True, init=False)

    def call(self, t: int, population: Population, examples: Mapping[int, float]) -> Call:
        """Return a call to the sampled priority clients."""
        sample = self.sampling.sample(t, population, examples)
        return Call(sample.priority, draws=sample.draws, pool=population.priority)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit every update, to the extent of its client's priority weight."""
        weight = responses.priority_weight
        reasons = tuple(None if w == 1.0 else f"priority weight {w:g}" for w in weight)
        return Admission(weight, reasons)
