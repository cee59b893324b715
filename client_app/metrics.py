"""Compute the metrics of the clients' test splits besides loss and accuracy.

They equal those of torchmetrics; ``fedquorum.rules.metrics`` has their ranges. A metric is NaN
where it is undefined: for a client without predictions, and for a client whose model diverged. A
mean over clients leaves such clients out.

All clients are evaluated in one pass, but a client's value has the same bits whichever other
clients are in the pass. For classes the pass only adds whole numbers, which is exact; for numbers
it adds each client's rows separately, in their order. Divisions are per client.

Shapes: m predictions of K clients, c classes; c = 1 if numbers are predicted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from fedquorum.errors import SettingsError
from fedquorum.rules.metrics import AVERAGE_PRECISION, METRICS
from numpy.typing import NDArray

BINARY_CLASSES = 2
TOP_K = 5
MAX_SORTED_SCORES = 2**22  # sorted at once, which bounds the memory of many classes


@dataclass(frozen=True)
class _Predictions:
    """The predictions of K clients, one client after the other."""

    logits: torch.Tensor  # (m, c), finite; the predicted numbers in a regression
    labels: torch.Tensor  # (m,)
    client: torch.Tensor  # (m,), from 0 to K - 1, ascending
    counts: torch.Tensor  # (K,)

    @property
    def first_rows(self) -> torch.Tensor:
        """The row of each client's first prediction (K,)."""
        return self.counts.cumsum(0) - self.counts

    def count_by_class(self, classes: torch.Tensor) -> torch.Tensor:
        """Return the number of each client's predictions in each class (K, c)."""
        k, c = len(self.counts), self.logits.shape[1]
        return torch.bincount(self.client * c + classes, minlength=k * c).reshape(k, c)


def compute_metric(
    name: str, outputs: torch.Tensor, labels: torch.Tensor, counts: Sequence[int]
) -> list[float]:
    """Return the metric ``evaluation.metric`` of each client.

    ``auroc``  area under the ROC curve of the probabilities, which are ranked by their log odds
               in float64: with two classes that of class 1; with more, the mean of one against
               the rest over the classes among the client's labels; undefined if all labels are
               of one class
    ``average_precision``
               sum over the distinct scores s, descending, of the precision among the predictions
               with at least s times the gain in recall there, without interpolation, of the
               same rankings and classes as AUROC; undefined where AUROC is
    ``f1``     mean of 2 P R / (P + R) over the classes that are predicted or among the labels,
               with P and R the class's precision and recall
    ``top5``   fraction of the labels that are among the five highest logits

    With n predictions z_i of one client's numbers y_i, in float64:

    ``rmse``   sqrt(sum_i (y_i - z_i)^2 / n), in the target's unit
    ``mae``    sum_i |y_i - z_i| / n, in the target's unit
    ``r2``     1 - sum_i (y_i - z_i)^2 / sum_i (y_i - mean(y))^2, at most 1; undefined if all
               y_i are equal

    Parameters
    ----------
    name : str
    outputs : tensor (m, c)
        Logits, or predicted numbers, of all clients, one client after the other.
    labels : tensor (m,)
    counts : sequence of int (K,)
        Number of predictions of each client.
    """
    lengths = torch.tensor(counts, dtype=torch.int64, device=labels.device)
    # PyTorch's repeat_interleave would wake all threads, and wait for them, for a few numbers.
    client = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(labels.device)
    diverged = torch.zeros(len(counts), dtype=torch.bool, device=labels.device)
    finite = outputs.isfinite().all(dim=1)
    diverged[client[~finite]] = True
    logits = torch.where(finite.unsqueeze(1), outputs, torch.zeros_like(outputs))
    values = _METRIC_FUNCTIONS[name](_Predictions(logits.contiguous(), labels, client, lengths))
    values[((lengths == 0) | diverged).cpu().numpy()] = math.nan
    return [float(value) for value in values]


def _compute_auroc(predictions: _Predictions) -> NDArray[np.float64]:
    """Return each client's mean area under the ROC curve over the classes (K,)."""
    return _average_over_classes(_compute_areas, predictions)


