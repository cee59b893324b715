"""Sum clients' updates as integers, in pairs of bins that are fixed before training.

``ExactAccumulator`` raises the bins of an array to its largest term. The bins and the presence of
a part then tell of single updates. Here the pair of each array follows from public values alone:
from the sum of the last round, or from the norm to which clients clip their updates. Both parts of
every sum are multiples of a known unit. As integers modulo 2^64 they can be masked, added in any
order, and converted back to the same float64 numbers.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..rules.types import FloatArray
from .exact_sum import (
    EXACT_INTEGER_BITS,
    MANTISSA_BITS,
    MAX_TERM,
    MAX_VALUE,
    MIN_EXPONENT,
    BinnedSum,
    ExponentBins,
    PartialSums,
    compute_bin_width,
)

CANCELLATION_BITS = 10
GROWTH_BITS = 10
"""A term may be 2^10 times as large as the last sum, since terms cancel, and grow by 2^10."""

MAX_SUM = 2**EXACT_INTEGER_BITS
"""No sum of parts has as many multiples of its unit."""

OUTSIDE_PAIR_REASON = (
    "its weighted update is too large for the bins of the round, which were fixed before training"
)

Integers = NDArray[np.uint64]
"""Multiples of the units modulo 2^64, shape (2, d) for a model of d numbers: high parts, low parts.

