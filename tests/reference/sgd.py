"""Softmax regression trained by SGD, from the formulas alone: NumPy, float64, no autograd.

Shares no code with ``client_app``. Shapes: n samples, d features, c classes; weight (c, d),
bias (c,), inputs (n, d), labels (n,).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Softmax:
    """A model: logits x @ weight.T + bias."""

    weight: Floats
    bias: Floats

    def log_probabilities(self, x: Floats) -> Floats:
        """Return log softmax of the logits (n, c), safe against overflow."""
        logits = x @ self.weight.T + self.bias
        shifted = logits - logits.max(axis=1, keepdims=True)
        result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return result


def read(arrays: list[NDArray[Any]]) -> Softmax:
    """Return the model of a weight and a bias of any floating type."""
    weight, bias = arrays
    return Softmax(weight.astype(np.float64), bias.astype(np.float64))


def measure(model: Softmax, x: NDArray[Any], y: Integers) -> tuple[float, float]:
    """Return mean cross entropy and fraction of correct predictions, one sample at a time."""
    table = model.log_probabilities(x.astype(np.float64))
    losses = [-row[label] for row, label in zip(table, y, strict=True)]
    correct = [int(np.argmax(row)) == label for row, label in zip(table, y, strict=True)]
    return float(sum(losses) / len(y)), sum(correct) / len(y)


def compute_gradient(model: Softmax, x: Floats, y: Integers) -> Softmax:
    """Return the gradient of the batch's mean cross entropy: (softmax - onehot)^T x / n."""
    error = np.exp(model.log_probabilities(x))
    error[np.arange(len(y)), y] -= 1.0
    return Softmax(error.T @ x / len(y), error.sum(axis=0) / len(y))


def train(
    model: Softmax,
    x: NDArray[Any],
    y: Integers,
    rng: np.random.Generator,
    *,
    rates: Iterable[float],
    batch_size: int,
    local_epochs: int,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    mu: float = 0.0,
) -> Softmax:
    """Return the model after E epochs over freshly permuted batches of B, the last one smaller.

    v <- momentum v + (gradient + weight_decay w + mu (w - w_0)), w <- w - rate v, with v = 0 and
    w_0 = w at the start and one rate for each step; the bias is treated like the weight.
    """
    x = x.astype(np.float64)
    weight, bias = model.weight.copy(), model.bias.copy()
    v_weight, v_bias = np.zeros_like(weight), np.zeros_like(bias)
    rate_of_step = iter(rates)
    for _ in range(local_epochs):
        order = rng.permutation(len(y))
        for start in range(0, len(y), batch_size):
            rows = order[start : start + batch_size]
            slope = compute_gradient(Softmax(weight, bias), x[rows], y[rows])
            pull_weight, pull_bias = mu * (weight - model.weight), mu * (bias - model.bias)
            v_weight = momentum * v_weight + slope.weight + weight_decay * weight + pull_weight
            v_bias = momentum * v_bias + slope.bias + weight_decay * bias + pull_bias
            rate = next(rate_of_step)
            weight, bias = weight - rate * v_weight, bias - rate * v_bias
    return Softmax(weight, bias)
