"""Keep every client's last update: the state of FedVarp and MIFA."""

import gc
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from .aggregation import select_buffers, select_trainable
from .errors import RunError, StateError
from .exact_sum import compute_weighted_sum
from .locks import lock_directory
from .sanitize import abbreviate
from .scratch import format_bytes, get_free_disk, get_total_memory, preallocate
from .state_arrays import StateArrays, expect_array
from .types import FloatArray, IntArray

_FILE_PATTERN = re.compile(r"updates-\d{3,}(-\d+)?\.npy", re.ASCII)
"""The name of an array's file, with the size of the population where it has grown."""


class UpdateMemory:
    """y_n, the last update of every client, zeros before its first: a model for each.

    The step that both methods take from the updates Delta_n of those who took part is::

        step = sum_n c_n (Delta_n - y_n) + (1 / N) sum_{all n} y_n,   then y_n <- Delta_n

    with c_n = 1 / |S_t| (FedVarp) or 1 / N (MIFA, where it is the mean of the new memory).

    So do trained arrays. Counters and the statistics of normalisation layers are not kept: a
    difference of updates of different rounds would take them out of the range of what was sent,
    and a variance below 0. They move by sum_n c_n Delta_n, as without a memory.

    Updates are kept in the model's own dtypes, in rows ascending by client id; the sum over
    clients is kept in float64 beside them.

    Parameters
    ----------
    clients : iterable of int
        All clients.
    model : mapping
        The model's arrays, for names, shapes and dtypes.
    directory : Path, optional
        Keep the arrays in files there, mapped into memory, rather than in memory. Files of an
        earlier run are removed. The folder is locked as long as the memory is there.

    Raises
    ------
    RunError
        If another memory is in the folder, or the files cannot be made, as on a full disk.

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
        kept = select_trainable(model)
        self._total = {name: np.zeros(array.shape) for name, array in kept.items()}
        self._updates = {
            name: _create_zeros(
                (len(self._row), *array.shape), array.dtype, self._get_path(position)
            )
            for position, (name, array) in enumerate(kept.items())
        }

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes, in files or not."""
        return sum(a.nbytes for a in (*self._updates.values(), *self._total.values()))

    def get_state(self) -> StateArrays:
        """Return all of the memory as named arrays, its own: not for keeping, to be written.

        ``client`` says whose update each row is.
        """
        totals = {f"total.{name}": array for name, array in self._total.items()}
        updates = {f"updates.{name}": array for name, array in self._updates.items()}
        return {"client": np.array([*self._row], dtype=np.int64), **totals, **updates}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what ``get_state`` returned; clients that it lacks have an update of zero.

        Raises
        ------
        StateError
            If it is the memory of other clients or of another model.
        """
        rows = self._find_rows(state)
        for name, total in self._total.items():
            total[...] = expect_array(total, f"total.{name}", state)
        for name, kept in self._updates.items():
            shape = (len(rows), *kept.shape[1:])
            there = expect_array(
                np.broadcast_to(kept.dtype.type(0), shape), f"updates.{name}", state
            )
            if len(rows) < len(kept):
                kept[...] = 0
            kept[rows] = there

    def _find_rows(self, state: Mapping[str, NDArray[Any]]) -> IntArray:
        """Return the row of each client whose update a state has.

        Raises
        ------
        StateError
            If one is none of the memory's clients, or is there twice.
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
        """Make room for clients that came later, with an update of zero before their first."""
        new = [client for client in clients if client not in self._row]
        if not new:
            return
        row = _build_row_index((*self._row, *new))
        places = [row[client] for client in self._row]
        files = [self._get_path(position) for position in range(len(self._updates))]
        self._row = row
        for position, (name, kept) in enumerate(list(self._updates.items())):
            shape = (len(row), *kept.shape[1:])
            larger = _create_zeros(shape, kept.dtype, self._get_path(position))
            larger[places] = kept
            self._updates[name] = larger
            if (smaller := files[position]) is not None:
                smaller.unlink(missing_ok=True)

    def step(
        self,
        model: Mapping[str, NDArray[Any]],
        weighted_models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]],
        num_registered: int,
    ) -> dict[str, FloatArray]:
        """Return the step; ``store_updates`` then keeps the updates, once the step is taken.

        ``weighted_models`` has (client, c_n, x_n) ascending by client id; ``num_registered`` is N,
        all clients known so far.
        """
        step = {name: total / max(num_registered, 1) for name, total in self._total.items()}
        for client, weight, client_model in weighted_models:
            for name, _, change in self._compute_changes(client, model, client_model):
                step[name] += weight * change
        statistics = select_buffers(model)
        sent = [
            (weight, {name: client_model[name] for name in statistics})
            for _, weight, client_model in weighted_models
        ]
        return step | compute_weighted_sum(statistics, sent)

    def store_updates(
        self,
        model: Mapping[str, NDArray[Any]],
        weighted_models: Sequence[tuple[int, float, Mapping[str, NDArray[Any]]]],
    ) -> None:
        """Keep the updates of the clients that took part."""
        for client, _, client_model in weighted_models:
            for name, update, change in self._compute_changes(client, model, client_model):
                self._total[name] += change
                self._updates[name][self._row[client]] = update

    def _compute_changes(
        self,
        client: int,
        model: Mapping[str, NDArray[Any]],
        client_model: Mapping[str, NDArray[Any]],
    ) -> Iterable[tuple[str, NDArray[Any], FloatArray]]:
        """Yield Delta_n and Delta_n - y_n of each array that is kept."""
        for name, kept in self._updates.items():
            update = _clip_to_dtype(client_model[name].astype(np.float64) - model[name], kept.dtype)
            yield name, update, update.astype(np.float64) - kept[self._row[client]]

    def _get_path(self, index: int) -> Path | None:
        """Return the file of an array, another one for each size of the population."""
        if self._directory is None:
            return None
        return self._directory / f"updates-{index:03d}{self._format_suffix()}.npy"

    def _format_suffix(self) -> str:
        return "" if len(self._row) == self._first else f"-{len(self._row)}"


