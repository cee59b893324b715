"""The memory of the clients' last updates, made when a strategy needs it."""

from dataclasses import dataclass
from pathlib import Path

from ..composition import LastUpdates
from ..errors import StateError
from ..memory import UpdateMemory, check_room
from ..state import StateArrays
from ..types import Population
from .codec import NamedArrays


@dataclass
class Memory:
    """The clients' last updates, made when first needed; none where no rule keeps them."""

    kept: LastUpdates | None
    updates: UpdateMemory | None = None

    @property
    def moves_alone(self) -> bool:
        """Whether the model moves in a round without any update."""
        return self.kept is not None and self.kept.moves_alone

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return 0 if self.updates is None else self.updates.nbytes

    def of(self, model: NamedArrays, population: Population) -> UpdateMemory | None:
        """Return the memory, with room for all clients."""
        if self.kept is None:
            return None
        if self.updates is None:
            folder = self.kept.memory_dir
            path = None if folder is None else Path(folder)
            self.updates = UpdateMemory(population.clients, model, path)
        self.updates.grow(population.clients)
        return self.updates

    def check(self, model: NamedArrays, population: Population) -> None:
        """Refuse a memory for which there is no room, before anybody trains for it.

        Raises
        ------
        RunError
            With the figures.
        """
        if self.kept is not None and self.updates is None and population.clients:
            folder = self.kept.memory_dir
            check_room(len(population.clients), model, None if folder is None else Path(folder))

    def restore(self, updates: StateArrays, model: NamedArrays, population: Population) -> None:
        """Go on from the updates of a checkpoint.

        Raises
        ------
        StateError
            If no rule keeps them.
        """
        memory = self.of(model, population)
        if memory is None:
            raise StateError("'memory' is of a strategy that keeps the clients' updates")
        memory.restore(updates)
