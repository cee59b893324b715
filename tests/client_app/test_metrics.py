"""Metrics of clients' test parts, by hand and against torchmetrics."""

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from fedquorum.rules.metrics import METRICS
from numpy.typing import NDArray

from client_app import metrics
from client_app.data.base import IGNORE_INDEX
from client_app.losses import BinaryCrossEntropy, CrossEntropy, SequenceCrossEntropy
from client_app.metrics import check_metric_for_target, compute_metric
from conf import SettingsError


def compute_one_metric(name: str, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the metric of one client alone."""
    (value,) = compute_metric(name, x, y, [len(y)])
    return value


def compute_by_torchmetrics(name: str, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return what torchmetrics computes of one client's logits, NaN where it is not defined."""
    from torchmetrics.functional.classification import (
        binary_auroc,
        binary_average_precision,
        multiclass_accuracy,
        multiclass_f1_score,
    )

    classes = x.shape[1]
    if len(y) == 0 or not bool(x.isfinite().all()):
        return math.nan
    if name == "f1":
        return float(multiclass_f1_score(x, y, classes, average="macro"))
    if name == "top5":
        return float(multiclass_accuracy(x, y, classes, average="micro", top_k=min(5, classes)))
    present = y.unique()
    if len(present) == 1:
        return math.nan
    chosen = present if classes > 2 else present[-1:]
    compute = binary_auroc if name == "auroc" else binary_average_precision
    areas = [float(compute(rank_rows(x, c), (y == c).long())) for c in chosen.tolist()]
    return float(np.mean(areas))


def rank_rows(x: torch.Tensor, c: int) -> torch.Tensor:
    """Return the ranks in [0, 1) of the rows by their odds of class c; what is tied shares one."""
    rest = torch.cat([x[:, :c], x[:, c + 1 :]], dim=1).double()
    odds = (x[:, c].double() - rest.logsumexp(dim=1)).round(decimals=9)
    rank = np.unique(odds.numpy(), return_inverse=True)[1].reshape(-1)
    return torch.tensor(rank) / len(x)


def generate_logits(
    classes: int, dtype: torch.dtype, *, ties: bool
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return logits and labels of clients, with the number of rows of each.

    Among them are clients without a row, with one row, with one class, and two whose model
    diverged; with ``ties`` there are only few different logits.
    """
    rng = np.random.default_rng(classes)
    counts = [0, 1, 2, 40, 0, 7, 33, 60, 1, 15, 9, 0]
    x = rng.normal(scale=3.0, size=(sum(counts), classes))
    y = rng.integers(classes, size=len(x))
    ends = np.cumsum(counts)
    y[ends[4] : ends[5]] = 1  # one class
    x[ends[8]] = math.nan
    x[ends[9] + 3, 0] = math.inf
    return torch.tensor(np.round(x) if ties else x, dtype=dtype), torch.tensor(y), counts


def count_pairs(scores: NDArray[Any], positive: NDArray[Any]) -> float:
    """Return P(score of a positive > score of a negative), ties counting one half."""
    pairs = [
        float(a > b) + 0.5 * float(a == b)
        for a in scores[positive].tolist()
        for b in scores[~positive].tolist()
    ]
    return sum(pairs) / len(pairs)


def test_auroc_of_two_classes_counts_pairs() -> None:
    """It is the probability that a positive scores above a negative."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(60, 2)))
    y = torch.tensor(rng.integers(2, size=60))
    scores = x.softmax(dim=1)[:, 1].numpy()
    expected = count_pairs(scores, y.numpy() == 1)
    assert compute_one_metric("auroc", x, y) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("scale", [1, 5, 10, 20, 40, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_auroc_ranks_logits_whose_probabilities_are_equal(scale: int, dtype: torch.dtype) -> None:
    """A sure model's probabilities are 1 in float32; its logits still have an order."""
    rng = np.random.default_rng(0)
    y = np.array([0, 1] * 100)
    z = torch.tensor(scale * (y + rng.normal(size=200) + 1.0), dtype=torch.float32).to(dtype)
    right = count_pairs(z.double().numpy(), y == 1)
    labels = torch.tensor(y)
    one = compute_metric(
        "auroc", *BinaryCrossEntropy().select_predictions(z[:, None], labels), [200]
    )
    two = torch.stack([torch.zeros(200, dtype=dtype), z], dim=1)
    assert one == [right]
    assert compute_metric("auroc", *CrossEntropy().select_predictions(two, labels), [200]) == [
        right
    ]
    # A third class that is never likely changes no order; of it nothing is known.
    three = torch.cat([two, torch.full((200, 1), -60000.0, dtype=dtype)], dim=1)
    areas = [count_pairs(side.double().numpy(), y == c) for c, side in enumerate((-z, z))]
    assert compute_one_metric("auroc", three, labels) == pytest.approx(np.mean(areas), abs=1e-12)


def test_average_precision_takes_tied_scores_together() -> None:
    """Recall rises by a half at precision 1, and by a half at precision 2 of 3."""
    odds = torch.tensor([0.9, 0.8, 0.8, 0.1])
    x, y = torch.stack([torch.zeros(4), odds], dim=1), torch.tensor([1, 0, 1, 0])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        assert compute_one_metric("average_precision", x[order], y[order]) == (1 + 2 / 3) / 2


def test_average_precision_of_a_constant_score_is_the_share_of_positives() -> None:
    """AUROC is a half whatever the share."""
    x, y = torch.zeros(20, 2), torch.tensor([1] + [0] * 19)
    assert compute_one_metric("average_precision", x, y) == 1 / 20
    assert compute_one_metric("auroc", x, y) == 0.5


def test_auroc_of_a_perfect_order_is_1() -> None:
    """Of logits 20 to 39, of which all but a few have probability 1."""
    z, y = torch.arange(20, 40, dtype=torch.float32), torch.tensor([0] * 10 + [1] * 10)
    assert compute_metric(
        "auroc", *BinaryCrossEntropy().select_predictions(z[:, None], y), [20]
    ) == [1.0]


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4, 1e30])
@pytest.mark.parametrize("classes", [3, 5])
def test_auroc_of_several_classes_is_that_of_exact_odds(scale: float, classes: int) -> None:
    """However large the logits, in arithmetic of 60 digits and more."""
    rng = np.random.default_rng(classes)
    x = torch.tensor(scale * rng.normal(size=(40, classes)), dtype=torch.float32)
    y = rng.integers(classes, size=40)
    expected = np.mean([count_pairs(compute_exact_odds(x, c), y == c) for c in range(classes)])
    assert compute_one_metric("auroc", x, torch.tensor(y)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 4, 7])
def test_equal_odds_are_tied(classes: int) -> None:
    """Whatever constant is added to the logits, and in whatever order those of the rest are."""
    rng = np.random.default_rng(classes)
    x = np.repeat(rng.integers(-3, 3, size=(12, classes)), 5, axis=0).astype(np.float32)
    y = rng.integers(classes, size=len(x))
    x += rng.integers(-40, 40, size=(len(x), 1)).astype(np.float32)
    x[:, 1:] = rng.permuted(x[:, 1:], axis=1)
    tensor, labels = torch.tensor(x), (y != 0).astype(np.int64)
    own = [count_pairs(compute_exact_odds(tensor, c), labels == c) for c in (0, 1)]
    expected = own[1] if classes == 2 else np.mean(own)
    assert compute_one_metric("auroc", tensor, torch.tensor(labels)) == pytest.approx(
        expected, abs=1e-12
    )


def compute_exact_odds(x: torch.Tensor, c: int) -> NDArray[Any]:
    """Return z_c - log sum_{j != c} exp(z_j) of each row, to 80 digits."""
    with mpmath.workdps(80):
        odds = []
        for row in x.double().tolist():
            rest = sorted(value for j, value in enumerate(row) if j != c)
            total = mpmath.fsum(mpmath.exp(mpmath.mpf(value) - rest[-1]) for value in rest)
            odds.append(mpmath.mpf(row[c]) - rest[-1] - mpmath.log(total))
        return np.array([+value for value in odds], dtype=object)


def test_auroc_of_several_classes_is_the_mean_over_those_present() -> None:
    """A class that the labels lack has no curve; one class alone has none at all."""
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.normal(size=(50, 4)))
    y = torch.tensor(rng.choice([0, 3, 2], size=50))
    scores = x.softmax(dim=1).numpy()
    expected = np.mean([count_pairs(scores[:, c], y.numpy() == c) for c in (0, 2, 3)])
    assert compute_one_metric("auroc", x, y) == pytest.approx(expected, abs=1e-6)
    assert math.isnan(compute_one_metric("auroc", x, torch.zeros(50, dtype=torch.int64)))


