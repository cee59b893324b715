"""The expected calibration error over rows, from its definition (Guo et al., ICML 2017, eq. 3)."""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 15


def compute_ece(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return sum_b |B_b| / n |acc(B_b) - conf(B_b)| of rows (n, c); NaN without a row."""
    if not len(labels):
        return math.nan
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0.0, 1.0, NUM_BINS + 1)
    error = 0.0
    for low, high in pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            gap = correct[inside].mean() - confidence[inside].mean()
            error += inside.mean() * abs(gap)
    return error


def compute_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of rows of logits (n, c)."""
    terms = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = terms / terms.sum(axis=1, keepdims=True)
    return probabilities
