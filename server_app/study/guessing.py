"""Score a model that has learned nothing from the inputs, on the same test rows as the methods.

The model knows the targets of all training rows and no input: it always answers with the most
frequent class, gives each class its frequency, or answers with the mean of the numbers. For
metrics of a ranking (``RANKING_METRICS``) its scores are in random order within each client, the
mean of ``NUM_SHUFFLES`` orders. Its score is computed exactly as that of a method: so a worst tenth
of clients is that of the worst guesses, which is below the average guess.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fedquorum.rng import make_generator
from fedquorum.rules.decisions import ClientEvaluation
from fedquorum.rules.metrics import AVERAGE_PRECISION, get_metric
from numpy.typing import NDArray

from client_app.data import FederatedData
from client_app.data.base import IGNORE_INDEX, Targets
from client_app.data.partitioned import PartitionedData
from client_app.evaluation.row_terms import Terms, compute_row_terms
from client_app.losses import CrossEntropy, SequenceCrossEntropy, SquaredError, Task
from client_app.metrics import compute_metric
from server_app.study.scores import compute_score, read_tested_clients, replace_metric

NUM_SHUFFLES = 20
"""Random orders of a ranking: one would add its own luck to every comparison with it."""

RANKING_METRICS = ("auroc", AVERAGE_PRECISION)


def score_guessing(
    directory: Path, data: FederatedData, score: str, metric: str, seed: int
) -> float:
    """Return the score of guessing in one seed; NaN if it is not defined.

    Parameters
    ----------
    directory : Path
        A run with this seed: its last evaluation has the clients that count, and their weights.
    data : FederatedData
        The data of this seed.
    score : str
        The compared number by dotted key below ``test``.
    metric : str
        The clients' metric.
    seed : int
    """
    evaluated = read_tested_clients(directory)
    clients = [one.client for one in evaluated]
    trained = [k for k in range(data.num_clients) if k not in _list_held_out(evaluated)]
    train, test = _get_targets(data, trained, "train"), _get_targets(data, clients, "test")
    counts = [len(targets) for targets in test]
    known, tested = np.concatenate(train), torch.from_numpy(np.concatenate(test))
    repeats = NUM_SHUFFLES if metric in RANKING_METRICS else 1
    scores = []
    for repeat in range(repeats):
        outputs = (
            _shuffle_scores(data.num_classes, clients, counts, seed, repeat)
            if metric in RANKING_METRICS
            else _predict_constant(known, metric, data.num_classes, len(tested))
        )
        values = _evaluate(outputs, tested, counts, metric)
        guessed = [
            replace_metric(one, metric, value) for one, value in zip(evaluated, values, strict=True)
        ]
        scores.append(compute_score(guessed, score, metric))
    return math.fsum(scores) / repeats


def guess_rows(data: PartitionedData, clients: Sequence[int], metric: str) -> dict[int, Terms]:
    """Return the terms of each client's test rows where a model guesses.

    Parameters
    ----------
    data : PartitionedData
    clients : sequence of int
        The clients that train, whose targets the guess knows.
    metric : str
        One of ``client_app.evaluation.row_terms.MEAN_METRICS``.
    """
    _, _, (y, rows) = data.list_targets()
    constant = _predict_constant(
        np.concatenate(_get_targets(data, clients, "train")), metric, data.num_classes, 1
    )
    found = {}
    for client in rows:
        targets = torch.from_numpy(y[rows[client]])
        outputs = constant.expand(*targets.shape, -1)
        found[client] = compute_row_terms(outputs, targets, _GUESSED_TASKS[data.target], metric)
    return found


_GUESSED_TASKS: Mapping[str, Task] = {
    "class": CrossEntropy(),
    "sequence": SequenceCrossEntropy(),
    "number": SquaredError(),
}


def can_guess(data: FederatedData, metric: str) -> bool:
    """Say whether guessing has a score: not for a loss of numbers, whose unit is the model's."""
    return data.target != "number" or metric != "loss"


def _list_held_out(evaluations: Sequence[ClientEvaluation]) -> frozenset[int]:
    return frozenset(one.client for one in evaluations if one.held_out)


def _get_targets(data: FederatedData, clients: Sequence[int], split: str) -> list[Targets]:
    """Return each client's targets in the unit of the metric, without positions that count not."""
    if isinstance(data, PartitionedData):
        (y_train, train), _, (y_test, test) = data.list_targets()
        y, rows = (y_train, train) if split == "train" else (y_test, test)
        targets = [y[rows[k]] for k in clients]
    else:
        targets = [data.get_targets(k)[split == "test"] for k in clients]
    flat = [np.asarray(one).reshape(-1) for one in targets]
    return [one[one != IGNORE_INDEX] if data.target == "sequence" else one for one in flat]


def _predict_constant(known: Targets, metric: str, num_classes: int, n: int) -> torch.Tensor:
    """Return the same output for n rows: the mean, or the logarithms of the frequencies."""
    if get_metric(metric).is_regression:
        return torch.full((n, 1), float(known.mean()), dtype=torch.float64)
    # One more row of each class: a class without training rows would have an infinite loss.
    frequencies = np.bincount(known, minlength=num_classes) + 1.0
    row = np.log(frequencies / frequencies.sum())
    return torch.from_numpy(np.tile(row, (n, 1)))


def _shuffle_scores(
    num_classes: int, clients: Sequence[int], counts: Sequence[int], seed: int, repeat: int
) -> torch.Tensor:
    """Return random scores of every row and class, which depend on its client alone."""
    drawn = [
        make_generator(seed, "guess", repeat, client).standard_normal((count, num_classes))
        for client, count in zip(clients, counts, strict=True)
    ]
    return torch.from_numpy(np.concatenate(drawn))


def _evaluate(
    outputs: torch.Tensor, targets: torch.Tensor, counts: Sequence[int], metric: str
) -> list[float]:
    """Return each client's metric."""
    if metric not in ("accuracy", "loss"):
        return compute_metric(metric, outputs, targets, counts)
    per_row: NDArray[Any] = (
        (outputs.argmax(dim=1) == targets).double().numpy()
        if metric == "accuracy"
        else -outputs.gather(1, targets.unsqueeze(1)).squeeze(1).numpy()
    )
    ends = np.cumsum(counts)[:-1]
    return [float(part.mean()) if len(part) else math.nan for part in np.split(per_row, ends)]
