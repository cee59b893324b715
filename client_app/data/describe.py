"""Describe a data set with what its rows tell: names, and the shares of the classes."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import get_args

import numpy as np

from client_app.data.base import ClientwiseData, FederatedData, Split
from client_app.data.summary import DataSummary


def describe_data(
    data: FederatedData, groups: Mapping[str, Collection[int]], *, names: bool = True
) -> DataSummary:
    """Return how the data was interpreted, with names, classes and the accuracy of no model.

    The accuracy of always guessing the largest class is that of a constant model: its mean over
    clients, weighted by their training rows, as for any other model. Data that builds its clients
    one by one, or is on devices, has neither shares nor this accuracy.

    Parameters
    ----------
    data : FederatedData
    groups : mapping of str to collection of int
        The clients of each group that is evaluated.
    names : bool
        Whether to name the clients.
    """
    summary = data.summary if names else data.summary.without_client_names()
    if names:
        summary = replace(summary, client_names=data.client_names or ())
    if data.target != "class" or isinstance(data, ClientwiseData):
        return summary
    by_split = [
        np.bincount(pool.y[pool.rows.flat], minlength=data.num_classes)
        for split in get_args(Split)
        for pool in [data.get_pooled_split(split, range(data.num_clients))]
    ]
    counts = np.sum(by_split, axis=0)
    shares = counts / counts.sum()
    accuracies = {
        name: _compute_constant_accuracy(data, sorted(clients))
        for name, clients in groups.items()
        if clients
    }
    return replace(
        summary,
        classes=dict(zip(list_class_names(data), shares.tolist(), strict=True)),
        constant_accuracy=accuracies,
    )


def list_class_names(data: FederatedData) -> list[str]:
    """Return the names of the classes, and the numbers of those without names."""
    named = data.class_names or ()
    return [*named, *map(str, range(len(named), data.num_classes))]


def _compute_constant_accuracy(data: FederatedData, clients: Collection[int]) -> float:
    """Return max over c of sum_k n_k s_k(c) / sum_k n_k, s_k(c) the share of c in testing."""
    train, test = (data.get_pooled_split(split, [*clients]).rows for split in ("train", "test"))
    labels = data.get_pooled_split("test", [*clients]).y[test.flat]
    is_tested = test.counts > 0
    weights = np.where(is_tested, train.counts / np.maximum(test.counts, 1), 0.0)
    total = float(train.counts[is_tested].sum())
    found = np.bincount(labels, np.repeat(weights, test.counts))
    return float(found.max()) / total if total else float("nan")
