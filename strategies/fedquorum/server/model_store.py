"""Store models of earlier rounds, each once: in memory, or in files without names."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..errors import RunError, StateError
from ..rules.hooks import Model
from ..rules.state_arrays import StateArrays, expect_array
from .scratch import (
    ScratchFile,
    compute_aligned_size,
    format_bytes,
    get_free_disk,
    get_total_memory,
)


class ModelStore:
    """Models by their numbers, such as the rounds that sent them.

    Parameters
    ----------
    directory : Path, optional
        The directory of the models, in files without names; None stores them in memory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self.models: dict[int, Model] = {}

    @property
    def nbytes(self) -> int:
        """The size of the models in bytes, including files."""
        return sum(array.nbytes for model in self.models.values() for array in model.values())

    @property
    def in_memory(self) -> Collection[int]:
        """The numbers of the models that no file holds."""
        return self.models.keys() if self._directory is None else ()

    def keep(self, numbers: Collection[int]) -> None:
        """Delete all models but these."""
        self.models = {i: stored for i, stored in self.models.items() if i in numbers}

    def add(self, number: int, model: Model) -> None:
        """Store a model, unless its number is stored already.

        Raises
        ------
        RunError
            If there is no space for it.
        """
        if number not in self.models:
            self.models[number] = self._store_model(model)

    def get_state(self) -> StateArrays:
        """Return the models as named arrays; they are not copies, so write them at once."""
        return {
            f"{i}.{name}": array
            for i, model in self.models.items()
            for name, array in model.items()
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], model: Model) -> None:
        """Restore the arrays of ``get_state``, for a model of the same form.

        Raises
        ------
        StateError
            If the arrays belong to another model.
        """
        numbers = sorted({name.partition(".")[0] for name in arrays})
        if not all(number.isdecimal() for number in numbers):
            raise StateError(f"past models are numbered, got {', '.join(numbers)}")
        for number in numbers:
            found = {
                name: expect_array(array, f"{number}.{name}", arrays)
                for name, array in model.items()
            }
            self.models[int(number)] = self._store_model(found)

    def _store_model(self, model: Model) -> Model:
        """Return a copy of a model, in a file if a directory is set."""
        size, folder = sum(map(compute_aligned_size, model.values())), self._directory
        # All models have one form, so their number says how much memory they take.
        in_memory = size * len(self.models)
        if size > (get_total_memory() - in_memory if folder is None else get_free_disk(folder)):
            raise self._build_space_error(size)
        if folder is None:
            return dict(model)
        try:
            return ScratchFile(max(size, 1), folder).store(model, size)
        except OSError as error:
            raise self._build_space_error(size, f": {error.strerror}") from None

    def _build_space_error(self, size: int, reason: str = "") -> RunError:
        folder, count = self._directory, len(self.models) + 1
        allowed = (
            "set where this machine's memory does not hold"
            if folder is None
            else "a folder with space for"
        )
        return RunError(
            f"strategy.memory_dir must be {allowed} the models from which clients start: {count} "
            f"of {format_bytes(size)}, got {folder}{reason}"
        )
