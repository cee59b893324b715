"""Every client, every round."""

from dataclasses import dataclass

from strategies.selection.base import admit_all
from strategies.types import Admission, Call, GlobalMeasure, Population, Responses


@dataclass(frozen=True)
class Everyone:
    """Ask all clients and admit all updates: the selection of FedAvg on all."""

    def call(self, t: int, population: Population) -> Call:
        """Return a call to all clients."""
        return Call(population.clients)

    def admit(self, call: Call, measure: GlobalMeasure, responses: Responses) -> Admission:
        """Admit every update."""
        return admit_all(responses)
