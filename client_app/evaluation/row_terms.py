"""Split a metric into terms of the rows, so that rows can count with weights.

A metric in ``MEAN_METRICS`` is a mean over rows, or the root of one. With two terms a_i and b_i of
each row i and a weight w_i, it is

    f(sum_i w_i a_i / sum_i w_i b_i),

with f the square root for RMSE and otherwise the identity. b_i is 1, but the row's class weight for
a weighted loss, and the number of targets of a sequence.

Shapes: n rows, B sets of weights.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_app.data.examples import Examples
from client_app.evaluation.passes import compute_rows_per_pass
from client_app.losses import Task
from client_app.metrics import compute_metric

MEAN_METRICS = frozenset({"accuracy", "loss", "top5", "mae", "rmse"})
ROWS_PER_PASS = 256

Terms = NDArray[np.float64]
"""a and b of each row, (n, 2)."""


def compute_row_terms(outputs: torch.Tensor, y: torch.Tensor, task: Task, metric: str) -> Terms:
    """Return the terms of each row.

    Parameters
    ----------
    outputs : tensor (n, ...)
        A model's outputs.
    y : tensor (n,) or (n, length)
        The targets.
    task : Task
    metric : str
        One of ``MEAN_METRICS``.
    """
    terms = task.compute_terms(outputs.double(), y)
    if metric in ("loss", "accuracy"):
        pair = (terms.loss, terms.weight) if metric == "loss" else (terms.correct, terms.count)
        return torch.stack([one.double() for one in pair], dim=1).cpu().numpy()
    predictions, targets = task.select_predictions(outputs, y)
    values = np.array(compute_metric(metric, predictions, targets, [1] * len(targets)))
    if metric == "rmse":
        values = values**2
    is_number = targets.is_floating_point()
    counts = np.ones(len(y), dtype=np.int64) if is_number else terms.count.cpu().numpy()
    rows = np.repeat(np.arange(len(y)), counts)
    return np.stack([np.bincount(rows, values, minlength=len(y)), counts], axis=1)


def weigh_rows(terms: Terms, weights: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Return one client's metric with each set of weights (B, n), (B,); NaN without any targets.

    A set without weight on any target gives each row the weight 1.
    """
    sums = weights @ terms
    total = np.where(sums[:, 1:] == 0, terms.sum(axis=0), sums)
    means = np.full(len(total), np.nan)
    np.divide(total[:, 0], total[:, 1], out=means, where=total[:, 1] != 0)
    return np.sqrt(means) if metric == "rmse" else means


@torch.no_grad()
def evaluate_rows(model: nn.Module, examples: Examples, task: Task, metric: str) -> Terms:
    """Return the terms of all rows of the examples, one client after the other.

    The model is in evaluation mode afterwards.
    """
    model.eval()
    count = int(examples.get_counts(examples.clients).sum())
    found = [np.zeros((0, 2))]
    for rows in torch.arange(count, device=examples.device).split(ROWS_PER_PASS):
        x, y = examples.gather_inputs(rows), examples.gather_labels(rows)
        at_once = compute_rows_per_pass(x, y)
        for inputs, targets in zip(x.split(at_once), y.split(at_once), strict=True):
            found.append(compute_row_terms(model(inputs), targets, task, metric))
    return np.concatenate(found)
