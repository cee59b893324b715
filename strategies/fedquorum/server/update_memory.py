"""Store every client's last update: the state of FedVarp and MIFA."""

import gc
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import finalize

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from ..errors import RunError, StateError
from ..io import lock_directory
from ..rules.state_arrays import StateArrays, expect_array
from ..rules.types import FloatArray, IntArray
from ..sanitize import abbreviate
from .aggregation import select_buffers, select_trainable
from .exact_sum import compute_weighted_sum
from .scratch import format_bytes, get_free_disk, get_total_memory, preallocate

NO_STARTS: Mapping[int, Mapping[str, NDArray[Any]]] = MappingProxyType({})
"""All clients start from the round's model."""

_FILE_PATTERN = re.compile(r"updates-\d{3,}(-\d+)?\.npy", re.ASCII)
"""The name of an array's file, with the size of the population if clients have joined."""


class UpdateMemory:
    """The last update y_n of every client, zeros before its first: one model per client.

    Both methods take this step from the updates Delta_n of the participants::

        step = sum_n c_n (Delta_n - y_n) + (1 / N) sum_{all n} y_n,   then y_n <- Delta_n

    with c_n = 1 / |S_t| (FedVarp) or 1 / N (MIFA, where it is the mean of the new memory).

    The formula applies to trained arrays. The memory does not store buffers, such as the statistics
    of normalization layers: the difference of updates from different rounds could leave the range
    of the clients' values, for example with a negative variance. Buffers step by
    sum_n c_n Delta_n, as without a memory.

    The memory stores updates in the model's dtypes, in rows ascending by client id, and the sum
    over clients in float64.

    Parameters
    ----------
    clients : iterable of int
        All clients.
    model : mapping
        The model's arrays, for names, shapes and dtypes.
    directory : Path, optional
        The directory of memory-mapped files for the arrays; None stores them in memory. The
        constructor removes files of an earlier run. The directory stays locked while the memory
        exists.

    Raises
    ------
    RunError
        If another memory uses the directory, or the files cannot be created, as on a full disk.

    References
    ----------
    Jhunjhunwala et al., "FedVARP: Tackling the Variance Due to Partial Client Participation in
    Federated Learning", UAI 2022; Gu et al., "Fast Federated Learning in the Presence of
    Arbitrary Device Unavailability", NeurIPS 2021 (MIFA).
    """

    def __init__(
        self,
        clients: Iterable[int],
        model: Mapping[str, NDArray[Any]],
        directory: Path | None = None,
    ) -> None:
        self._row = _build_row_index(clients)
        self._first = len(self._row)
        self._directory = directory
        if directory is not None:
            finalize(self, os.close, _lock_memory(directory))
            _remove_files(directory)
        trainable = select_trainable(model)
        self._total = {name: np.zeros(array.shape) for name, array in trainable.items()}
        self._updates = {
            name: _create_zeros((len(self._row), *array.shape), array.dtype, self._get_path(index))
            for index, (name, array) in enumerate(trainable.items())
        }

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes, including files."""
        return sum(a.nbytes for a in (*self._updates.values(), *self._total.values()))

    def get_state(self) -> StateArrays:
        """Return the memory as named arrays; they are not copies, so write them at once.

        ``client`` has the client of each row.
        """
        totals = {f"total.{name}": array for name, array in self._total.items()}
        updates = {f"updates.{name}": array for name, array in self._updates.items()}
        return {"client": np.array([*self._row], dtype=np.int64), **totals, **updates}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays of ``get_state``; clients that they lack get an update of zero.

        Raises
        ------
        StateError
            If the arrays belong to other clients or another model.
        """
        rows = self._find_rows(state)
        for name, total in self._total.items():
            total[...] = expect_array(total, f"total.{name}", state)
        for name, array in self._updates.items():
            shape = (len(rows), *array.shape[1:])
            stored = expect_array(
                np.broadcast_to(array.dtype.type(0), shape), f"updates.{name}", state
            )
            if len(rows) < len(array):
                array[...] = 0
            array[rows] = stored

    def _find_rows(self, state: Mapping[str, NDArray[Any]]) -> IntArray:
        """Return the row of each client in a state.

        Raises
        ------
        StateError
            If a client is not among the memory's clients, or occurs twice.
        """
        if "client" not in state:
            raise StateError("'client' is missing")
        clients = expect_array(np.zeros(len(state["client"]), np.int64), "client", state).tolist()
        others = sorted(set(clients) - self._row.keys())
        if others or len(set(clients)) < len(clients):
            raise StateError(
                f"'client' must be each once of the clients {abbreviate(list(self._row))}, got "
                f"{abbreviate(clients)}"
            )
        return np.array([self._row[client] for client in clients], dtype=np.int64)

    def add_clients(self, clients: Iterable[int]) -> None:
        """Add rows for clients that joined later, with an update of zero before their first."""
        new = [client for client in clients if client not in self._row]
        if not new:
            return
        row = _build_row_index((*self._row, *new))
        rows = [row[client] for client in self._row]
        files = [self._get_path(index) for index in range(len(self._updates))]
        self._row = row
        for index, (name, array) in enumerate(list(self._updates.items())):
            shape = (len(row), *array.shape[1:])
            larger = _create_zeros(shape, array.dtype, self._get_path(index))
            larger[rows] = array
            self._updates[name] = larger
            if (smaller := files[index]) is not None:
                smaller.unlink(missing_ok=True)

    def step(
        self,
        model: Mapping[str, NDArray[Any]],
        weighted_models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]],
        num_registered: int,
        starts: Mapping[int, Mapping[str, NDArray[Any]]] = NO_STARTS,
    ) -> dict[str, FloatArray]:
        """Return the step; ``store_updates`` stores the updates after it is applied.

        ``weighted_models`` has (client, c_n, x_n) ascending by client id; ``num_registered`` is N,
        the number of clients registered so far. ``starts`` has the models of the clients that did
        not train from ``model``.
        """
        step = {name: total / max(num_registered, 1) for name, total in self._total.items()}
        for client, weight, client_model in weighted_models:
            start = starts.get(client, model)
            for name, _, change in self._compute_changes(client, start, client_model):
                step[name] += weight * change
        buffers = select_buffers(model)
        weighted_buffers = [
            (weight, {name: client_model[name] for name in buffers})
            for _, weight, client_model in weighted_models
        ]
        return step | compute_weighted_sum(buffers, weighted_buffers)

    def store_updates(
        self,
        model: Mapping[str, NDArray[Any]],
        weighted_models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]],
        starts: Mapping[int, Mapping[str, NDArray[Any]]] = NO_STARTS,
    ) -> None:
        """Store the updates of the clients that took part; ``starts`` as in ``step``."""
        for client, _, client_model in weighted_models:
            start = starts.get(client, model)
            for name, update, change in self._compute_changes(client, start, client_model):
                self._total[name] += change
                self._updates[name][self._row[client]] = update

    def _compute_changes(
        self,
        client: int,
        model: Mapping[str, NDArray[Any]],
        client_model: Mapping[str, NDArray[Any]],
    ) -> Iterable[tuple[str, NDArray[Any], FloatArray]]:
        """Yield the name, Delta_n and Delta_n - y_n of each stored array."""
        for name, array in self._updates.items():
            update = _clip_to_dtype(
                client_model[name].astype(np.float64) - model[name], array.dtype
            )
            yield name, update, update.astype(np.float64) - array[self._row[client]]

    def _get_path(self, index: int) -> Path | None:
        """Return the file of an array, a different one for each size of the population."""
        if self._directory is None:
            return None
        return self._directory / f"updates-{index:03d}{self._format_suffix()}.npy"

    def _format_suffix(self) -> str:
        return "" if len(self._row) == self._first else f"-{len(self._row)}"


