"""Add up clients' updates to the same bits, however the clients are grouped.

Each term a_k Delta_k is rounded to bins at fixed exponents, whose multiples float64 adds exactly.
The sum therefore depends neither on the order of the clients nor on how nodes, workers or chunks
group them. The bins follow from the terms, so a sum keeps its relative accuracy for any factors
a_k, updates and denominator. Arrays are NumPy's or PyTorch's, in float64.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..rules.types import FloatArray

MANTISSA_BITS = 52
EXACT_INTEGER_BITS = 53
MIN_EXPONENT = -1074
"""float64 has 52 bits after the first, adds whole numbers up to 2^53, and ends at 2^-1074."""

MAX_TERM = 2.0**960
"""The largest |t| of a term: the sums of parts and the constants that round them stay finite.

The unit of its bin is at most 2^961 with any width, and 2^53 units are below 2^1024.
"""

MAX_VALUE = 1e15
"""The largest |x| of a number in a client's model that can be used.

Only a diverged model has larger numbers. Up to 2^53, about 9e15, float64 tells whole numbers apart.
"""

UNSUMMABLE_REASON = "its update times its amount of data is too large for the sum of the round"

BLOCK = 2**15
"""How many numbers are added at a time: their copies in float64 stay in a core's cache.

The terms and their parts are 256 KiB each. Smaller blocks cost more calls.
"""

ArrayT = TypeVar("ArrayT", bound=Any)


@dataclass(frozen=True)
class ExponentBins:
    """Bins of ``width`` bits each: bin i holds the multiples of u_i = 2^(i width).

    Terms of at most n clients are split into their parts in bin i and in bin i - 1, where i is the
    lowest bin with |t| < u_(i+1) / 2 for all of them. A part is at most 2^(width - 1) multiples of
    its unit. With width = 54 - (bits of n), and at most 52, sums of n parts stay below 2^53
    multiples, so that float64 adds them exactly. The remainder of a term outside the two bins is at
    most u_(i-1) / 2 <= 2^-width of the largest term.

    Parameters
    ----------
    width : int
        Bits, 1 to 52.

    References
    ----------
    Demmel and Nguyen 2013, "Fast Reproducible Floating-Point Summation" (bins at fixed
    exponents); Rump, Ogita and Oishi 2008, "Accurate Floating-Point Summation" (extraction of a
    part by adding and subtracting a constant).
    """

    width: int

    is_fixed: ClassVar[bool] = False
    too_large_reason: ClassVar[str] = UNSUMMABLE_REASON

    @classmethod
    @lru_cache  # rounds of one size share their bins, and what follows from these
    def for_num_terms(cls, terms: int) -> Self:
        """Return the bins for a sum of at most ``terms`` terms."""
        return cls(compute_bin_width(terms))

    def for_array(self, name: str) -> "ExponentBins":
        """Return the bins of an array: the same for all."""
        return self

    @cached_property
    def max_term(self) -> float:
        """The largest |t| of a term."""
        return MAX_TERM

    @cached_property
    def lowest(self) -> int:
        """The lowest bin: all multiples of the next lower unit are float64 numbers.

        Terms below this bin, those below 1e-290, lose accuracy and then vanish.
        """
        return math.ceil(MIN_EXPONENT / self.width) + 1

    @property
    def highest(self) -> int:
        """The bin of the largest allowed term."""
        return self.find_bin(MAX_TERM)

    def find_bin(self, largest: float) -> int:
        """Return the bin of a term of this size, 0 < |t| <= ``MAX_TERM``."""
        exponent = math.frexp(largest)[1]
        return max(self.lowest, -(-(exponent + 1) // self.width) - 1)

    def compute_max_sum(self, index: int) -> float:
        """Return 2^53 u_i, which no sum of parts in bin i exceeds."""
        return math.ldexp(1.0, EXACT_INTEGER_BITS + index * self.width)

    def compute_rounding_constant(self, index: int) -> float:
        """Return C = 1.5 * 2^52 u_i: (t + C) - C is t rounded to u_i, for |t| <= 2^51 u_i."""
        return math.ldexp(1.5, MANTISSA_BITS + index * self.width)


class SumBins(Protocol):
    """The bins of a model's sum: ``ExponentBins``, or fixed pairs (``fixed_bins.FixedBins``)."""

    @property
    def is_fixed(self) -> bool:
        """Whether the pair of each array is fixed before training, and both parts always exist."""

    @property
    def too_large_reason(self) -> str:
        """The reason why a client with a term that is too large is left out."""

    def for_array(self, name: str) -> ExponentBins:
        """Return the bins of an array."""


