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

import numpy as np
from numpy.typing import NDArray

from ..rules.types import FloatArray

ECE = "ece"
"""The name of the expected calibration error in records."""

NUM_BINS = 15
UNITS_PER_BIN = 2**16
UNITS = NUM_BINS * UNITS_PER_BIN
"""The confidence 1, in units."""

BIN_SUMS = np.dtype([("count", "<u4"), ("correct", "<u4"), ("confidence", "<u8")])
"""The sums of one bin, the confidence in units. A client sends all bins, so that the size of its
message says nothing about its data."""

NUM_BYTES = NUM_BINS * BIN_SUMS.itemsize

INVALID_BINS = (
    f"must be the sums of {NUM_BINS} bins in {NUM_BYTES} bytes, with a prediction, correct <= "
    "count and a confidence inside the bin"
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
    """Return the sums of each client's bins; no bytes for a client without a prediction.

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
    cell = client * NUM_BINS + np.maximum(confidence - 1, 0) // UNITS_PER_BIN
    cells = num_clients * NUM_BINS
    sums = np.empty(cells, BIN_SUMS)
    sums["count"] = np.bincount(cell, minlength=cells)
    # Sums of whole numbers below 2^53 are exact in float64.
    sums["correct"] = np.bincount(cell, correct, cells)
    sums["confidence"] = np.bincount(cell, confidence, cells)
    content = sums.tobytes()
    has_any: list[bool] = (np.bincount(client, minlength=num_clients) > 0).tolist()
    return [
        content[NUM_BYTES * k : NUM_BYTES * (k + 1)] if found else b""
        for k, found in enumerate(has_any)
    ]


def are_valid_bins(given: Sequence[bytes]) -> bool:
    """Say whether these are sums that clients can have, or none."""
    if any(len(one) not in {0, NUM_BYTES} for one in given):
        return False
    sums = _decode_bins(given)
    count, confidence = sums["count"].astype(np.int64), sums["confidence"]
    low = count * UNITS_PER_BIN * np.arange(NUM_BINS)
    high = low + count * UNITS_PER_BIN
    return bool(
        (count.sum(axis=1) > 0).all()
        and (sums["correct"] <= sums["count"]).all()
        and (confidence >= low.astype(np.uint64)).all()
        and (confidence <= high.astype(np.uint64)).all()
    )


def add_bins(given: Iterable[bytes]) -> Calibration:
    """Return the sums over clients, whose bins are valid."""
    sums = _decode_bins(given)
    return Calibration(
        *(sums[name].sum(axis=0, dtype=np.int64) for name in ("count", "correct", "confidence"))
    )


def _decode_bins(given: Iterable[bytes]) -> NDArray[np.void]:
    """Return the sums of the clients that have any, shape (n, 15)."""
    return np.frombuffer(b"".join(given), BIN_SUMS).reshape(-1, NUM_BINS)