def test_top5_counts_labels_among_the_five_highest() -> None:
    """The errors are per row, over all rows."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(80, 9)), rng.integers(9, size=80)
    hits = [label in np.argsort(row)[-5:] for row, label in zip(x, y, strict=True)]
    value = compute_one_metric("top5", torch.tensor(x), torch.tensor(y))
    assert value == pytest.approx(np.mean(hits), abs=1e-6)
    assert 0.4 < value < 0.7


def test_f1_is_the_mean_over_classes() -> None:
    """2 TP / (2 TP + FP + FN) of each class that is predicted or there; another has none."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, 5)), rng.choice([0, 1, 2], size=60)
    x[:, 4] = -9
    predicted = x.argmax(axis=1)
    scores = []
    for c in range(4):
        both = np.sum((predicted == c) & (y == c))
        scores.append(2 * both / (np.sum(predicted == c) + np.sum(y == c)))
    assert scores[3] == 0
    value = compute_one_metric("f1", torch.tensor(x), torch.tensor(y))
    assert value == pytest.approx(np.mean(scores), abs=1e-6)


PLAIN = {"accuracy", "loss"}
MEASURED = [name for name, one in METRICS.items() if name not in PLAIN and not one.is_regression]
OF_NUMBERS = [name for name, one in METRICS.items() if one.is_regression]


