"""Losses, numbers of correct predictions and gradients from the formulas alone, no autograd.

Shares no code with ``client_app``. Shapes: n samples, c classes, sequences of length l.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Sums:
    """Sums over predictions."""

    loss: float = 0.0
    weight: float = 0.0
    correct: int = 0
    count: int = 0


def cross_entropy(
    outputs: NDArray[Any], y: NDArray[Any], weights: Sequence[float] | None = None
) -> Sums:
    """Return the sums of w_y (log sum_j exp z_j - z_y) over logits (n, c)."""
    sums = Sums()
    for logits, label in zip(outputs.tolist(), y.tolist(), strict=True):
        top = max(logits)
        total = top + math.log(sum(math.exp(z - top) for z in logits))
        weight = 1.0 if weights is None else weights[label]
        sums.loss += weight * (total - logits[label])
        sums.weight += weight
        sums.correct += logits.index(top) == label
        sums.count += 1
    return sums


def binary(outputs: NDArray[Any], y: NDArray[Any], weights: Sequence[float] | None = None) -> Sums:
    """Return the sums of -w_y log(probability of y) over logits (n, 1)."""
    sums = Sums()
    for (logit,), label in zip(outputs.tolist(), y.tolist(), strict=True):
        probability = 1 / (1 + math.exp(-logit))
        weight = 1.0 if weights is None else weights[label]
        sums.loss -= weight * math.log(probability if label else 1 - probability)
        sums.weight += weight
        sums.correct += (probability > 1 / 2) == bool(label)
        sums.count += 1
    return sums


def sequence(outputs: NDArray[Any], y: NDArray[Any], no_target: int) -> Sums:
    """Return the sums over the targets of sequences, logits (n, l, c)."""
    has_target = y != no_target
    return cross_entropy(outputs[has_target], y[has_target])


def squared_error(outputs: NDArray[Any], y: NDArray[Any]) -> Sums:
    """Return the sums of (output - y)^2 of outputs (n, 1)."""
    pairs = zip(outputs[:, 0].tolist(), y.tolist(), strict=True)
    return Sums(loss=sum((a - b) ** 2 for a, b in pairs), weight=len(y))


def cross_entropy_slope(
    outputs: NDArray[Any], y: NDArray[Any], weights: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """Return d mean / d outputs (n, c): w_y (softmax - onehot) / sum of w_y."""
    power = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    error = power / power.sum(axis=1, keepdims=True) - np.eye(outputs.shape[1])[y]
    sample_weights = np.ones(len(y)) if weights is None else np.asarray(weights)[y]
    result: NDArray[np.float64] = error * sample_weights[:, None] / sample_weights.sum()
    return result


def binary_slope(
    outputs: NDArray[Any], y: NDArray[Any], weights: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """Return d mean / d outputs (n, 1): w_y (sigmoid - y) / sum of w_y."""
    sample_weights = np.ones(len(y)) if weights is None else np.asarray(weights)[y]
    error = 1 / (1 + np.exp(-outputs[:, 0])) - y
    result: NDArray[np.float64] = (error * sample_weights / sample_weights.sum())[:, None]
    return result


def sequence_slope(outputs: NDArray[Any], y: NDArray[Any], no_target: int) -> NDArray[np.float64]:
    """Return d mean / d outputs (n, l, c), 0 without a target."""
    slope = np.zeros(outputs.shape)
    has_target = y != no_target
    slope[has_target] = cross_entropy_slope(outputs[has_target], y[has_target])
    return slope


def squared_error_slope(outputs: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return d mean / d outputs (n, 1): 2 (output - y) / n."""
    result: NDArray[np.float64] = 2 * (outputs - y[:, None]) / len(y)
    return result