def _compute_average_precision(predictions: _Predictions) -> NDArray[np.float64]:
    """Return each client's mean average precision over the classes (K,)."""
    return _average_over_classes(_compute_precisions, predictions)


_RankingMetric = Callable[
    [torch.Tensor, torch.Tensor, _Predictions, torch.Tensor], NDArray[np.float64]
]


def _average_over_classes(
    compute_by_class: _RankingMetric, predictions: _Predictions
) -> NDArray[np.float64]:
    """Return each client's mean over the classes for which a metric of rankings is defined (K,)."""
    members = predictions.count_by_class(predictions.labels)
    m, c = predictions.logits.shape
    classes = torch.arange(1 if c == BINARY_CLASSES else 0, c, device=predictions.logits.device)
    chunk_size = max(1, MAX_SORTED_SCORES // max(1, m))
    chunks = zip(
        _compute_log_odds(predictions.logits).split(chunk_size),
        classes.split(chunk_size),
        strict=True,
    )
    return _compute_row_means(
        np.concatenate([compute_by_class(*chunk, predictions, members) for chunk in chunks], axis=1)
    )


def _compute_log_odds(logits: torch.Tensor) -> torch.Tensor:
    """Return the log odds of each class (c, m) from logits (m, c); for c = 2 of class 1 (1, m).

    log p_k / (1 - p_k) = z_k - log sum_{j != k} exp(z_j) ranks predictions as the probability p_k
    does, but p_k rounds to 1 for many predictions of a confident model.
    """
    m, c = logits.shape
    if c == BINARY_CLASSES:
        z = logits.double()
        return (z[:, 1] - z[:, 0]).unsqueeze(0)
    if c < BINARY_CLASSES or m == 0:
        return torch.zeros((c, m), dtype=torch.float64, device=logits.device)
    chunks = logits.split(max(1, MAX_SORTED_SCORES // c))
    return torch.cat([_compute_odds_against_rest(chunk.double()) for chunk in chunks], dim=1)


def _compute_odds_against_rest(logits: torch.Tensor) -> torch.Tensor:
    """Return z_k - log sum_{j != k} exp(z_j) (c, n) of logits (n, c), c > 2.

    Predictions have the same bits if their logits differ by a constant, or agree in class k and
    are a permutation in the other classes: sums go through the logits in descending order, one
    after the other, and equal logits share the result of the first.
    """
    ordered, order = logits.sort(dim=1, descending=True)
    z = ordered.t().contiguous()  # (c, n)
    gap = z - z[0]
    term = gap.exp()
    # The sums of the terms after each index, and, without the largest, relative to the second.
    below, rest = torch.zeros_like(z), torch.zeros_like(z[0])
    relative = (z[1:] - z[1]).exp()
    for i in range(len(z) - 1, 0, -1):
        below[i - 1] = below[i] + term[i]
        rest += relative[i - 1]
    odds, above = torch.empty_like(z), torch.zeros_like(z[0])
    for i in range(1, len(z)):
        above = above + term[i - 1]
        odds[i] = above + below[i]
    odds = gap - odds.log_()
    odds[0] = z[0] - z[1] - rest.log()
    for i in range(1, len(z)):
        odds[i] = torch.where(z[i] == z[i - 1], odds[i - 1], odds[i])
    return torch.empty_like(odds).scatter_(0, order.t(), odds)


def _compute_areas(
    scores: torch.Tensor, classes: torch.Tensor, predictions: _Predictions, members: torch.Tensor
) -> NDArray[np.float64]:
    """Return the areas of j classes from scores (j, m), NaN where undefined (K, j).

    The area is (S - P (P + 1) / 2) / (P N), with S the sum of the ranks of the class's P members
    among all P + N predictions of the client; tied predictions share their mean rank, so twice S
    is a whole number.
    """
    rank = _compute_doubled_ranks(scores, predictions)
    member = predictions.labels == classes.unsqueeze(1)  # (j, m)
    sums = torch.zeros(len(classes), len(members), dtype=torch.int64, device=scores.device)
    sums = sums.index_add_(1, predictions.client, rank * member).t()
    positive = members[:, classes]
    negative = predictions.counts.unsqueeze(1) - positive
    above = (sums - positive * (positive + 1)).cpu().numpy()  # twice the correctly ordered pairs
    pairs = (2 * positive * negative).cpu().numpy()
    return _compute_ratio(above, pairs)


def _compute_precisions(
    scores: torch.Tensor, classes: torch.Tensor, predictions: _Predictions, members: torch.Tensor
) -> NDArray[np.float64]:
    """Return the average precisions of j classes from scores (j, m), NaN where undefined (K, j).

    With P members of the class, it is the mean over them of the precision among the predictions of
    the client that score at least as high.
    """
    order, first, _ = _sort_within_clients(scores, predictions)
    member = (predictions.labels == classes.unsqueeze(1)).gather(1, order)
    client, counts = predictions.client, predictions.counts
    # The number of members before each position, from which the number from there on follows.
    before = torch.cat([torch.zeros_like(first[:, :1]), member.long().cumsum(1)], dim=1)
    end = (predictions.first_rows + counts)[client].expand_as(first)
    hits = before.gather(1, end) - before.gather(1, first)
    precision = torch.where(member, hits.double() / (end - first), 0.0)
    sums = torch.segment_reduce(precision.t().contiguous(), "sum", lengths=counts).cpu().numpy()
    positive = members[:, classes].cpu().numpy()
    is_defined = (positive > 0) & (positive < counts.cpu().numpy()[:, None])
    found = np.full(sums.shape, math.nan)
    np.divide(sums, positive, out=found, where=is_defined)
    return found


def _compute_doubled_ranks(scores: torch.Tensor, predictions: _Predictions) -> torch.Tensor:
    """Return twice the rank (from 1) of each score (j, m) among its client's scores in the row."""
    order, first, last = _sort_within_clients(scores, predictions)
    within = first + last + 2 - 2 * predictions.first_rows[predictions.client]
    return torch.empty_like(within).scatter_(1, order, within)


def _sort_within_clients(
    scores: torch.Tensor, predictions: _Predictions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the ascending order of scores (j, m) within each client, and the ends of their ties.

    By position in that order: the index of the score, and the first and the last position of the
    scores that equal it, (j, m) each.
    """
    # Sort by client, and by score within a client: a stable sort retains the first order.
    by_score = scores.argsort(dim=1, stable=True)
    order = by_score.gather(1, predictions.client[by_score].argsort(dim=1, stable=True))
    value, client = scores.gather(1, order), predictions.client
    position = torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    # No tie with the previous score.
    is_new = (value[:, 1:] != value[:, :-1]) | (client[1:] != client[:-1])
    boundary = torch.ones_like(value[:, :1], dtype=torch.bool)
    # The first and the last position of each score's tie.
    first = torch.where(torch.cat([boundary, is_new], dim=1), position, 0).cummax(dim=1).values
    last = torch.where(torch.cat([is_new, boundary], dim=1), position, scores.shape[1])
    return order, first, last.flip(1).cummin(dim=1).values.flip(1)


def _compute_f1(predictions: _Predictions) -> NDArray[np.float64]:
    """Return each client's mean of 2 TP / (2 TP + FP + FN) over classes (K,)."""
    labels, predicted = predictions.labels, predictions.logits.argmax(dim=1)
    hits = torch.where(predicted == labels, 1, 0)
    true_positives = torch.zeros_like(predictions.count_by_class(labels))
    true_positives.index_put_((predictions.client, labels), hits, accumulate=True)
    sizes = (
        (predictions.count_by_class(labels) + predictions.count_by_class(predicted)).cpu().numpy()
    )
    return _compute_row_means(_compute_ratio(2 * true_positives.cpu().numpy(), sizes))


def _compute_top5(predictions: _Predictions) -> NDArray[np.float64]:
    """Return each client's fraction of labels among the highest logits (K,)."""
    highest = predictions.logits.topk(min(TOP_K, predictions.logits.shape[1]), dim=1).indices
    hits = (highest == predictions.labels.unsqueeze(1)).any(dim=1).long()
    num_hits = torch.zeros_like(predictions.counts).index_add_(0, predictions.client, hits)
    return _compute_ratio(num_hits.cpu().numpy(), predictions.counts.cpu().numpy())


def _compute_rmse(predictions: _Predictions) -> NDArray[np.float64]:
    """Return the root of each client's mean squared error (K,)."""
    return np.sqrt(_compute_client_means(predictions, _compute_errors(predictions) ** 2))


def _compute_mae(predictions: _Predictions) -> NDArray[np.float64]:
    """Return each client's mean absolute error (K,)."""
    return _compute_client_means(predictions, _compute_errors(predictions).abs())


def _compute_r2(predictions: _Predictions) -> NDArray[np.float64]:
    """Return the explained fraction of each client's variance (K,)."""
    labels = predictions.labels.double()
    mean = torch.from_numpy(_compute_client_means(predictions, labels)).to(labels.device)
    # Compare the extremes: the mean of equal numbers like 0.1 is rounded, so the variance is not 0.
    low, high = (
        torch.segment_reduce(labels, end, lengths=predictions.counts, unsafe=True)
        for end in ("min", "max")
    )
    error = _compute_client_means(predictions, _compute_errors(predictions) ** 2)
    variance = _compute_client_means(predictions, (labels - mean[predictions.client]) ** 2)
    defined = (low < high).cpu().numpy() & (variance > 0)
    unexplained = np.full(len(variance), math.nan)
    np.divide(error, variance, out=unexplained, where=defined)
    return 1.0 - unexplained


def _compute_errors(predictions: _Predictions) -> torch.Tensor:
    """Return y - z of each prediction (m,), in float64."""
    return predictions.labels.double() - predictions.logits.squeeze(1).double()


def _compute_client_means(predictions: _Predictions, values: torch.Tensor) -> NDArray[np.float64]:
    """Return the mean of each client's values, (m,) to (K,); NaN without values."""
    lengths = predictions.counts
    sums = torch.segment_reduce(values, "sum", lengths=lengths).cpu().numpy()
    counts = lengths.cpu().numpy()
    means = np.full(len(sums), math.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _compute_ratio(
    numerator: NDArray[np.int64], denominator: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return numerator / denominator, NaN where the denominator is 0."""
    ratio = np.full(denominator.shape, math.nan)
    np.divide(numerator, denominator, out=ratio, where=denominator > 0)
    return ratio


def _compute_row_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean (K,) of each row's numbers (K, c) without NaN; NaN if all are NaN.

    The sum goes from left to right, unlike ``sum``, whose order depends on the shape.
    """
    is_defined = ~np.isnan(values)
    count = is_defined.sum(axis=1)
    mean = np.full(len(values), math.nan)
    total = np.cumsum(np.where(is_defined, values, 0.0), axis=1)[:, -1]
    np.divide(total, count, out=mean, where=count > 0)
    return mean


_METRIC_FUNCTIONS: dict[str, Callable[[_Predictions], NDArray[np.float64]]] = {
    "auroc": _compute_auroc,
    AVERAGE_PRECISION: _compute_average_precision,
    "f1": _compute_f1,
    "top5": _compute_top5,
    "rmse": _compute_rmse,
    "mae": _compute_mae,
    "r2": _compute_r2,
}


def check_metric_for_target(name: str, num_classes: int, *, regression: bool) -> None:
    """Check that the metric fits the target.

    Raises
    ------
    SettingsError
        If the metric is undefined for the target, or always 1.
    """
    allowed = [key for key, metric in METRICS.items() if metric.is_regression == regression]
    if name not in {*allowed, "loss"}:
        kind = "numbers" if regression else "classes"
        raise SettingsError(
            f"evaluation.metric must be one of {', '.join(dict.fromkeys((*allowed, 'loss')))} "
            f"where targets are {kind}, got {name}"
        )
    if name == "top5" and num_classes <= TOP_K:
        raise SettingsError(
            f"evaluation.metric=top5 needs more than {TOP_K} classes, got {num_classes}: every "
            "prediction would be right"
        )
