"""Compute the expected calibration error of classifiers from sums over bins of confidence.

The confidence of a prediction is its largest probability. Bin b of B = 15 holds the n_b predictions
whose confidence is in (b / B, (b + 1) / B], b from 0, and with n = sum_b n_b

    ECE = sum_b |correct_b - confidence_b| / n,

where ``correct_b`` counts the correct predictions in the bin and ``confidence_b`` is the sum of
their confidence (Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, eq. 3).

A client sends the sums of its bins, in whole numbers: a confidence is rounded to multiples of
1 / (B 2^16), some 1e-6, of which every edge of a bin is one. So the sums over clients are exact, in
any order, and the bin of a prediction does not depend on the last bits of its probability.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..rules.types import FloatArray

ECE = "ece"
"""The name of the expected calibration error in records."""

NUM_BINS = 15
UNITS_PER_BIN = 2**16
UNITS = NUM_BINS * UNITS_PER_BIN
"""The confidence 1, in units."""

BIN_SUMS = np.dtype([("bin", "u1"), ("count", "<u4"), ("correct", "<u4"), ("confidence", "<u8")])
"""The sums of one bin, the confidence in units. A client sends its bins that are not empty."""

MAX_BYTES = NUM_BINS * BIN_SUMS.itemsize

INVALID_BINS = (
    f"must be sums of up to {NUM_BINS} bins, ascending, with 1 <= count, correct <= count and a "
    "confidence inside the bin"
)
"""What sums of bins must be, for errors."""


@dataclass(frozen=True)
class Calibration:
    """The sums of all bins over clients.

    Parameters
    ----------
    count, correct : array of int64, shape (15,)
    confidence : array of int64, shape (15,)
        In units of 1 / ``UNITS``.
    """

    count: NDArray[np.int64]
    correct: NDArray[np.int64]
    confidence: NDArray[np.int64]

    @property
    def ece(self) -> float:
        """The expected calibration error, from 0 to 1; there must be a prediction."""
        gaps = np.abs(self.correct * UNITS - self.confidence)
        return int(gaps.sum()) / (int(self.count.sum()) * UNITS)

    @property
    def mean_confidence(self) -> FloatArray:
        """The mean confidence in each bin (15,); NaN in an empty one."""
        return _divide(self.confidence, self.count * UNITS)

    @property
    def accuracy(self) -> FloatArray:
        """The fraction of correct predictions in each bin (15,); NaN in an empty one."""
        return _divide(self.correct, self.count)


def _divide(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> FloatArray:
    ratio = np.full(NUM_BINS, np.nan)
    np.divide(numerator, denominator, out=ratio, where=denominator > 0)
    return ratio


def encode_bins(
    client: NDArray[np.int64],
    confidence: NDArray[np.int64],
    correct: NDArray[np.int64],
    num_clients: int,
) -> list[bytes]:
    """Return each client's sums, ascending by bin; empty for a client without a prediction.

    Parameters
    ----------
    client : array of int64 (m,)
        The index of the client of each of m predictions.
    confidence : array of int64 (m,)
        Multiples of 1 / ``UNITS``.
    correct : array of int64 (m,)
        1 for a correct prediction, otherwise 0.
    num_clients : int
        K.
    """
    cell = client * NUM_BINS + (np.maximum(confidence - 1, 0) // UNITS_PER_BIN)
    cells = num_clients * NUM_BINS
    count = np.bincount(cell, minlength=cells)
    filled = np.flatnonzero(count)
    sums = np.empty(len(filled), BIN_SUMS)
    sums["bin"] = filled % NUM_BINS
    sums["count"] = count[filled]
    # Sums of whole numbers below 2^53 are exact in float64.
    sums["correct"] = np.bincount(cell, correct, cells)[filled]
    sums["confidence"] = np.bincount(cell, confidence, cells)[filled]
    content = sums.tobytes()
    ends = np.searchsorted(filled, NUM_BINS * np.arange(num_clients + 1)) * BIN_SUMS.itemsize
    bounds: list[int] = ends.tolist()
    return [content[start:end] for start, end in pairwise(bounds)]


def are_valid_bins(given: Sequence[bytes]) -> bool:
    """Say whether these are sums that clients can have."""
    if any(len(one) > MAX_BYTES or len(one) % BIN_SUMS.itemsize for one in given):
        return False
    sums = _decode_bins(given)
    number, count = sums["bin"].astype(np.int64), sums["count"].astype(np.int64)
    confidence, size = sums["confidence"], count * UNITS_PER_BIN
    is_first = np.zeros(len(sums), dtype=np.bool_)
    lengths = np.array([len(one) for one in given if one], dtype=np.int64) // BIN_SUMS.itemsize
    is_first[np.cumsum(lengths) - lengths] = True
    is_ascending = np.diff(number, prepend=-1) > 0
    return bool(
        (is_first | is_ascending).all()
        and (number < NUM_BINS).all()
        and (count > 0).all()
        and (sums["correct"] <= sums["count"]).all()
        and (confidence >= (number * size).astype(np.uint64)).all()
        and (confidence <= ((number + 1) * size).astype(np.uint64)).all()
    )


def add_bins(given: Iterable[bytes]) -> Calibration:
    """Return the sums over clients, each of which has valid bins."""
    sums = _decode_bins(given)
    names = ("count", "correct", "confidence")
    totals = {name: np.zeros(NUM_BINS, dtype=np.int64) for name in names}
    for name, total in totals.items():
        np.add.at(total, sums["bin"], sums[name].astype(np.int64))
    return Calibration(**totals)


def _decode_bins(given: Iterable[bytes]) -> NDArray[np.void]:
    return np.frombuffer(b"".join(given), BIN_SUMS)
