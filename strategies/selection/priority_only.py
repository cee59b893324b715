"""The priority clients alone, every round."""

from dataclasses import dataclass

from strategies.selection.base import admit_all
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class PriorityOnly:
    """Ask the priority clients and admit all their updates: FedAvg on the priority clients."""

    def call(self, t: int, population: Population) -> Call:
        """Return a call to the priority clients."""
        return Call(population.priority_clients)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit every update."""
        return admit_all(responses)
