"""The weighted sum of clients' updates, made where they train."""

from collections.abc import Sequence

import numpy as np
import torch
from fedquorum.summation import Grid, UpdateSums, split
from numpy.typing import NDArray

from client_app.arrays import Arrays

AT_ONCE = 2**16  # numbers: their float64 copies stay in a core's cache


class UpdateSum:
    """sum_k a_k (x_k - x) over clients' models x_k, exact on the grid of the round.

    The bits are those of any other order and grouping, see ``fedquorum.summation``.

    Parameters
    ----------
    start : list of array
        x, the model that all of them received.
    device : torch.device
        Where the sum is made.
    grid : Grid
        For as many clients as the round asks, on all nodes.
    """

    def __init__(self, start: Arrays, device: torch.device, grid: Grid) -> None:
        self._received = [torch.from_numpy(array).to(device) for array in start]
        self._start = [x.reshape(-1).double() for x in self._received]
        self.fine = [torch.zeros_like(x) for x in self._start]
        self.coarse: dict[int, torch.Tensor] = {}
        self._grid = grid

    def add(self, models: Sequence[torch.Tensor], factors: Sequence[float]) -> list[bool]:
        """Add clients' updates, and return which of them are in the sum.

        An update with NaN or Inf, or with a number beyond what the grid holds, is left out.

        Parameters
        ----------
        models : sequence of tensor
            Of each array those of m clients, (m, *shape).
        factors : sequence of float
            a_k, (m,).
        """
        m = len(factors)
        factor = torch.tensor(factors, dtype=torch.float64, device=self._start[0].device)
        largest = torch.stack(
            [
                (model - x).reshape(m, -1).abs().amax(dim=1).double() * factor
                if x.numel()
                else torch.zeros_like(factor)
                for model, x in zip(models, self._received, strict=True)
            ]
        )  # (arrays, m)
        fits = (largest <= self._grid.limit).all(dim=0)
        chosen = fits.nonzero().squeeze(1)
        for place, model in enumerate(models):
            flat = model.reshape(m, -1)
            if len(chosen) < m:
                flat = flat[chosen]
            if flat.numel():
                self._add(place, flat, factor[chosen], float(largest[place, chosen].max()))
        return [bool(each) for each in fits.tolist()]

    def _add(self, place: int, flat: torch.Tensor, factor: torch.Tensor, largest: float) -> None:
        """Add the updates to one array (m, n), some numbers at a time."""
        columns = min(flat.shape[1], AT_ONCE)
        rows = max(1, AT_ONCE // columns)
        for left in range(0, flat.shape[1], columns):
            across = slice(left, left + columns)
            for top in range(0, len(factor), rows):
                down = slice(top, top + rows)
                terms = flat[down, across].double()
                terms -= self._start[place][across]
                terms *= factor[down, None]
                fine, coarse = split(terms, self._grid, largest)
                self.fine[place][across] += fine.sum(dim=0)
                if coarse is not None:
                    self._coarse_of(place)[across] += coarse.sum(dim=0)

    def _coarse_of(self, place: int) -> torch.Tensor:
        if place not in self.coarse:
            self.coarse[place] = torch.zeros_like(self.fine[place])
        return self.coarse[place]

    def merge(self, other: "UpdateSum") -> None:
        """Add another sum of the same start and grid."""
        for place, flat in enumerate(other.fine):
            self.fine[place].add_(flat)
        for place, flat in other.coarse.items():
            self._coarse_of(place).add_(flat)

    def named(self, names: Sequence[str]) -> UpdateSums:
        """Return the sums so far by the arrays' names."""

        def array(place: int, flat: torch.Tensor) -> NDArray[np.float64]:
            return flat.reshape(self._received[place].shape).cpu().numpy()

        return UpdateSums(
            {names[i]: array(i, flat) for i, flat in enumerate(self.fine)},
            {names[i]: array(i, flat) for i, flat in sorted(self.coarse.items())},
        )
