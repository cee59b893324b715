"""The rows of all clients of a process, once, on the device where they are used."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.data.base import Pool, as_inputs

PREPARED_BYTES = 2**30
"""Inputs up to this size are made at once and kept; larger ones batch by batch."""


class Examples:
    """One part (training or test) of several clients.

    Rows are numbered from 0 over all clients, those of a client in a row: a batch that mixes
    clients is one gather. Inputs that are small enough are kept ready on the device; of others
    only the samples as read are there, perhaps mapped from a file, and a batch is made of them
    when it is asked for.

    Parameters
    ----------
    pool : Pool
        The clients' rows.
    device : torch.device
        Where inputs and labels go.
    dtype : torch.dtype
        Of floating inputs.
    prepared_bytes : int
        Up to which size all inputs are made at once.
    """

    def __init__(
        self,
        pool: Pool,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        prepared_bytes: int = PREPARED_BYTES,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._start: dict[int, int] = {}
        self._count: dict[int, int] = {}
        total = 0
        for client, rows in pool.rows.items():
            self._start[client], self._count[client] = total, len(rows)
            total += len(rows)
        source = np.concatenate(list(pool.rows.values())) if pool.rows else np.zeros(0, np.int64)
        self._y = torch.from_numpy(pool.y[source]).to(device)
        one = as_inputs(pool.x[:1])
        self.input_shape = tuple(one.shape[1:])
        self._raw, self._source = pool.x, source
        self._x: torch.Tensor | None = None
        if total * one.nbytes <= prepared_bytes:
            self._x = self._made(source)

    @property
    def clients(self) -> frozenset[int]:
        """Whose rows are here."""
        return frozenset(self._start)

    def count(self, client: int) -> int:
        """Return n_k."""
        return self._count[client]

    def start(self, client: int) -> int:
        """Return the number of a client's first row."""
        return self._start[client]

    def inputs(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the inputs of ``rows`` (m,), in ``out`` (m, *input_shape) where that is given."""
        if self._x is not None:
            return torch.index_select(self._x, 0, rows, out=out)
        made = self._made(self._source[rows.cpu().numpy()])
        return made if out is None else out.copy_(made)

    def labels(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the labels of ``rows``."""
        return self._y.index_select(0, rows)

    def of(self, clients: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels of these clients, one after the other.

        Where inputs are ready and the clients next to each other, these are views.
        """
        starts = [self._start[k] for k in clients]
        ends = [self._start[k] + self._count[k] for k in clients]
        if starts[1:] == ends[:-1]:
            rows = slice(starts[0], ends[-1])
            x = self._x[rows] if self._x is not None else self._made(self._source[rows])
            return x, self._y[rows]
        chosen = torch.from_numpy(
            np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
        ).to(self.device)
        return self.inputs(chosen), self.labels(chosen)

    def _made(self, source: NDArray[np.int64]) -> torch.Tensor:
        inputs = torch.from_numpy(as_inputs(self._raw[source])).to(self.device)
        return inputs.to(self.dtype) if inputs.is_floating_point() else inputs
