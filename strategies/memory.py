"""A memory of every client's last update: the state of FedVarp and MIFA."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from strategies.state import StateArrays, array_like
from strategies.types import FloatArray


class UpdateMemory:
    """y_n, the last update of every client, zeros before its first: a model for each.

    The step that both methods take from the updates Delta_n of those who took part is::

        step = sum_n c_n (Delta_n - y_n) + (1 / N) sum_{all n} y_n,   then y_n <- Delta_n

    with c_n = 1 / |S_t| (FedVarp) or 1 / N (MIFA, where it is the mean of the new memory).

    Updates are kept in the model's own dtypes, integer ones (counters) in float64; the mean over
    clients is kept in float64 beside them.

    Parameters
    ----------
    clients : iterable of int
        All clients, ascending.
    model : mapping
        The model's arrays, for names, shapes and dtypes.
    directory : Path, optional
        Keep the arrays in files there, mapped into memory, rather than in memory. Files of an
        earlier run are overwritten.

    Raises
    ------
    OSError
        If the files cannot be made.

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
        self._row = {client: row for row, client in enumerate(clients)}
        self._total = {name: np.zeros(array.shape) for name, array in model.items()}
        self._updates = {
            name: _zeros(
                (len(self._row), *array.shape),
                array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64),
                None if directory is None else directory / f"{position:03d}.npy",
            )
            for position, (name, array) in enumerate(model.items())
        }

    @property
    def nbytes(self) -> int:
        """How many bytes the memory is, in files or not."""
        return sum(a.nbytes for a in (*self._updates.values(), *self._total.values()))

    def state(self) -> StateArrays:
        """Return all of the memory as named arrays, its own: not for keeping, to be written."""
        totals = {f"total.{name}": array for name, array in self._total.items()}
        return totals | {f"updates.{name}": array for name, array in self._updates.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what ``state`` returned.

        Raises
        ------
        StateError
            If it is the memory of other clients or of another model.
        """
        for name, array in self.state().items():
            array[...] = array_like(array, name, state)

    def step(
        self,
        model: Mapping[str, NDArray[Any]],
        weighted_models: Iterable[tuple[int, float, Mapping[str, NDArray[Any]]]],
        num_known: int,
    ) -> dict[str, FloatArray]:
        """Return the step and remember the updates.

        ``weighted_models`` yields (client, c_n, x_n) ascending by client id; ``num_known`` is N,
        all clients known so far.
        """
        step = {name: total / max(num_known, 1) for name, total in self._total.items()}
        for client, weight, client_model in weighted_models:
            row = self._row[client]
            for name, array in client_model.items():
                kept = self._updates[name]
                update = (array.astype(np.float64) - model[name]).astype(kept.dtype)
                change = update.astype(np.float64) - kept[row]
                step[name] += weight * change
                self._total[name] += change
                kept[row] = update
        return step


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any], path: Path | None) -> NDArray[Any]:
    if path is None:
        return np.zeros(shape, dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    return open_memmap(path, mode="w+", dtype=dtype, shape=shape)