def compute_bin_width(terms: int) -> int:
    """Return the bits of a bin for a sum of at most ``terms`` terms, see ``ExponentBins``."""
    return min(MANTISSA_BITS, EXACT_INTEGER_BITS + 1 - terms.bit_length())


@dataclass(frozen=True, eq=False)
class BinnedSum(Generic[ArrayT]):
    """The sum of an array's terms: of their parts in bin ``index`` and in the next lower bin."""

    index: int
    high: ArrayT
    low: ArrayT

    def reshape(self, shape: tuple[int, ...]) -> "BinnedSum[ArrayT]":
        """Return the sum with its parts in another shape."""
        return BinnedSum(self.index, self.high.reshape(shape), self.low.reshape(shape))


PartialSums = Mapping[str, BinnedSum[FloatArray]]
"""sum_k a_k Delta_k over the clients of a node, for each array with a nonzero term.

In fixed bins it has all arrays.
"""


class NumPyBackend:
    """The operations of an array library that a sum needs; a subclass supports another library.

    Attributes
    ----------
    block : int
        How many numbers are added at a time.
    add : callable
        ``add(terms, constant, out=parts)`` writes terms + constant into ``parts``.
    create_empty : callable
        ``create_empty(size)`` returns an uninitialized float64 array, shape (size,).
    """

    block: ClassVar[int] = BLOCK
    add: ClassVar[Callable[..., Any]] = np.add
    create_empty: Callable[[int], Any] = np.empty

    def to_array(self, values: Any) -> Any:
        """Return the values as an array of the library."""
        return np.asarray(values)

    def to_numpy(self, array: Any) -> FloatArray:
        """Return the array as a NumPy array."""
        return np.asarray(array)

    def compute_row_max(self, rows: Any) -> Any:
        """Return the largest |x| of each row, NaN for a row with NaN."""
        high, low = rows.max(1).astype(np.float64), rows.min(1).astype(np.float64)
        return np.maximum(high, -low)

    def is_rounded(self, terms: Any, parts: Any) -> bool:
        """Return whether all terms, (rows, columns), are known to equal their parts."""
        # Terms with all bits of float64 leave a remainder almost always: the first one tells.
        return bool(terms[0, 0] == parts[0, 0]) and bool((terms == parts).all())


