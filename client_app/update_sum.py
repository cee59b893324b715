"""The weighted sum of clients' updates, made where they train."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from fedquorum.exact_sum import (
    MAX_VALUE,
    UNSUMMABLE_REASON,
    BinnedSum,
    ExactAccumulator,
    ExponentBins,
    NumPyBackend,
    PartialSums,
)
from fedquorum.flower.validation import find_number_problem
from numpy.typing import NDArray


class PyTorch(NumPyBackend):
    """What a sum needs of PyTorch, for models on a GPU.

    Parameters
    ----------
    device : torch.device
        Where the tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def to_array(self, values: Any) -> torch.Tensor:
        """Return a tensor of these values there."""
        return torch.as_tensor(values, device=self._device)

    def create_empty(self, size: int) -> torch.Tensor:
        """Return a tensor of so many numbers in float64."""
        return torch.empty(size, dtype=torch.float64, device=self._device)

    def add(self, terms: torch.Tensor, constant: float, out: torch.Tensor) -> None:
        """Write terms + constant into ``out``."""
        torch.add(terms, constant, out=out)

    def to_numpy(self, array: torch.Tensor) -> NDArray[np.float64]:
        """Return a tensor as NumPy's array."""
        return array.cpu().numpy()

    def compute_row_max(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the largest |x| of each row, NaN where there is one."""
        high, low = torch.amax(rows, 1).double(), torch.amin(rows, 1).double()
        return torch.maximum(high, -low)


class UpdateSum:
    """sum_k a_k (x_k - x) over clients' models x_k.

    The bits are those of any other order and grouping, see ``fedquorum.exact_sum``. On a CPU
    NumPy adds: its kernels start sooner than PyTorch's.

    Parameters
    ----------
    start : mapping of str to array
        x, the model that all of them received.
    device : torch.device
        Where the models are.
    bins : Bins
        For as many clients as the round asks, on all nodes.
    library : NumPy, optional
        What adds, if not that of the device.
    """

    def __init__(
        self,
        start: Mapping[str, NDArray[Any]],
        device: torch.device,
        bins: ExponentBins,
        library: NumPyBackend | None = None,
    ) -> None:
        self._names = list(start)
        self._library = library or (NumPyBackend() if device.type == "cpu" else PyTorch(device))
        received = {name: self._library.to_array(array) for name, array in start.items()}
        self.total = ExactAccumulator(received, bins, self._library)

    def add(self, models: Sequence[torch.Tensor], factors: Sequence[float]) -> list[str | None]:
        """Add clients' updates, and return why one is not in the sum, None if it is.

        The server would reject it for the same reason: a model with NaN, Inf or a number beyond
        ``MAX_VALUE`` is left out, and so is an update that does not fit.

        Parameters
        ----------
        models : sequence of tensor
            Of each array those of m clients, (m, *shape).
        factors : sequence of float
            a_k, (m,).
        """
        m, library = len(factors), self._library
        rows = [library.to_array(model).reshape(m, -1) for model in models]
        usable = np.full(m, fill_value=True)
        for flat in rows:
            if flat.shape[1]:
                usable &= np.asarray(library.compute_row_max(flat).tolist()) <= MAX_VALUE
        problems = [
            self._find_problem([flat[k] for flat in rows], factors[k], usable=bool(usable[k]))
            for k in range(m)
        ]
        chosen = [k for k in range(m) if problems[k] is None]
        if len(chosen) < m:
            rows = [flat[chosen] for flat in rows]
        if chosen:
            factor = library.to_array(np.array([factors[k] for k in chosen], dtype=np.float64))
            self.total.add_models(factor, dict(zip(self._names, rows, strict=True)))
        return problems

    def _find_problem(self, arrays: Sequence[Any], factor: float, *, usable: bool) -> str | None:
        """Return why a client's update cannot be added."""
        model = dict(zip(self._names, arrays, strict=True))
        if not usable:
            return find_number_problem(
                {name: self._library.to_numpy(x) for name, x in model.items()}
            )
        return None if self.total.can_add(factor, model) else UNSUMMABLE_REASON

    def merge(self, other: "UpdateSum") -> None:
        """Add another sum of the same start and bins."""
        self.total.merge(other.total.get_sums())

    def get_sums(self) -> PartialSums:
        """Return the sums so far by the arrays' names."""
        return {
            name: BinnedSum(each.index, *map(self._library.to_numpy, (each.high, each.low)))
            for name, each in self.total.get_sums().items()
        }
