"""Sums of clients' updates that are the same bits however the clients are grouped.

Each term a_k Delta_k is rounded to one grid, whose multiples float64 adds without any error: then
neither the order of the clients matters, nor which of them a node, a worker or a chunk added up.
The functions take NumPy arrays and PyTorch tensors alike, in float64.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .types import FloatArray

SPACING = 2.0**-40
"""The distance of the grid's points, 9e-13: a float32 of size 1e-5 is as far from the next."""

MANTISSA = 52
WIDEST = 50
SUMMED = 51
BLOCK = 16384

ArrayT = TypeVar("ArrayT", bound=Any)


@dataclass(frozen=True)
class Grid:
    """The multiples of ``spacing``, as pairs of a coarse and a fine part.

    A term t is split into h + l, with h a multiple of ``coarse`` = 2^b ``spacing`` and
    |l| <= coarse / 2 a multiple of ``spacing``; h + l is t rounded to the grid. With
    b = 51 - (bits of n) the sums of n coarse parts and of n fine ones stay below 2^51 multiples
    of their spacing, so that float64 adds them exactly. Terms of at most ``limit`` fit.

    Parameters
    ----------
    spacing : float
        A power of two.
    bits : int
        b.

    References
    ----------
    Rump, Ogita and Oishi 2008, "Accurate Floating-Point Summation" (extraction of a part by
    adding and subtracting a constant); Demmel and Nguyen 2013, "Fast Reproducible Floating-Point
    Summation".
    """

    spacing: float
    bits: int

    @classmethod
    def of(cls, terms: int) -> Self:
        """Return the grid for the sum of at most so many terms."""
        return cls(SPACING, min(WIDEST, SUMMED - terms.bit_length()))

    @property
    def coarse(self) -> float:
        """The spacing of coarse parts."""
        return self.spacing * 2.0**self.bits

    @property
    def limit(self) -> float:
        """The largest |t| that fits."""
        return self.coarse * 2.0**self.bits

    def holding(self, largest: float) -> "Grid":
        """Return this grid, or the finest wider one on which a term of that size fits."""
        grid = self
        while largest > grid.limit:
            grid = Grid(grid.spacing * 2.0**self.bits, self.bits)
        return grid

    def is_fine(self, largest: float) -> bool:
        """Return whether the coarse parts of terms up to this size are all 0."""
        return largest < self.coarse / 2


def split(terms: ArrayT, grid: Grid, largest: float) -> tuple[ArrayT, ArrayT | None]:
    """Return the fine and the coarse parts of terms, which are overwritten.

    t is rounded to multiples of s as (t + C) - C with C = 1.5 * 2^52 s, which leaves no room for
    smaller bits; |t| must be at most 2^51 s. The coarse parts are None where all are 0, as
    ``largest``, the largest |t|, tells.
    """
    high = None
    if not grid.is_fine(largest):
        constant = 1.5 * 2.0**MANTISSA * grid.coarse
        high = terms + constant
        high -= constant
        terms -= high
    constant = 1.5 * 2.0**MANTISSA * grid.spacing
    terms += constant
    terms -= constant
    return terms, high


@dataclass(frozen=True)
class UpdateSums:
    """sum_k a_k Delta_k over the clients of a node, in two parts that are exact on the grid.

    Parameters
    ----------
    fine : mapping
        The sums of the fine parts, float64, of every array of the model.
    coarse : mapping
        The sums of the coarse parts, of those arrays in which one was not 0.
    """

    fine: Mapping[str, FloatArray]
    coarse: Mapping[str, FloatArray] = field(default_factory=dict)


