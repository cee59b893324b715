"""The weighted sum of clients' updates, made where they train."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fedquorum.flower.validation import numbers_problem
from fedquorum.summation import MAX_VALUE, BinnedSum, Bins, NumPy, UpdateSums, UpdateTotal
from numpy.typing import NDArray


class PyTorch(NumPy):
    """What a sum needs of PyTorch, for models on a GPU.

    Parameters
    ----------
    device : torch.device
        Where the tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def array(self, values: Any) -> torch.Tensor:
        """Return a tensor of these values there."""
        return torch.as_tensor(values, device=self._device)

    def empty(self, size: int) -> torch.Tensor:
        """Return a tensor of so many numbers in float64."""
        return torch.empty(size, dtype=torch.float64, device=self._device)

    def add(self, terms: torch.Tensor, constant: float, out: torch.Tensor) -> None:
        """Write terms + constant into ``out``."""
        torch.add(terms, constant, out=out)

    def numpy(self, array: torch.Tensor) -> NDArray[np.float64]:
        """Return a tensor as NumPy's array."""
        return array.cpu().numpy()

    def largest(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the largest |x| of each row, NaN where there is one."""
        high, low = torch.amax(rows, 1).double(), torch.amin(rows, 1).double()
        return torch.maximum(high, -low)


class UpdateSum:
    """sum_k a_k (x_k - x) over clients' models x_k.

    The bits are those of any other order and grouping, see ``fedquorum.summation``. On a CPU
    NumPy adds: its kernels start sooner than PyTorch's.

    Parameters
    ----------
    start : mapping of str to array
        x, the model that all of them received.
    device : torch.device
        Where the models are.
    bins : Bins
        For as many clients as the round asks, on all nodes.
    """

    def __init__(self, start: Mapping[str, NDArray[Any]], device: torch.device, bins: Bins) -> None:
        self._names = list(start)
        self._on_cpu = device.type == "cpu"
        self._library = NumPy() if self._on_cpu else PyTorch(device)
        received = {name: self._library.array(array) for name, array in start.items()}
        self.total = UpdateTotal(received, bins, self._library)

    def add(self, models: Sequence[torch.Tensor], factors: Sequence[float]) -> list[str | None]:
        """Add clients' updates, and return why one is not in the sum, None if it is.

        The server would reject it for the same reason: a model with NaN, Inf or a number beyond
        ``MAX_VALUE`` is left out.

        Parameters
        ----------
        models : sequence of tensor
            Of each array those of m clients, (m, *shape).
        factors : sequence of float
            a_k, (m,).
        """
        m, library = len(factors), self._library
        arrays = [model.numpy() if self._on_cpu else model for model in models]
        rows = [array.reshape(m, -1) for array in arrays]
        usable = np.full(m, fill_value=True)
        for flat in rows:
            if flat.shape[1]:
                usable &= np.asarray(library.largest(flat).tolist()) <= MAX_VALUE
        chosen = np.flatnonzero(usable).tolist()
        if len(chosen) < m:
            rows = [flat[chosen] for flat in rows]
        if chosen:
            factor = library.array([factors[k] for k in chosen])
            self.total.add_models(factor, dict(zip(self._names, rows, strict=True)))
        return [None if usable[k] else self._problem(models, k) for k in range(m)]

    def _problem(self, models: Sequence[torch.Tensor], k: int) -> str | None:
        named = zip(self._names, models, strict=True)
        return numbers_problem({name: model[k].cpu().numpy() for name, model in named})

    def merge(self, other: "UpdateSum") -> None:
        """Add another sum of the same start and bins."""
        self.total.add_sums(other.total.sums())

    def sums(self) -> UpdateSums:
        """Return the sums so far by the arrays' names."""
        return {
            name: BinnedSum(each.index, *map(self._library.numpy, (each.high, each.low)))
            for name, each in self.total.sums().items()
        }
