"""Add up numbers and their squares exactly, so that no order and no grouping changes a bit."""

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Self

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

MANTISSA_BITS = 53
PART_BITS = 18
PART_MASK = 2**PART_BITS - 1
"""A mantissa has three parts of 18 bits: int64 adds the products of 2^25 of them exactly."""

CELLS_AT_ONCE = 2**20
EXPONENTS = 2**12  # more than float64 has, so that a column and an exponent are one number
ROOT_BITS = 128  # more than twice those of a mantissa


@dataclass(frozen=True)
class Moments:
    """The exact count, sum and sum of squares of the known numbers in each of p columns.

    The moments of two groups of rows add up to those of all rows, in any order. Means and
    deviations are rounded once, at the end.

    Attributes
    ----------
    counts : tuple of int
        (p,), the known numbers of each column.
    sums, squares : tuple of Fraction
        (p,), their sum, and the sum of their squares.
    """

    counts: tuple[int, ...]
    sums: tuple[Fraction, ...]
    squares: tuple[Fraction, ...]

    @classmethod
    def measure(cls, numbers: Numbers) -> Self:
        """Return the moments of numbers (n, p), finite or NaN for a missing one."""
        p = numbers.shape[1]
        rows = max(1, CELLS_AT_ONCE // max(1, p))
        starts = range(0, max(1, len(numbers)), rows)
        return reduce(operator.add, (cls._measure_part(numbers[i : i + rows]) for i in starts))

    @classmethod
    def _measure_part(cls, numbers: Numbers) -> Self:
        p = numbers.shape[1]
        known = ~np.isnan(numbers)
        sums, squares = [Fraction()] * p, [Fraction()] * p
        for column, exponent, total, total_of_squares in _add_by_exponent(
            numbers[known], np.nonzero(known)[1]
        ):
            unit = Fraction(2) ** (exponent - MANTISSA_BITS)
            sums[column] += total * unit
            squares[column] += total_of_squares * unit**2
        return cls(tuple(known.sum(axis=0).tolist()), tuple(sums), tuple(squares))

    def __add__(self, other: Self) -> Self:
        return type(self)(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    def compute_means(self) -> Numbers:
        """Return the mean of each column (p,), NaN for a column without known numbers."""
        pairs = zip(self.sums, self.counts, strict=True)
        return np.array([float(total / n) if n else math.nan for total, n in pairs])

    def compute_deviations(self) -> Numbers:
        """Return the standard deviation, over n, of each column (p,); NaN as for the means."""
        return np.array(
            [
                _round_root(squares / n - (total / n) ** 2) if n else math.nan
                for n, total, squares in zip(self.counts, self.sums, self.squares, strict=True)
            ]
        )


def add_moments(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all rows, of one part of them or more."""
    return reduce(operator.add, parts)


def _add_by_exponent(
    values: Numbers, columns: NDArray[np.int64]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield sums of m finite numbers and of their squares, for each column and exponent e.

    The sums are of whole mantissas: a number is its mantissa times 2^(e - 53).
    """
    if not len(values):
        return
    mantissa, exponent = np.frexp(values)
    group = columns * EXPONENTS + exponent + EXPONENTS // 2
    order = np.argsort(group, kind="stable")
    group, whole = group[order], np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)[order]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    high, middle, low = whole >> 2 * PART_BITS, whole >> PART_BITS & PART_MASK, whole & PART_MASK
    # The coefficients of 1, 2^18, 2^36, .. in a mantissa, and in its square.
    of_sum = (low, middle, high)
    of_square = (
        low * low,
        2 * low * middle,
        2 * low * high + middle * middle,
        2 * middle * high,
        high * high,
    )
    sums, squares = (
        np.stack([np.add.reduceat(part, starts) for part in parts], axis=1).tolist()
        for parts in (of_sum, of_square)
    )
    for key, one, other in zip(group[starts].tolist(), sums, squares, strict=True):
        column, shifted = divmod(key, EXPONENTS)
        yield column, shifted - EXPONENTS // 2, _join_parts(one), _join_parts(other)


def _join_parts(parts: list[int]) -> int:
    return sum(part << i * PART_BITS for i, part in enumerate(parts))


def _round_root(value: Fraction) -> float:
    """Return the square root of a number >= 0, rounded once."""
    if value <= 0:
        return 0.0
    size = value.numerator.bit_length() - value.denominator.bit_length()
    shift = max(0, ROOT_BITS - size // 2)
    scaled, rest = divmod(value.numerator << 2 * shift, value.denominator)
    root = math.isqrt(scaled)
    # A last bit keeps what was cut off, so that only the conversion to float rounds.
    is_exact = rest == 0 and root * root == scaled
    return float(Fraction(2 * root + (not is_exact), 2 << shift))
