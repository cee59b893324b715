"""Hold one copy of the rows of all clients of a process, on their device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.data.base import PixelNormalization, PooledSplit, to_input_tensor, to_inputs

MAX_RESIDENT_BYTES = 2**30
"""Samples up to this size stay on the device; larger ones are read batch by batch."""


class Examples:
    """One split (training, test or validation) of several clients.

    Rows are numbered from 0 over all clients, and a client's rows are consecutive, so a batch that
    mixes clients is one gather. Samples stay in the type they were read in: images take one byte a
    number, a quarter of what a gather would move otherwise. They become inputs on demand.

    Parameters
    ----------
    pool : PooledSplit
        The clients' rows.
    device : torch.device
        The device of inputs and labels.
    dtype : torch.dtype
        The type of floating inputs.
    max_resident_bytes : int
        Samples up to this size are stored on the device. Larger ones stay in the pool, perhaps
        mapped from a file.

    Attributes
    ----------
    pixel_scale : PixelNormalization or None
        The normalization of the images, if they are normalized.
    """

    pixel_scale: PixelNormalization | None

    def __init__(
        self,
        pool: PooledSplit,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        max_resident_bytes: int = MAX_RESIDENT_BYTES,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.pixel_scale = pool.pixel_scale
        self._rows = pool.rows
        source = pool.rows.flat
        self._y = torch.from_numpy(pool.y[source]).to(device)
        one = pool.x[:1]
        self.input_shape = tuple(to_inputs(one).shape[1:])
        self._pool, self._source = pool.x, source
        self._samples: torch.Tensor | None = None
        if len(source) * one.nbytes <= max_resident_bytes:
            self._samples = self._read(source)
        elif not isinstance(pool.x, np.ndarray):
            pool.x.check(source)  # now rather than in the round that reads them

    @property
    def clients(self) -> NDArray[np.int64]:
        """The ids of the clients, (K,)."""
        return self._rows.clients

    def __contains__(self, client: int) -> bool:
        return client in self._rows

    def get_index(self, client: int) -> int:
        """Return the index of a client in ``clients``; raise KeyError if it is missing."""
        return self._rows.get_index(client)

    def get_indices(self, clients: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of several clients in ``clients``, (m,)."""
        return self._rows.get_indices(clients)

    def count(self, client: int) -> int:
        """Return n_k."""
        return self._rows.get_span(client)[1]

    def get_counts(self, clients: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return n_k of several clients, (m,)."""
        return self._rows.counts[self._rows.get_indices(clients)]

    def get_start(self, client: int) -> int:
        """Return the index of a client's first row."""
        return self._rows.get_span(client)[0]

    def get_starts(self, clients: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices of several clients' first rows, (m,)."""
        return self._rows.starts[self._rows.get_indices(clients)]

    def gather_inputs(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the inputs of ``rows`` (m,), written to ``out`` (m, *input_shape) if given."""
        if self._samples is None:
            samples = self._read(self._source[rows.cpu().numpy()])
            return to_input_tensor(samples, self.dtype, out)
        if out is not None and self._samples.dtype == out.dtype:
            return torch.index_select(self._samples, 0, rows, out=out)
        return to_input_tensor(self._samples.index_select(0, rows), self.dtype, out)

    def gather_labels(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the labels of ``rows``."""
        return self._y.index_select(0, rows)

    def select_clients(self, clients: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of these clients, one client after the other.

        They are views if the samples need no conversion and the clients are adjacent.
        """
        starts = self.get_starts(clients)
        ends = starts + self.get_counts(clients)
        if np.array_equal(starts[1:], ends[:-1]):
            rows = slice(starts[0], ends[-1])
            resident = self._samples
            samples = self._read(self._source[rows]) if resident is None else resident[rows]
            return to_input_tensor(samples, self.dtype), self._y[rows]
        selected = torch.from_numpy(
            np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
        ).to(self.device)
        return self.gather_inputs(selected), self.gather_labels(selected)

    def _read(self, source: NDArray[np.int64]) -> torch.Tensor:
        samples = torch.from_numpy(self._pool[source]).to(self.device)
        return samples.to(self.dtype) if samples.is_floating_point() else samples
