"""Build the sums of bins of confidence, as clients send them."""

import numpy as np
from fedquorum.metrics.calibration import BIN_SUMS, NUM_BINS, UNITS_PER_BIN
from numpy.typing import NDArray


def make_bins(*bins: tuple[int, int, int, int]) -> bytes:
    """Return sums with these bins: index, predictions, correct ones, confidence in units."""
    sums = np.zeros(NUM_BINS, dtype=BIN_SUMS)
    for index, *values in bins:
        sums[index] = tuple(values)
    return sums.tobytes()


def make_full_bin(index: int, count: int, correct: int) -> bytes:
    """Return sums with one bin, whose predictions all have its largest confidence."""
    return make_bins((index, count, correct, count * (index + 1) * UNITS_PER_BIN))


def copy_bins(bins: bytes) -> tuple[NDArray[np.void], int]:
    """Return a copy of the sums, and the index of the first bin with a prediction."""
    sums = np.frombuffer(bins, BIN_SUMS).copy()
    return sums, int(np.flatnonzero(sums["count"])[0])
