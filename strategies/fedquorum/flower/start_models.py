"""From which models the clients of a round start, where that is not the present one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord

from .codec import NamedArrays, ToldStarts, encode_arrays


@dataclass(frozen=True)
class StartModels:
    """The start models of a round.

    Parameters
    ----------
    models : mapping of int to mapping
        The models by their numbers.
    number_of : mapping of int to int
        The number of each client's, by client id.
    """

    models: Mapping[int, NamedArrays]
    number_of: Mapping[int, int]

    def of(self, client: int) -> NamedArrays:
        """Return the model that a client starts from."""
        return self.models[self.number_of[client]]

    def records(self, clients: Iterable[int]) -> dict[int, ArrayRecord]:
        """Return the models that these clients start from, each once, as messages have them."""
        numbers = sorted({self.number_of[client] for client in clients})
        return {number: encode_arrays(self.models[number]) for number in numbers}

    def told(self, clients: Sequence[int], records: Mapping[int, ArrayRecord]) -> ToldStarts:
        """Return the start models for a node's clients, each distinct model once."""
        distinct = sorted({self.number_of[client] for client in clients})
        places = tuple(distinct.index(self.number_of[client]) for client in clients)
        return ToldStarts(tuple(records[number] for number in distinct), places)
