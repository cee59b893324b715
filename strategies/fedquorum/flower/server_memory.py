"""Store models and updates between rounds, created when a rule needs them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from ..errors import StateError
from ..rules.composition import RuleSet
from ..rules.hooks import StartModels, StartModelStore
from ..rules.state_arrays import StateArrays
from ..rules.types import Population
from ..server.update_memory import UpdateMemory, check_capacity
from .codec import NamedArrays

UPDATES, STARTS, SENT = "memory.", "starts.", "sent."
"""The prefixes of the arrays' names in a checkpoint."""


@dataclass
class ServerMemory:
    """The clients' last updates, and the models from which they start; mostly neither."""

    rules: RuleSet
    updates: UpdateMemory | None = None
    client_start: StartModelStore | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        make_store = self.rules.hooks.client_start
        self.client_start = None if make_store is None else make_store()

    @classmethod
    def from_rules(cls, rules: RuleSet) -> Self | None:
        """Return the memory of these rules, None if they need none."""
        needs_memory = rules.memory is not None or rules.hooks.client_start is not None
        return cls(rules) if needs_memory else None

    @property
    def steps_without_updates(self) -> bool:
        """Whether the model changes in a round without any update."""
        return self.rules.memory is not None and self.rules.memory.steps_without_updates

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
        return sum(store.nbytes for store in (self.updates, self.client_start) if store is not None)

    def get_update_memory(self, model: NamedArrays, population: Population) -> UpdateMemory | None:
        """Return the memory of updates, with space for all clients."""
        if self.rules.memory is None:
            return None
        if self.updates is None:
            self.updates = UpdateMemory(
                population.clients, model, _to_path(self.rules.memory.memory_dir)
            )
        self.updates.add_clients(population.clients)
        return self.updates

    def check_capacity(self, model: NamedArrays, population: Population) -> None:
        """Refuse a memory that does not fit, before any client trains.

        Raises
        ------
        RunError
            If it does not fit; the message has the figures.
        """
        config = self.rules.memory
        if config is not None and self.updates is None and population.clients:
            check_capacity(len(population.clients), model, _to_path(config.memory_dir))

    def get_start_models(
        self, state: Any, model: NamedArrays, population: Population
    ) -> StartModels | None:
        """Return the models from which a round's clients start; None if all start from ``model``.

        Parameters
        ----------
        state : Any
            The weighting's state before the round.
        model : dict of array
            The current global model.
        population : Population

        Raises
        ------
        RunError
            If there is no space for the models.
        """
        if self.client_start is None or not population.clients:
            return None
        return self.client_start.prepare_start_models(state, model, population)

    def compute_mean_start_model(
        self, state: Any, model: NamedArrays, population: Population
    ) -> NamedArrays | None:
        """Return the mean of the models from which all clients start next; None if it is ``model``.

        Parameters and errors are those of ``get_start_models``.
        """
        if self.client_start is None or not population.clients:
            return None
        return dict(self.client_start.compute_mean_model(state, model, population))

    def get_state(self) -> StateArrays:
        """Return the models as named arrays, without copying: write them before the next round."""
        models = {} if self.client_start is None else self.client_start.get_state()
        return {f"{STARTS}{name}": array for name, array in models.items()}

    def restore(
        self, state: Mapping[str, NDArray[Any]], model: NamedArrays, population: Population
    ) -> None:
        """Restore the updates and models of a checkpoint, if it has any.

        Raises
        ------
        StateError
            If no rule needs them.
        """
        if updates := select_by_prefix(UPDATES, state):
            memory = self.get_update_memory(model, population)
            if memory is None:
                raise StateError("'memory' is of a strategy that keeps the clients' updates")
            memory.restore(updates)
        if models := select_by_prefix(STARTS, state):
            if self.client_start is None:
                raise StateError("'starts' is of a strategy whose clients start from past models")
            self.client_start.restore(models, model)


def _to_path(path: str | None) -> Path | None:
    return None if path is None else Path(path)


def select_by_prefix(prefix: str, state: Mapping[str, NDArray[Any]]) -> StateArrays:
    """Return the arrays whose names begin with ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
