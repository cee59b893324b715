"""Sum clients' numbers as integers, such as losses and counts of rows.

Each client sends its weighted number, its weight and a 1 as multiples of known units, or three
zeros if the number cannot be used. The integers can be masked and added modulo 2^64. The sums give
the weighted mean and the number of clients in it, and nothing of a single client.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..rules.types import FloatArray, IntArray
from .fixed_bins import Integers

UNIT_BITS = 24
"""A number is rounded to multiples of 2^-24, about 6e-8: float32's step below 1."""

MAX_MULTIPLES_BITS = 62
"""The size of a sum is at most 2^62 multiples, so that int64 holds it."""


@dataclass(frozen=True)
class NumberSums:
    """Sums over the clients whose number could be used, one for each of m numbers.

    Parameters
    ----------
    weighted : FloatArray
        sum_k w_k x_k, rounded to float64, (m,).
    weight : FloatArray
        sum_k w_k, (m,).
    count : IntArray
        The number of these clients, (m,). All others were left out, or had no such number.
    """

    weighted: FloatArray
    weight: FloatArray
    count: IntArray

    @property
    def mean(self) -> FloatArray:
        """sum_k w_k x_k / sum_k w_k, NaN without any weight, (m,)."""
        mean = np.full(len(self.weight), np.nan)
        np.divide(self.weighted, self.weight, out=mean, where=self.weight > 0.0)
        return mean


def compute_max_number(terms: int) -> float:
    """Return the largest |w x| and w of a sum over ``terms`` clients: 2^(38 - b) for n <= 2^b."""
    return 2.0 ** (MAX_MULTIPLES_BITS - UNIT_BITS - (max(terms, 1) - 1).bit_length())


def encode_numbers(values: FloatArray, weights: FloatArray, terms: int) -> Integers:
    """Return a client's numbers as integers, to be added to those of the other clients.

    Parameters
    ----------
    values : array
        x, (m,). NaN stands for a number that the client does not have.
    weights : array
        w >= 0 of each number, such as the client's number of rows, (m,).
    terms : int
        n, the largest number of clients in the sum.

    Returns
    -------
    array of uint64
        w x and w in multiples of 2^-24, and 1, (3, m); 0 for a number that is left out because
        w x or w is not finite or larger than ``compute_max_number(terms)``, or w is negative.
    """
    max_number = compute_max_number(terms)
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = values * weights
    is_usable = (np.abs(weighted) <= max_number) & (weights >= 0.0) & (weights <= max_number)
    numbers = np.where(is_usable, [weighted, weights], 0.0)
    multiples: NDArray[np.int64] = np.rint(np.ldexp(numbers, UNIT_BITS)).astype(np.int64)
    return np.vstack([multiples, is_usable.astype(np.int64)]).view(np.uint64)


def decode_numbers(integers: Integers) -> NumberSums:
    """Return the sums of clients' numbers from the sum of ``encode_numbers``, modulo 2^64."""
    multiples = integers.view(np.int64)
    weighted, weight = np.ldexp(multiples[:2].astype(np.float64), -UNIT_BITS)
    return NumberSums(weighted, weight, multiples[2].copy())