The arrays follow each other in the order of ``FixedBins.exponents``.
"""


@dataclass(frozen=True)
class FixedPair(ExponentBins):
    """The two bins of one array: bin 0 with unit u = 2^exponent, and bin -1 with 2^-width u.

    Unlike the bins of a dynamic sum, the pair is not aligned to multiples of the width, so that it
    starts just above the largest allowed term and reaches as far down as it can.

    Parameters
    ----------
    width : int
        Bits, 1 to 52.
    exponent : int
    """

    exponent: int

    @cached_property
    def max_term(self) -> float:
        """2^(width - 1) u: the part of a larger term could have too many multiples of u."""
        return math.ldexp(1.0, self.exponent + self.width - 1)

    @cached_property
    def lowest(self) -> int:
        """The one upper bin."""
        return 0

    @property
    def highest(self) -> int:
        """The one upper bin."""
        return 0

    def find_bin(self, largest: float) -> int:
        """Return the one upper bin."""
        return 0

    def compute_max_sum(self, index: int) -> float:
        """Return 2^53 units of bin 0 or -1."""
        return math.ldexp(1.0, EXACT_INTEGER_BITS + self.get_exponent(index))

    def compute_rounding_constant(self, index: int) -> float:
        """Return 1.5 * 2^52 units of bin 0 or -1, see ``ExponentBins``."""
        return math.ldexp(1.5, MANTISSA_BITS + self.get_exponent(index))

    def get_exponent(self, index: int) -> int:
        """Return log2 of the unit of bin 0 or -1."""
        return self.exponent + index * self.width


@dataclass(frozen=True)
class FixedBins:
    """A pair of bins for each array of a model.

    A part of one term is at most 2^(width - 1) <= 2^51 multiples of its unit. With the width for
    n terms (``compute_bin_width``), sums of n parts are below 2^53 multiples: for n < 2^b,
    n 2^(width - 1) <= n 2^(53 - b) < 2^53. So float64 adds them exactly, int64 holds them, and
    whoever knows a sum modulo 2^64 knows the sum.

    Parameters
    ----------
    width : int
        Bits, 1 to 52.
    exponents : mapping of str to int
        log2 of the unit of each array's high part, in the order of the model's arrays.
    """

    width: int
    exponents: Mapping[str, int]

    is_fixed: ClassVar[bool] = True
    too_large_reason: ClassVar[str] = OUTSIDE_PAIR_REASON

    def for_array(self, name: str) -> FixedPair:
        """Return the pair of an array."""
        return FixedPair(self.width, self.exponents[name])

    @property
    def is_valid(self) -> bool:
        """Whether float64 has the multiples of all units, and sums of the largest terms."""
        lowest, highest = compute_exponent_limits(self.width)
        return all(lowest <= exponent <= highest for exponent in self.exponents.values())

    def to_integers(self, sums: PartialSums) -> Integers:
        """Return the parts of all arrays as multiples of their units.

        Parameters
        ----------
        sums : mapping
            From an ``ExactAccumulator`` with these bins.
        """
        size = sum(sums[name].high.size for name in self.exponents)
        integers = np.empty((2, size), np.int64)
        start = 0
        for name in self.exponents:
            total, pair = sums[name], self.for_array(name)
            end = start + total.high.size
            # The quotients are whole and below 2^53, so nothing is rounded.
            for index, part in enumerate((total.high, total.low)):
                integers[index, start:end] = np.ldexp(part, -pair.get_exponent(-index)).reshape(-1)
            start = end
        return integers.view(np.uint64)

    def from_integers(
        self, integers: Integers, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, BinnedSum[FloatArray]]:
        """Return the parts of all arrays from their multiples, the inverse of ``to_integers``.

        Parameters
        ----------
        integers : array of uint64
            A sum, modulo 2^64, of the integers of disjoint sets of at most n terms together.
        shapes : mapping of str to tuple of int
            The shape of each array.

        Raises
        ------
        ArithmeticError
            If a number is no sum of n terms, as after a mask that was not removed.
        """
        multiples = integers.view(np.int64)
        # |-2^63| overflows, so the sign stays.
        if multiples.size and not -MAX_SUM < multiples.min() <= multiples.max() < MAX_SUM:
            raise ArithmeticError("an integer is no sum of terms: it is 2^53 or more")
        sums = {}
        start = 0
        for name in self.exponents:
            pair, shape = self.for_array(name), shapes[name]
            end = start + math.prod(shape)
            high, low = (
                np.ldexp(multiples[index, start:end].astype(np.float64), pair.get_exponent(-index))
                for index in (0, 1)
            )
            sums[name] = BinnedSum(0, high.reshape(shape), low.reshape(shape))
            start = end
        return sums


def compute_exponent_limits(width: int) -> tuple[int, int]:
    """Return the lowest and the highest log2 of the unit of a high part.

    The low unit is at least 2^-1074, and the largest term at most ``MAX_TERM``.
    """
    return width + MIN_EXPONENT, math.frexp(MAX_TERM)[1] - width


def choose_fixed_bins(
    names: Iterable[str],
    terms: int,
    max_factor: float,
    update_sizes: Mapping[str, float],
    max_update: float = 2 * MAX_VALUE,
) -> FixedBins:
    """Return the bins of a round, a function of public values alone.

    An array's largest term is 2^20 times the size that it had in the last sum, and at most the
    largest term of a usable update. It is the latter for an array without a size: in round 1, and
    where the last sum was 0.

    Parameters
    ----------
    names : iterable of str
        The model's arrays.
    terms : int
        n, the number of selected clients.
    max_factor : float
        The largest a_k.
    update_sizes : mapping of str to float
        By ``compute_update_sizes``, after the last round.
    max_update : float
        The largest |x_k - x_t| of a usable number; a clipped update's norm, if clients clip.
    """
    width = compute_bin_width(terms)
    lowest, highest = compute_exponent_limits(width)
    exponents = {}
    for name in names:
        size = update_sizes.get(name, 0.0)
        bits = _ceil_log2(max_update)
        if size > 0.0:
            bits = min(bits, _ceil_log2(size) + CANCELLATION_BITS + GROWTH_BITS)
        exponent = bits + (_ceil_log2(max_factor) if max_factor > 0.0 else 0) - (width - 1)
        exponents[name] = min(max(exponent, lowest), highest)
    return FixedBins(width, exponents)


def compute_update_sizes(
    update: Mapping[str, FloatArray], denominator: float, max_factor: float
) -> dict[str, float]:
    """Return max |sum_k a_k Delta_k| / (the largest a_k) of each array; 0 for an empty array.

    Parameters
    ----------
    update : mapping
        sum_k a_k Delta_k / B.
    denominator : float
        B.
    max_factor : float
        The largest a_k > 0.
    """
    return {
        name: float(np.abs(array).max(initial=0.0)) * (denominator / max_factor)
        for name, array in update.items()
    }


def _ceil_log2(value: float) -> int:
    """Return the least b with value <= 2^b, for a finite value > 0."""
    exponent = math.frexp(value)[1]
    return exponent - 1 if value == math.ldexp(1.0, exponent - 1) else exponent
