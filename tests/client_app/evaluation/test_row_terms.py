"""Metrics as means over rows, which may count with weights."""

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data.base import IGNORE_INDEX, PooledSplit, RowIndex
from client_app.data.examples import Examples
from client_app.evaluation.passes import evaluate_clients
from client_app.evaluation.row_terms import MEAN_METRICS, evaluate_rows, weigh_rows
from client_app.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    SequenceCrossEntropy,
    SquaredError,
    Task,
)

COUNTS = (3, 300, 7)
ROWS, CLASSES, LENGTH = sum(COUNTS), 8, 5

TASKS: dict[str, tuple[Task, int]] = {
    "classes": (CrossEntropy(), CLASSES),
    "weighted classes": (CrossEntropy(torch.linspace(0.5, 2.0, CLASSES).double()), CLASSES),
    "yes or no": (BinaryCrossEntropy(), 1),
    "numbers": (SquaredError(3.0), 1),
    "sequences": (SequenceCrossEntropy(), CLASSES),
}

CASES = [
    *(
        (kind, metric)
        for kind in ("classes", "sequences")
        for metric in ("accuracy", "loss", "top5")
    ),
    ("weighted classes", "loss"),
    ("yes or no", "accuracy"),
    ("yes or no", "loss"),
    *(("numbers", metric) for metric in ("loss", "mae", "rmse")),
]


class OutputsAsInputs(nn.Module):
    """Returns its inputs, the outputs to evaluate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x``."""
        return x


def make_rows(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and targets of all rows."""
    rng = np.random.default_rng(3)
    width = TASKS[kind][1]
    shape = (ROWS, LENGTH) if kind == "sequences" else (ROWS,)
    outputs = torch.from_numpy(rng.normal(size=(*shape, width)).astype(np.float32))
    if kind == "numbers":
        return outputs, torch.from_numpy(rng.normal(size=ROWS).astype(np.float32))
    targets = rng.integers(2 if kind == "yes or no" else CLASSES, size=shape)
    if kind == "sequences":
        targets[:, 2:][rng.random((ROWS, LENGTH - 2)) < 0.4] = IGNORE_INDEX
    return outputs, torch.from_numpy(targets)


def compute_metric_of(
    kind: str, metric: str, x: torch.Tensor, y: torch.Tensor, counts: list[int]
) -> list[float]:
    """Return each client's metric as every evaluation computes it."""
    found = evaluate_clients(
        OutputsAsInputs(), x, y, counts, task=TASKS[kind][0], metric_name=metric
    )
    name = metric if metric in ("accuracy", "loss") else "metric"
    return [getattr(one, name) for one in found]


@pytest.mark.parametrize(("kind", "metric"), CASES)
def test_a_row_of_weight_2_counts_as_two_rows(kind: str, metric: str) -> None:
    """Whole weights repeat or omit rows; the weight 1 leaves the metric as it is."""
    x, y = make_rows(kind)
    clients, source = np.arange(len(COUNTS)), np.random.default_rng(5).permutation(ROWS)
    pool = PooledSplit(x.numpy(), y.numpy(), RowIndex(clients, np.array(COUNTS), source))
    examples = Examples(pool, torch.device("cpu"))
    terms = evaluate_rows(OutputsAsInputs(), examples, TASKS[kind][0], metric)
    assert terms.shape == (ROWS, 2)
    weights = np.random.default_rng(4).integers(4, size=ROWS)
    ends = np.cumsum(COUNTS)
    for client, (rows, end) in enumerate(zip(np.split(source, ends[:-1]), ends, strict=True)):
        of_client = terms[end - COUNTS[client] : end]
        both = np.stack([np.ones(len(rows)), weights[rows]])
        repeated = torch.from_numpy(np.concatenate([rows, np.repeat(rows, weights[rows])]))
        counts = [len(rows), int(weights[rows].sum())]
        expected = compute_metric_of(kind, metric, x[repeated], y[repeated], counts)
        assert weigh_rows(of_client, both, metric) == pytest.approx(expected, rel=1e-6)


def test_rows_without_any_weight_count_once() -> None:
    """Otherwise a set of weights had no metric for a client of few rows."""
    terms = np.array([[1.0, 1.0], [0.0, 1.0]])
    weights = np.array([[0.0, 0.0], [3.0, 1.0]])
    assert weigh_rows(terms, weights, "accuracy").tolist() == [0.5, 0.75]
    assert np.isnan(weigh_rows(np.zeros((2, 2)), weights, "accuracy")).all()


def test_every_mean_over_rows_is_tested() -> None:
    """The cases above have each of them."""
    assert {metric for _, metric in CASES} == MEAN_METRICS
