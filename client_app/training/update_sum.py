"""Sum clients' weighted updates on the node where they train."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fedquorum.flower.validation import find_number_problem
from fedquorum.server.exact_sum import (
    MAX_VALUE,
    BinnedSum,
    ExactAccumulator,
    NumPyBackend,
    PartialSums,
    SumBins,
)
from numpy.typing import NDArray

GPU_BLOCK = 2**22
"""How many numbers a GPU adds at a time: 32 MiB of terms, and as much of their parts.

The host waits for the largest term of each block, so there should be few blocks.
"""


class PyTorch(NumPyBackend):
    """The backend of sums for models on a GPU.

    Parameters
    ----------
    device : torch.device
        The device of the tensors.
    """

    block = GPU_BLOCK
    add = torch.add

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def to_array(self, values: Any) -> torch.Tensor:
        """Return a tensor of these values on the device."""
        return torch.as_tensor(values, device=self._device)

    def create_empty(self, size: int) -> torch.Tensor:
        """Return an uninitialized float64 tensor of ``size`` numbers."""
        return torch.empty(size, dtype=torch.float64, device=self._device)

    def to_numpy(self, array: torch.Tensor) -> NDArray[np.float64]:
        """Return a tensor as a NumPy array."""
        return array.cpu().numpy()

    def compute_row_max(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the largest |x| of each row, NaN for a row with NaN."""
        high, low = torch.amax(rows, 1).double(), torch.amin(rows, 1).double()
        return torch.maximum(high, -low)

    def is_rounded(self, terms: Any, parts: Any) -> bool:
        """Return False: the host would wait for the comparison."""
        return False


class UpdateSum:
    """sum_k a_k (x_k - x) over clients' models x_k.

    The bits do not depend on order and grouping, see ``fedquorum.server.exact_sum``. On a CPU NumPy
    adds, because its kernels start sooner than PyTorch's.

    Parameters
    ----------
    start : mapping of str to array
        x, the model that all clients received.
    device : torch.device
        The device of the models.
    bins : SumBins
        Bins for the number of clients selected in the round, on all nodes.
    library : NumPyBackend, optional
        By default that of the device.
    """

    def __init__(
        self,
        start: Mapping[str, NDArray[Any]],
        device: torch.device,
        bins: SumBins,
        library: NumPyBackend | None = None,
    ) -> None:
        self._names = list(start)
        self._library = library or (NumPyBackend() if device.type == "cpu" else PyTorch(device))
        received = {name: self._library.to_array(array) for name, array in start.items()}
        self.total = ExactAccumulator(received, bins, self._library)
        self._too_large_reason = bins.too_large_reason

    def add(self, models: Sequence[torch.Tensor], factors: Sequence[float]) -> list[str | None]:
        """Add clients' updates; return for each why it was left out, or None if it was added.

        The server would reject it for the same reason: a model with NaN, Inf or a number beyond
        ``MAX_VALUE`` is left out, and so is an update that does not fit the bins.

        Parameters
        ----------
        models : sequence of tensor
            Each array of the model, stacked over m clients, (m, *shape).
        factors : sequence of float
            a_k, (m,).
        """
        m, library = len(factors), self._library
        rows = [library.to_array(model).reshape(m, -1) for model in models]
        is_usable = np.full(m, fill_value=True)
        for array_rows in rows:
            if array_rows.shape[1]:
                is_usable &= np.asarray(library.compute_row_max(array_rows).tolist()) <= MAX_VALUE
        problems = [
            None
            if usable and factor <= self.total.max_safe_factor
            else self._find_problem([array_rows[k] for array_rows in rows], factor, usable=usable)
            for k, (factor, usable) in enumerate(zip(factors, is_usable.tolist(), strict=True))
        ]
        added = [k for k in range(m) if problems[k] is None]
        if len(added) < m:
            rows = [array_rows[added] for array_rows in rows]
        if added:
            factor = library.to_array(np.array([factors[k] for k in added], dtype=np.float64))
            self.total.add_models(factor, dict(zip(self._names, rows, strict=True)))
        return problems

    def _find_problem(self, arrays: Sequence[Any], factor: float, *, usable: bool) -> str | None:
        """Return why a client's update cannot be added, or None."""
        model = dict(zip(self._names, arrays, strict=True))
        if not usable:
            return find_number_problem(
                {name: self._library.to_numpy(x) for name, x in model.items()}
            )
        return None if self.total.can_add(factor, model) else self._too_large_reason

    def merge(self, other: "UpdateSum") -> None:
        """Add another sum of the same start and bins."""
        self.total.merge(other.total.get_sums())

    def get_sums(self) -> PartialSums:
        """Return the current sums by the arrays' names."""
        return {
            name: BinnedSum(each.index, *map(self._library.to_numpy, (each.high, each.low)))
            for name, each in self.total.get_sums().items()
        }