class UpdateTotal:
    """sum_k a_k Delta_k with Delta_k = x_k - x_t over clients' models and sums of nodes.

    Parameters
    ----------
    model : mapping
        x_t.
    grid : Grid
        For as many terms as there are clients.
    """

    def __init__(self, model: Mapping[str, NDArray[Any]], grid: Grid) -> None:
        self._start = {name: array.reshape(-1) for name, array in model.items()}
        self._shapes = {name: array.shape for name, array in model.items()}
        self._fine = {name: np.zeros(array.size) for name, array in model.items()}
        self._coarse: dict[str, FloatArray] = {}
        self._grid = grid
        self.largest = 0.0

    def add_model(
        self,
        factor: float,
        client_model: Mapping[str, NDArray[Any]],
        start_model: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add a_k (x_k - x_t). Terms are made block by block, in memory that stays in a cache.

        ``start_model`` takes the place of x_t where the client trained from another model.
        """
        for name, array in client_model.items():
            flat = array.reshape(-1)
            start = self._start[name] if start_model is None else start_model[name].reshape(-1)
            for low in range(0, flat.size, BLOCK):
                block = slice(low, low + BLOCK)
                terms = np.subtract(flat[block], start[block], dtype=np.float64)
                terms *= factor
                self._add(name, block, terms)

    def add_sums(self, sums: UpdateSums) -> None:
        """Add the sums of a node."""
        for part in (sums.fine, sums.coarse):
            for name, array in part.items():
                flat = array.reshape(-1)
                for low in range(0, flat.size, BLOCK):
                    block = slice(low, low + BLOCK)
                    self._add(name, block, flat[block].copy())

    def _add(self, name: str, block: slice, terms: FloatArray) -> None:
        largest = max(float(terms.max()), -float(terms.min()))
        self.largest = max(self.largest, largest)
        fine, coarse = split(terms, self._grid, largest)
        self._fine[name][block] += fine
        if coarse is not None:
            if name not in self._coarse:
                self._coarse[name] = np.zeros_like(self._fine[name])
            self._coarse[name][block] += coarse

    def over(self, divisor: float) -> dict[str, FloatArray]:
        """Return the sum over ``divisor``, by name; it takes the place of the total."""
        for name, total in self._fine.items():
            np.add(total, self._coarse.pop(name, 0.0), out=total)
            np.divide(total, divisor, out=total)
        return {name: fine.reshape(self._shapes[name]) for name, fine in self._fine.items()}


NOT_SUMMED = "its update holds NaN or Inf, or is too large for the sum of the round"


def fits(
    model: Mapping[str, NDArray[Any]], client_model: Mapping[str, NDArray[Any]], bound: float
) -> bool:
    """Return whether |x_k - x_t| <= ``bound`` in every number, as the model's type has them."""
    return all(
        _fits(array.reshape(-1), model[name].reshape(-1), bound)
        for name, array in client_model.items()
    )


def _fits(array: NDArray[Any], start: NDArray[Any], bound: float) -> bool:
    blocks = (slice(low, low + BLOCK) for low in range(0, array.size, BLOCK))
    # Truth values have no difference, and that of unsigned numbers would begin again at 0.
    dtype = array.dtype if array.dtype.kind == "f" else np.float64
    return all(
        float(np.abs(np.subtract(array[at], start[at], dtype=dtype)).max()) <= bound
        for at in blocks
    )


def combined_update(
    model: Mapping[str, NDArray[Any]],
    factored_models: Iterable[tuple[float, Mapping[str, NDArray[Any]]]],
    divisor: float = 1.0,
    *,
    starts: Sequence[Mapping[str, NDArray[Any]]] | None = None,
) -> dict[str, FloatArray]:
    """Return sum_k a_k Delta_k / B with Delta_k = x_k - x_t, one float64 array per name.

    Parameters
    ----------
    model : mapping
        x_t.
    factored_models : iterable of (float, mapping)
        (a_k, x_k) of every client.
    divisor : float
        B > 0.
    starts : sequence of mapping, optional
        The model that each client trained from, where that is not x_t.
    """
    models = list(factored_models)
    begun = [None] * len(models) if starts is None else starts
    grid = Grid.of(len(models))
    while True:
        total = UpdateTotal(model, grid)
        for (factor, client_model), start in zip(models, begun, strict=True):
            total.add_model(factor, client_model, start)
        if total.largest <= grid.limit or not math.isfinite(total.largest):
            return total.over(divisor)
        grid = grid.holding(total.largest)
