"""Evaluate a model on the rows of several clients in one pass.

Shapes: n samples of all clients, inputs (n, *input_shape), labels (n,), or (n, l) of sequences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, overload

import numpy as np
import torch
from fedquorum.metrics.calibration import UNITS, encode_bins
from fedquorum.rules.equality import nan_equals_nan
from fedquorum.rules.metrics import AVERAGE_PRECISION
from numpy.typing import NDArray
from torch import nn

from client_app.losses import CrossEntropy, Task
from client_app.metrics import compute_metric

MAX_PREDICTIONS = 4096  # in one pass
MAX_INPUT_NUMBERS = 2**24  # numbers of the inputs in one pass
MAX_PROBABILITIES = 2**22  # computed at once, which bounds the memory of many classes
BASIC_METRICS = frozenset({"accuracy", "loss"})


@nan_equals_nan
@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """Mean loss and fraction of correct predictions over ``num_examples`` samples.

    The accuracy is NaN where predictions are neither correct nor wrong. ``metric`` is the
    additional metric, NaN if none was requested or it is not defined. ``r2`` is computed beside it
    where numbers are predicted, and ``average_precision`` beside AUROC. ``calibration`` has the
    sums of the bins of confidence (``fedquorum.metrics.calibration``), empty if they were not
    requested or are not defined.
    """

    num_examples: int
    loss: float
    accuracy: float
    metric: float = math.nan
    r2: float = math.nan
    average_precision: float = math.nan
    calibration: bytes = field(default=b"", kw_only=True)


NUMBERS = tuple(item.name for item in fields(ClientMetrics) if item.name != "calibration")
"""The fields of ``ClientMetrics`` that are numbers."""


@dataclass(frozen=True, eq=False)
class MetricsByClient(Sequence[ClientMetrics]):
    """The metrics of many clients in arrays, (K,) each; ``calibration`` is an array of bytes."""

    num_examples: NDArray[np.int64]
    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    metric: NDArray[np.float64]
    r2: NDArray[np.float64]
    average_precision: NDArray[np.float64]
    calibration: NDArray[np.object_] = field(kw_only=True)

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays of numbers, in the order of ``NUMBERS``."""
        return tuple(getattr(self, name) for name in NUMBERS)

    @overload
    def __getitem__(self, index: int) -> ClientMetrics: ...

    @overload
    def __getitem__(self, index: slice | NDArray[np.int64]) -> "MetricsByClient": ...

    def __getitem__(
        self, index: int | slice | NDArray[np.int64]
    ) -> "ClientMetrics | MetricsByClient":
        if isinstance(index, slice | np.ndarray):
            return MetricsByClient(
                *(column[index] for column in self.columns), calibration=self.calibration[index]
            )
        numbers = [column[index].item() for column in self.columns]
        return build_client_metrics(numbers, self.calibration[index])

    def __len__(self) -> int:
        return len(self.num_examples)


def build_client_metrics(values: Sequence[float], calibration: bytes = b"") -> ClientMetrics:
    """Return the metrics with these values, NaN as the one object that tuples compare as equal."""
    count, *others = (v if v == v else math.nan for v in values)  # noqa: PLR0124
    return ClientMetrics(int(count), *others, calibration=calibration)


@torch.no_grad()
def evaluate_clients(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    counts: Sequence[int] | NDArray[np.int64],
    *,
    task: Task | None = None,
    metric_name: str = "accuracy",
    has_calibration: bool = False,
    rows_at_once: int = MAX_PREDICTIONS,
) -> MetricsByClient:
    """Evaluate clients whose rows are concatenated; client i owns the next ``counts[i]`` rows.

    Sums are in float64. As in training, the loss is 0 where all weights are 0; loss and accuracy
    of a client without samples are NaN.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is in evaluation mode afterwards.
    x, y : tensor
        Rows of all clients, one client after the other.
    counts : sequence of int
        n_k of each client.
    task : Task, optional
        By default cross entropy.
    metric_name : str
        The additional metric, see ``client_app.metrics``; ``accuracy`` and ``loss`` add none.
    has_calibration : bool
        Whether to sum the bins of confidence, if classes are predicted.
    rows_at_once : int
        Maximum number of rows in one pass through the model.
    """
    task = task or CrossEntropy()
    model.eval()
    rows = min(rows_at_once, compute_rows_per_pass(x, y))
    passes = [
        compute_batch_stats(
            model(inputs), labels, task, metric_name, has_calibration=has_calibration
        )
        for inputs, labels in zip(x.split(rows), y.split(rows), strict=True)
    ]
    return reduce_by_client(passes, counts, metric_name)


@dataclass(frozen=True)
class BatchStats:
    """The loss terms of the rows of one pass, and its predictions for further metrics.

    Attributes
    ----------
    loss_terms : tensor of float64 (n, 4)
        Loss, weight, correct and count of each row.
    predictions : tuple of tensor, optional
        Logits and labels of all predictions, if the metric needs them.
    confidence : tensor of int64 (m,), optional
        Of all m predictions, see ``_encode_confidence``; None if it was not requested, or numbers
        are predicted.
    """

    loss_terms: torch.Tensor
    predictions: tuple[torch.Tensor, torch.Tensor] | None
    confidence: torch.Tensor | None = None


