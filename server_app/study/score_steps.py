"""Compute the smallest change of a study's score that one test row can cause."""

import math
from pathlib import Path

import numpy as np
from fedquorum.rules.decisions import ClientEvaluation

from client_app.data import FederatedData
from server_app.study.scores import (
    PER_ROW_METRICS,
    compute_score,
    get_test_metric,
    read_tested_clients,
    replace_metric,
)

MAX_CLIENTS = 100
"""The time grows with the square of the number of clients."""


def compute_score_step(
    directory: Path, score: str, metric: str, data: FederatedData | None = None
) -> float:
    """Return the smallest change of a score, above 0, that one test row of a client can cause.

    One row changes the accuracy of a client with n test rows by 1 / n. One pair of rows changes
    the AUROC of C classes with n_k rows by 1 / max_k(n_k (n - n_k)), over C if C > 2. Other metrics
    have no such step, and the result is 0. Of more clients than ``MAX_CLIENTS``, only
    that many count, evenly spaced by their metric.

    Parameters
    ----------
    directory : Path
        A run: its last evaluation has the clients that count, and their weights.
    score : str
        The compared number by dotted key below ``test``.
    metric : str
        The clients' metric.
    data : FederatedData, optional
        The run's data, with the classes of its test rows; on devices these are unknown, and the
        result for AUROC is 0.
    """
    evaluations = read_tested_clients(directory)
    current, changes = compute_score(evaluations, score, metric), []
    for i in _select_positions([get_test_metric(one, metric) for one in evaluations]):
        one = evaluations[i]
        value, step = get_test_metric(one, metric), _compute_client_step(one, metric, data)
        if step == 0:
            continue
        # Both ways, and beyond 0 and 1 too: of several worst clients, one must become worse.
        for changed in (value - step, value + step):
            moved = [*evaluations[:i], replace_metric(one, metric, changed), *evaluations[i + 1 :]]
            changes.append(abs(compute_score(moved, score, metric) - current))
    return min((change for change in changes if change > 0), default=0.0)


def _select_positions(values: list[float]) -> list[int]:
    """Return the positions of at most ``MAX_CLIENTS`` defined values, evenly spaced by rank."""
    order = [int(i) for i in np.argsort(values, kind="stable") if not math.isnan(values[i])]
    ranks = np.linspace(0, len(order) - 1, min(len(order), MAX_CLIENTS))
    return [order[int(rank)] for rank in ranks]


def _compute_client_step(one: ClientEvaluation, metric: str, data: FederatedData | None) -> float:
    if metric in PER_ROW_METRICS:
        return 1.0 / one.test_num_examples
    if metric != "auroc" or data is None or data.target != "class":
        return 0.0
    _, counts = np.unique(data.get_targets(one.client)[1], return_counts=True)
    pairs = int((counts * (counts.sum() - counts)).max(initial=0))
    classes = len(counts) if len(counts) > 2 else 1  # noqa: PLR2004 - two have the same pairs
    return 1.0 / (classes * pairs) if pairs else 0.0