def check_capacity(
    clients: int, model: Mapping[str, NDArray[Any]], directory: Path | None = None
) -> None:
    """Refuse a memory that is larger than the machine's, or than its folder has space for.

    Parameters
    ----------
    clients : int
        How many there are.
    model, directory : mapping, Path
        As of ``UpdateMemory``.

    Raises
    ------
    RunError
        With the figures.
    """
    size = sum(clients * array.nbytes for array in select_trainable(model).values())
    if directory is None:
        there, allowed = get_total_memory(), "set where this machine's memory does not hold"
    else:
        earlier = sum(path.stat().st_size for path in _find_files(directory))
        there, allowed = get_free_disk(directory) + earlier, "a folder with space for"
    if size > there:
        raise RunError(
            f"strategy.memory_dir must be {allowed} all clients' updates: {clients} models of "
            f"{format_bytes(size // clients)} are {format_bytes(size)}, there are {format_bytes(there)}, "
            f"got {directory}"
        )


def _build_row_index(clients: Iterable[int]) -> dict[int, int]:
    """Return the row of each client, ascending by id whoever came first."""
    return {client: row for row, client in enumerate(sorted(clients))}


def _clip_to_dtype(update: FloatArray, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an update in another type, its largest number for what is larger.

    The difference of two numbers of a type may have none in it, and infinity in the memory would
    make every later model infinite.
    """
    largest = np.finfo(dtype).max
    return np.clip(update, -largest, largest).astype(dtype)


def _lock_memory(directory: Path) -> int:
    """Make the folder of a memory and keep other memories out of it, also those of this process.

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
    """Remove the files of an earlier memory, also those that it had for another population."""
    for path in _find_files(directory):
        path.unlink(missing_ok=True)


def _find_files(directory: Path) -> list[Path]:
    """Return the files of a memory; there may be others of the user's."""
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
