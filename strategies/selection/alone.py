"""Every client, each with a model of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from strategies.selection.base import admit_all
from strategies.selection.sampling import Sampling
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class Alone:
    """Ask all clients that are sampled to go on with their own models."""

    covers: ClassVar[str] = "nobody"
    sampling: Sampling = field(default_factory=Sampling)
    measures: bool = field(default=True, init=False)

    def call(self, t: int, population: Population, examples: Mapping[int, float]) -> Call:
        """Return a call to the sampled clients of both groups."""
        sample = self.sampling.sample(t, population, examples)
        return Call(tuple(sorted(sample.priority + sample.others)), own_model=True)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit every reply: there is no update in it that could be refused."""
        return admit_all(responses)