def compute_batch_stats(
    outputs: torch.Tensor,
    y: torch.Tensor,
    task: Task,
    metric_name: str,
    *,
    has_calibration: bool = False,
) -> BatchStats:
    """Return the loss terms of n outputs, and their predictions if the metric needs them.

    With ``has_calibration`` the confidence of these predictions too, if classes are predicted.
    """
    doubles = outputs.double()
    terms = task.compute_terms(doubles, y)
    columns = (terms.loss, terms.weight, terms.correct.double(), terms.count.double())
    predictions = None if metric_name in BASIC_METRICS else task.select_predictions(outputs, y)
    confidence = None
    if has_calibration and not y.is_floating_point():
        logits, labels = task.select_predictions(doubles, y)
        # A row is one prediction, unless it is a sequence, whose terms are sums over its targets.
        correct = terms.correct if y.ndim == 1 else logits.argmax(dim=1) == labels
        confidence = _encode_confidence(logits, correct)
    return BatchStats(torch.stack(columns, dim=1), predictions, confidence)


def _encode_confidence(logits: torch.Tensor, correct: torch.Tensor) -> torch.Tensor:
    """Return 2 u + 1 for correct predictions and 2 u for others, u the confidence in ``UNITS``.

    It is negative where a probability is not defined. Probabilities are in float64, of logits in
    float64 (m, c): the softmax of a row does not depend on the other rows.
    """
    chunks = logits.split(max(1, MAX_PROBABILITIES // logits.shape[1]))
    confidence = torch.cat([chunk.softmax(dim=1).amax(dim=1) for chunk in chunks])
    units = confidence.mul_(UNITS).round_().nan_to_num_(nan=-1.0).long()
    return units.mul_(2).add_(correct)


def reduce_by_client(
    passes: Sequence[BatchStats], counts: Sequence[int] | NDArray[np.int64], metric_name: str
) -> MetricsByClient:
    """Return each client's metrics; client i owns the next ``counts[i]`` rows of the passes."""
    terms = torch.cat([each.loss_terms for each in passes])
    predictions = [each.predictions for each in passes if each.predictions is not None]
    rows = np.asarray(counts, dtype=np.int64)
    lengths = torch.from_numpy(rows).to(terms.device)
    sums = torch.segment_reduce(terms, "sum", lengths=lengths)
    confidence = [each.confidence for each in passes if each.confidence is not None]
    values = r2 = average_precision = np.full(len(rows), math.nan)
    if predictions:
        logits, targets = (torch.cat(tensors) for tensors in zip(*predictions, strict=True))
        # A sequence has several predictions, or none; the last column counts them. A predicted
        # number is neither correct nor wrong, and each row has one.
        is_regression = targets.is_floating_point()
        num_predictions = (lengths if is_regression else sums[:, -1].long()).tolist()
        values = np.array(compute_metric(metric_name, logits, targets, num_predictions))
        if is_regression:
            r2 = np.array(compute_metric("r2", logits, targets, num_predictions))
        if metric_name == "auroc":
            average_precision = np.array(
                compute_metric(AVERAGE_PRECISION, logits, targets, num_predictions)
            )
    totals = sums.cpu().numpy()
    metrics = _build_metrics(rows, totals, values, r2, average_precision)
    if not confidence:
        return metrics
    calibration = _sum_bins(torch.cat(confidence).cpu().numpy(), totals[:, -1].astype(np.int64))
    return replace(metrics, calibration=calibration)


def _sum_bins(
    confidence: NDArray[np.int64], num_predictions: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Return each client's sums of bins (K,); empty if one of its predictions has no probability.

    Parameters
    ----------
    confidence : array of int64 (m,)
        See ``_encode_confidence``; client i owns the next ``num_predictions[i]``.
    num_predictions : array of int64 (K,)
    """
    client = np.repeat(np.arange(len(num_predictions)), num_predictions)
    is_undefined = confidence < 0
    if is_undefined.any():
        is_left = ~np.isin(client, client[is_undefined])
        client, confidence = client[is_left], confidence[is_left]
    bins = encode_bins(client, confidence >> 1, confidence & 1, len(num_predictions))
    return np.array(bins, dtype=np.object_)


def compute_rows_per_pass(x: torch.Tensor, y: torch.Tensor) -> int:
    """Return the maximum number of rows of these shapes in one pass through a model."""
    by_labels = MAX_PREDICTIONS // math.prod(y.shape[1:])
    return max(1, min(by_labels, MAX_INPUT_NUMBERS // math.prod(x.shape[1:])))


def _build_metrics(
    rows: NDArray[np.int64],
    sums: NDArray[np.float64],
    *metrics: NDArray[np.float64],
) -> MetricsByClient:
    """Return clients' metrics from their sums (K, 4); NaN for a client without rows."""
    loss, weight, correct, count = sums.T
    undefined = np.full(len(rows), math.nan)
    mean = np.divide(loss, weight, out=np.zeros(len(rows)), where=weight != 0)
    accuracy = np.divide(correct, count, out=undefined.copy(), where=count != 0)
    has_rows = rows > 0
    return MetricsByClient(
        rows,
        np.where(has_rows, mean, undefined),
        np.where(has_rows, accuracy, undefined),
        *(np.where(has_rows, values, undefined) for values in metrics),
        calibration=np.full(len(rows), b"", dtype=np.object_),
    )