def check_capacity(
    clients: int, model: Mapping[str, NDArray[Any]], directory: Path | None = None
) -> None:
    """Refuse an update memory that exceeds the machine's memory, or the space of its directory.

    Parameters
    ----------
    clients : int
        The number of clients.
    model, directory : mapping, Path
        As for ``UpdateMemory``.

    Raises
    ------
    RunError
        If it does, with the figures.
    """
    size = sum(clients * array.nbytes for array in select_trainable(model).values())
    if directory is None:
        available, allowed = get_total_memory(), "set where this machine's memory does not hold"
    else:
        earlier = sum(path.stat().st_size for path in _find_files(directory))
        available, allowed = get_free_disk(directory) + earlier, "a folder with space for"
    if size > available:
        raise RunError(
            f"strategy.memory_dir must be {allowed} all clients' updates: {clients} models of "
            f"{format_bytes(size // clients)} are {format_bytes(size)}, there are "
            f"{format_bytes(available)}, got {directory}"
        )


def _build_row_index(clients: Iterable[int]) -> dict[int, int]:
    """Return the row of each client, ascending by id."""
    return {client: row for row, client in enumerate(sorted(clients))}


def _clip_to_dtype(update: FloatArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an update in another dtype, with larger numbers clipped to its range.

    The difference of two numbers can exceed the range of their dtype, and infinity in the memory
    would make every later model infinite.
    """
    largest = np.finfo(dtype).max
    return np.clip(update, -largest, largest).astype(dtype)


def _lock_memory(directory: Path) -> int:
    """Create the directory of a memory and lock it, also against other memories of this process.

    Returns
    -------
    int
        The descriptor that holds the lock until it is closed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = lock_directory(directory)
        if descriptor is None:
            gc.collect()  # the memory of an earlier run in this process may linger in a cycle
            descriptor = lock_directory(directory)
    except OSError as error:
        raise _build_storage_error(directory, error) from None
    if descriptor is None:
        raise RunError(
            "strategy.memory_dir must be a folder that no other run uses at this time, "
            f"got {directory}"
        )
    return descriptor


def _remove_files(directory: Path) -> None:
    """Remove the files of an earlier memory, for any size of the population."""
    for path in _find_files(directory):
        path.unlink(missing_ok=True)


def _find_files(directory: Path) -> list[Path]:
    """Return the files of a memory; the user may have other files in the directory."""
    found = directory.iterdir() if directory.is_dir() else ()
    return [path for path in found if _FILE_PATTERN.fullmatch(path.name)]


def _create_zeros(shape: tuple[int, ...], dtype: np.dtype[Any], path: Path | None) -> NDArray[Any]:
    if path is None:
        return np.zeros(shape, dtype)
    try:
        array = open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        with path.open("r+b") as file:
            preallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise _build_storage_error(path, error) from None
    return array


def _build_storage_error(path: Path, error: OSError) -> RunError:
    return RunError(
        "strategy.memory_dir must be a folder with space for all clients' updates, got "
        f"{path}: {error.strerror}"
    )