class ExactAccumulator:
    """sum_k a_k Delta_k with Delta_k = x_k - x_t over clients' models and sums of nodes.

    Parameters
    ----------
    model : mapping
        x_t, arrays of any shape.
    bins : SumBins
        For as many terms as the round has selected clients, on all nodes.
    library : NumPyBackend, optional
        The library of the arrays.
    """

    def __init__(
        self, model: Mapping[str, Any], bins: SumBins, library: NumPyBackend | None = None
    ) -> None:
        self._start = {name: array.reshape(-1) for name, array in model.items()}
        self._shapes = {name: tuple(array.shape) for name, array in model.items()}
        self._library = library or NumPyBackend()
        self._sums: dict[str, BinnedSum[Any]] = {}
        self._finite = True
        self._terms = self._library.create_empty(self._library.block)
        self._parts = self._library.create_empty(self._library.block)
        # Allocate now: running out of memory in the middle of an update would leave half of it
        # in the sum.
        self._memory = {
            name: (self._library.create_empty(len(flat)), self._library.create_empty(len(flat)))
            for name, flat in self._start.items()
        }
        self._is_fixed = bins.is_fixed
        if isinstance(bins, ExponentBins):
            self._bins = dict.fromkeys(self._start, bins)
        else:
            self._bins = {name: bins.for_array(name) for name in self._start}
            for name in self._start:
                self._raise_bin(name, 0)
        self._max_terms = {name: each.max_term for name, each in self._bins.items()}

    @cached_property
    def max_safe_factor(self) -> float:
        """The largest factor with which every update of usable numbers fits, 0 in fixed bins."""
        if self._is_fixed:
            return 0.0
        rows = (flat.reshape(1, -1) for flat in self._start.values() if len(flat))
        largest = max((float(self._library.compute_row_max(row)[0]) for row in rows), default=0.0)
        return MAX_TERM / (4 * max(MAX_VALUE, largest))

    def can_add(self, factor: float, client_model: Mapping[str, Any]) -> bool:
        """Say whether all terms a_k (x_k - x_t) of a client are at most the bins' largest term.

        The numbers of the client's model must be at most ``MAX_VALUE``.
        """
        if factor <= self.max_safe_factor:
            return True
        for name, array in client_model.items():
            x, start = (
                self._library.to_numpy(one).astype(np.float64).reshape(-1)
                for one in (array, self._start[name])
            )
            if len(x) and not float(np.abs(x - start).max()) * factor <= self._max_terms[name]:
                return False
        return True

    def add_model(
        self,
        factor: float,
        client_model: Mapping[str, NDArray[Any]],
        start_model: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Add a_k (x_k - x_t).

        ``start_model`` replaces x_t if the client trained from another model.
        """
        self.add_models(np.array([factor]), client_model, start_model)

    def add_models(
        self, factors: Any, models: Mapping[str, Any], start_model: Mapping[str, Any] | None = None
    ) -> None:
        """Add a_k (x_k - x_t) of m clients.

        Parameters
        ----------
        factors : array
            a_k, (m,).
        models : mapping
            x_k, arrays of (m, *shape); of one client also (*shape).
        start_model : mapping, optional
            As for ``add_model``, or arrays of (m, *shape) with a start for each client.
        """
        m, max_size = len(factors), self._library.block
        for name, stacked in models.items():
            flat = stacked.reshape(m, -1)
            start = self._start[name] if start_model is None else start_model[name]
            size = flat.shape[1]
            has_starts = start_model is not None and m > 1 and start.size == m * size
            starts = start.reshape(m, size) if has_starts else start.reshape(1, size)
            columns = min(flat.shape[1], max_size)
            rows = max_size // columns if columns else 0
            for left in range(0, flat.shape[1], max_size):
                across = slice(left, left + max_size)
                for top in range(0, m, rows):
                    block = flat[top : top + rows, across]
                    size = block.shape[0] * block.shape[1]
                    terms = self._terms[:size].reshape(block.shape)
                    parts = self._parts[:size].reshape(block.shape)
                    terms[...] = block
                    # Convert once for all rows: NumPy would convert x_t for each of them.
                    if has_starts:
                        parts[...] = starts[top : top + rows, across]
                        terms -= parts
                    else:
                        parts[0] = starts[0, across]
                        terms -= parts[0]
                    terms *= factors[top : top + rows, None]
                    self._add_terms(name, across, terms, parts)

    def _add_terms(self, name: str, across: slice, terms: Any, parts: Any) -> None:
        """Add terms, (rows, columns); both arrays are overwritten."""
        bins = self._bins[name]
        largest = max(float(terms.max()), -float(terms.min()))
        if not largest <= self._max_terms[name]:
            self._finite = False
            return
        if largest == 0.0:
            return
        index = bins.find_bin(largest)
        total = self._raise_bin(name, index)
        if index == total.index:
            self._add_parts(terms, bins.compute_rounding_constant(index), parts, total.high[across])
            # Changes of float32 numbers, times a small whole number, mostly have no lower part.
            if self._library.is_rounded(terms, parts):
                return
            # What is left of each term goes to the next lower bin.
            terms -= parts
        if index >= total.index - 1:
            constant = bins.compute_rounding_constant(total.index - 1)
            self._add_parts(terms, constant, parts, total.low[across])

    def _add_parts(self, terms: Any, constant: float, parts: Any, total: Any) -> None:
        """Round terms to multiples of u_i, into ``parts``, and add their rows to ``total``."""
        self._library.add(terms, constant, out=parts)
        parts -= constant
        total += parts[0] if len(parts) == 1 else parts.sum(0)

    def _raise_bin(self, name: str, index: int) -> BinnedSum[Any]:
        """Return an array's sum, whose upper bin is ``index`` or higher."""
        total = self._sums.get(name)
        if total is None:
            high, low = self._memory.pop(name)
            high[...] = 0.0
            low[...] = 0.0
            self._sums[name] = total = BinnedSum(index, high, low)
        elif index > total.index:
            # All terms so far have no part in the new upper bin. The arrays are used again.
            high, low = total.low, total.high
            high[...] = 0.0
            if index > total.index + 1:
                low[...] = 0.0
            self._sums[name] = total = BinnedSum(index, high, low)
        return total

    def merge(self, sums: PartialSums) -> None:
        """Add the sums of other clients, such as those of a node."""
        for name, other in sums.items():
            flat = other.reshape((-1,))
            total = self._raise_bin(name, flat.index)
            high, low = total.high, total.low
            if flat.index == total.index:
                high += flat.high
                low += flat.low
            elif flat.index == total.index - 1:
                low += flat.high

    def get_sums(self) -> dict[str, BinnedSum[Any]]:
        """Return the sums so far, by the names of the arrays with a nonzero term.

        In fixed bins all arrays have a sum.

        Raises
        ------
        ArithmeticError
            If a term was not finite or too large.
        """
        if not self._finite:
            raise ArithmeticError("a term of the sum is not finite, or too large")
        return {name: total.reshape(self._shapes[name]) for name, total in self._sums.items()}

    def divide_by(self, denominator: float) -> dict[str, FloatArray]:
        """Return the sum divided by ``denominator``, by array name; consumes the total.

        All numbers are NaN if a term was not finite or too large.
        """
        if not self._finite:
            return {name: np.full(shape, math.nan) for name, shape in self._shapes.items()}
        step = {}
        for name, shape in self._shapes.items():
            total = self._sums.pop(name, None)
            if total is None:
                step[name] = np.zeros(shape)
                continue
            np.add(total.high, total.low, out=total.high)
            np.divide(total.high, denominator, out=total.high)
            step[name] = total.high.reshape(shape)
        return step


def compute_weighted_sum(
    model: Mapping[str, NDArray[Any]],
    weighted_models: Iterable[tuple[float, Mapping[str, NDArray[Any]]]],
    denominator: float = 1.0,
    *,
    starts: Sequence[Mapping[str, NDArray[Any]]] | None = None,
) -> dict[str, FloatArray]:
    """Return sum_k a_k Delta_k / B with Delta_k = x_k - x_t, one float64 array per name.

    Parameters
    ----------
    model : mapping
        x_t.
    weighted_models : iterable of (float, mapping)
        (a_k, x_k) of every client.
    denominator : float
        B > 0.
    starts : sequence of mapping, optional
        The model from which each client trained; by default x_t.
    """
    models = list(weighted_models)
    total = ExactAccumulator(model, ExponentBins.for_num_terms(len(models)))
    # Small models are added together: a call costs more than their numbers. No bit depends on it.
    numbers = sum(array.size for array in model.values())
    count = max(1, BLOCK // max(1, numbers))
    for low in range(0, len(models), count):
        several = models[low : low + count]
        if len(several) == 1:
            factor, client_model = several[0]
            total.add_model(factor, client_model, None if starts is None else starts[low])
            continue
        total.add_models(
            np.array([factor for factor, _ in several]),
            _stack([client_model for _, client_model in several], model),
            None if starts is None else _stack(starts[low : low + count], model),
        )
    return total.divide_by(denominator)


def _stack(
    models: Sequence[Mapping[str, NDArray[Any]]], model: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return models with their arrays stacked, (m, *shape)."""
    return {name: np.array([one[name] for one in models]) for name in model}
