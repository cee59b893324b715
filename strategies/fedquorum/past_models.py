"""The past models from which clients start, and the step that a round takes from them: FedAWE's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aggregation import AsFloat64, like, measured, trained
from .errors import RunError, StateError
from .scratch import UnnamedFile, free_disk, gigabytes, machine_memory, room
from .state import StateArrays, array_like
from .summation import combined_update
from .types import FloatArray, PastStarts, Starts

Model = Mapping[str, NDArray[Any]]


class PastModels:
    """The models w_i from which clients will start in later rounds, each stored once.

    There are at most as many as clients, and mostly far fewer: those who took part in the same
    round last share one.

    Parameters
    ----------
    directory : Path, optional
        Keep them in files without names there, rather than in memory.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._models: dict[int, Model] = {}

    @property
    def nbytes(self) -> int:
        """The size of the models in bytes, in files or not."""
        return sum(array.nbytes for model in self._models.values() for array in model.values())

    def at(self, starts: Starts, model: Model) -> Mapping[int, Model]:
        """Return the models of a round by their numbers, and forget those that no client needs.

        Parameters
        ----------
        starts : Starts
            From which model each client starts.
        model : mapping
            The present model.

        Raises
        ------
        RunError
            If there is no room for the present model.
        """
        needed = set(starts.number.tolist())
        self._models = {i: kept for i, kept in self._models.items() if i in needed}
        if starts.present in needed and starts.present not in self._models:
            self._models[starts.present] = self._kept(model)
        return self._models

    def state(self) -> StateArrays:
        """Return the models as named arrays, their own: not for keeping, to be written."""
        return {
            f"{i}.{name}": array
            for i, model in self._models.items()
            for name, array in model.items()
        }

    def restore(self, state: Mapping[str, NDArray[Any]], model: Model) -> None:
        """Restore what ``state`` returned, for a model of the same form.

        Raises
        ------
        StateError
            If it is the state of another model.
        """
        numbers = sorted({name.partition(".")[0] for name in state})
        if not all(number.isdecimal() for number in numbers):
            raise StateError(f"past models are numbered, got {', '.join(numbers)}")
        for number in numbers:
            arrays = {
                name: array_like(array, f"{number}.{name}", state) for name, array in model.items()
            }
            self._models[int(number)] = self._kept(arrays)

    def _kept(self, model: Model) -> Model:
        """Return a model to be held, in a file if there is a folder for it."""
        size, folder = sum(map(room, model.values())), self._directory
        if size > (machine_memory() - self.nbytes if folder is None else free_disk(folder)):
            raise self._no_room(size)
        if folder is None:
            return dict(model)
        try:
            return UnnamedFile(max(size, 1), folder).moved(model, size)
        except OSError as error:
            raise self._no_room(size, f": {error.strerror}") from None

    def _no_room(self, size: int, reason: str = "") -> RunError:
        folder, count = self._directory, len(self._models) + 1
        allowed = (
            "set where this machine's memory does not hold"
            if folder is None
            else "a folder with space for"
        )
        return RunError(
            f"strategy.memory_dir must be {allowed} the models from which clients start: {count} "
            f"of {gigabytes(size)}, got {folder}{reason}"
        )


def mean_start(starts: Starts, models: Mapping[int, Model], model: Model) -> Model:
    """Return (1 / N) sum_k x_k over all clients, x_k the model from which client k starts next.

    Parameters
    ----------
    starts : Starts
        Which one that is.
    models : mapping of int to mapping
        The models by their numbers.
    model : mapping
        The present model.
    """
    numbers, counts = np.unique(starts.number, return_counts=True)
    factored = [
        (float(count), models[number])
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
    update = combined_update(model, factored, float(len(starts.number)))
    return like({name: a + update[name] for name, a in AsFloat64(model).items()}, model)


@dataclass(frozen=True)
class Trained:
    """An update that counts: a_k, the model x_k that its client started from, and w_k."""

    factor: float
    start: Model
    model: Model


@dataclass(frozen=True)
class Anchored:
    """The arrays that a server optimizer moves in a round, and their update, in float64.

    ``anchor`` is B = (1 / n) sum_k x_k over the n clients that took part. ``update`` is
    D = sum_k a_k (w_k - x_k) / divisor of the arrays that are trained. Of counters and running
    statistics, which no echo may make negative, it is what leads to the mean of the w_k.
    """

    anchor: Mapping[str, FloatArray]
    update: Mapping[str, FloatArray]


def anchored(
    model: Model, updates: Sequence[Trained], divisor: float, past: PastStarts
) -> Anchored:
    """Return B and D of a round with at least one update, D shortened where it is too long.

    All sums are over one grid (``fedquorum.summation``), so that neither the clients' order nor
    their grouping changes a bit. Where all start from ``model``, B is ``model`` exactly.
    """
    n = float(len(updates))
    of_training = trained(model)

    def chosen(arrays: Model) -> Model:
        return {name: arrays[name] for name in of_training}

    starts = [chosen(update.start) for update in updates]
    away = combined_update(of_training, [(1.0, start) for start in starts], n)
    echoed = [(update.factor, chosen(update.model)) for update in updates]
    longest = past.longest_update
    step = shortened(combined_update(of_training, echoed, divisor, starts=starts), longest)
    statistics = measured(model)
    means = combined_update(
        statistics, [(1.0, {name: u.model[name] for name in statistics}) for u in updates], n
    )
    present = AsFloat64(model)
    anchor = {name: present[name] + away[name] for name in of_training}
    return Anchored(anchor, {**step, **means})


def shortened(update: dict[str, FloatArray], longest: float) -> dict[str, FloatArray]:
    """Return an update scaled to the norm ``longest`` where it is longer."""
    norm = math.sqrt(math.fsum(float(np.vdot(u, u)) for u in update.values()))
    if norm <= longest:
        return update
    return {name: u * (longest / norm) for name, u in update.items()}