@pytest.mark.parametrize("name", MEASURED)
def test_metrics_that_are_not_defined(name: str) -> None:
    """NaN for no prediction, and for a model that diverged; 1 where everything is right."""
    y = torch.arange(6)
    x = torch.eye(6)
    assert compute_one_metric(name, x, y) == pytest.approx(1.0)
    assert math.isnan(compute_one_metric(name, x[:0], y[:0]))
    for bad in (math.nan, math.inf):
        x[2, 3] = bad
        assert math.isnan(compute_one_metric(name, x, y))


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ties", [False, True])
def test_all_clients_at_once_are_torchmetrics(
    name: str, classes: int, dtype: torch.dtype, *, ties: bool
) -> None:
    """One pass over all clients gives each what torchmetrics computes for the client alone."""
    x, y, counts = generate_logits(classes, dtype, ties=ties)
    expected = [
        compute_by_torchmetrics(name, client_x, client_y)
        for client_x, client_y in zip(x.split(counts), y.split(counts), strict=True)
    ]
    values = compute_metric(name, x, y, counts)
    assert values == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert sum(math.isnan(value) for value in values) == 5 + 3 * (
        name in {"auroc", "average_precision"}
    )


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("classes", [2, 3, 10, 33])
@pytest.mark.parametrize("at_once", [1, 500, 2**22])
def test_a_value_has_the_same_bits_in_any_group(
    name: str, classes: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, with all others, or with the others in another order; in any number of passes."""
    x, y, counts = generate_logits(classes, torch.float32, ties=False)
    separate = [
        compute_one_metric(name, client_x, client_y)
        for client_x, client_y in zip(x.split(counts), y.split(counts), strict=True)
    ]
    monkeypatch.setattr(metrics, "MAX_SORTED_SCORES", at_once)
    batched = compute_metric(name, x, y, counts)
    backwards = compute_metric(
        name, torch.cat(x.split(counts)[::-1]), torch.cat(y.split(counts)[::-1]), counts[::-1]
    )
    assert np.array_equal(batched, separate, equal_nan=True)
    assert np.array_equal(backwards, separate[::-1], equal_nan=True)


def test_no_two_metrics_are_the_same() -> None:
    """On the same predictions the names give different numbers."""
    rng = np.random.default_rng(4)
    x, y = torch.tensor(rng.normal(size=(40, 7))), torch.tensor(rng.integers(7, size=40))
    values = [compute_one_metric(name, x, y) for name in MEASURED]
    assert all(abs(a - b) > 0.01 for a, b in combinations(values, 2))


def test_a_metric_must_fit_what_is_predicted() -> None:
    """Top-5 of five classes is always 1; classes and numbers share nothing but the loss."""
    check_metric_for_target("top5", 6, regression=False)
    for name in ("loss", *OF_NUMBERS):
        check_metric_for_target(name, 1, regression=True)
    with pytest.raises(SettingsError, match="top5 needs more than 5 classes, got 5"):
        check_metric_for_target("top5", 5, regression=False)
    for name in ("accuracy", *MEASURED):
        message = f"must be one of rmse, mae, r2, loss where targets are numbers, got {name}"
        with pytest.raises(SettingsError, match=message):
            check_metric_for_target(name, 1, regression=True)
    allowed = "accuracy, top5, auroc, average_precision, f1"
    for name in OF_NUMBERS:
        message = f"one of {allowed}, loss where targets are classes, got {name}"
        with pytest.raises(SettingsError, match=message):
            check_metric_for_target(name, 2, regression=False)


def make_predictions() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Return predictions (m, 1) and targets (m,) of 12 clients with 0 to 30 rows.

    One client diverged, and one has equal targets.
    """
    rng = np.random.default_rng(6)
    counts = [0, 1, *rng.integers(2, 30, size=10).tolist()]
    y = rng.normal(300, 50, size=sum(counts)).astype(np.float32)
    z = (y + rng.normal(0, 20, size=len(y))).astype(np.float32)
    ends = np.cumsum(counts)
    y[ends[3] : ends[4]] = 0.1
    z[ends[7]] = math.inf
    return torch.tensor(z).unsqueeze(1), torch.tensor(y), counts


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_metrics_of_numbers_are_those_of_torchmetrics(name: str) -> None:
    """One pass gives each client its own; R2 is not defined where all targets are equal."""
    z, y, counts = make_predictions()
    expected = [
        compute_regression_by_torchmetrics(name, client_z.squeeze(1), client_y)
        for client_z, client_y in zip(z.split(counts), y.split(counts), strict=True)
    ]
    values = compute_metric(name, z, y, counts)
    assert values == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert sum(map(math.isnan, values)) == 2 + 2 * (name == "r2")
    assert all(METRICS[name].contains(value) for value in values)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_metric_of_numbers_has_the_same_bits_in_any_group(name: str) -> None:
    """Each client's rows are added up by themselves, whoever is measured beside it."""
    z, y, counts = make_predictions()
    separate = [
        compute_one_metric(name, client_z, client_y)
        for client_z, client_y in zip(z.split(counts), y.split(counts), strict=True)
    ]
    assert np.array_equal(compute_metric(name, z, y, counts), separate, equal_nan=True)
    backwards = compute_metric(
        name, torch.cat(z.split(counts)[::-1]), torch.cat(y.split(counts)[::-1]), counts[::-1]
    )
    assert np.array_equal(backwards, separate[::-1], equal_nan=True)


def test_numbers_by_hand() -> None:
    """Errors 1, -2 and 2 of targets 1, 2 and 6: RMSE sqrt(3), MAE 5/3, R2 1 - 9/14."""
    z, y = torch.tensor([[0.0], [4.0], [4.0]]), torch.tensor([1.0, 2.0, 6.0])
    found = {name: compute_one_metric(name, z, y) for name in OF_NUMBERS}
    assert found == pytest.approx({"rmse": math.sqrt(3), "mae": 5 / 3, "r2": 1 - 9 / 14})


def compute_regression_by_torchmetrics(name: str, z: torch.Tensor, y: torch.Tensor) -> float:
    from torchmetrics.functional import regression

    if not len(y) or not z.isfinite().all() or (name == "r2" and len(y.unique()) == 1):
        return math.nan
    functions: dict[str, Callable[..., torch.Tensor]] = {
        "rmse": partial(regression.mean_squared_error, squared=False),
        "mae": regression.mean_absolute_error,
        "r2": regression.r2_score,
    }
    return float(functions[name](z.double(), y.double()))


def test_accuracy_of_sequences_is_torchmetrics() -> None:
    """The share of correct tokens over all targets, none where there is no target."""
    # Importing it takes seconds, which every process that collects this file would spend.
    from torchmetrics.functional.classification import multiclass_accuracy

    rng = np.random.default_rng(5)
    x = torch.tensor(rng.normal(size=(6, 7, 9)))
    y = torch.tensor(np.where(rng.random((6, 7)) < 0.3, IGNORE_INDEX, rng.integers(9, size=(6, 7))))
    terms = SequenceCrossEntropy().compute_terms(x, y)
    expected = multiclass_accuracy(
        x.transpose(1, 2), y, 9, average="micro", ignore_index=IGNORE_INDEX
    )
    assert float(terms.correct.sum() / terms.count.sum()) == pytest.approx(float(expected))
