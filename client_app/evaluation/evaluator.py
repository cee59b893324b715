"""Evaluate one model on the data of many clients at once, and cache the metrics."""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_app.data.base import Split
from client_app.data.examples import Examples
from client_app.evaluation.batched import DenseEvaluator
from client_app.evaluation.passes import (
    MAX_INPUT_NUMBERS,
    MAX_PREDICTIONS,
    NUMBERS,
    ClientMetrics,
    MetricsByClient,
    build_client_metrics,
    evaluate_clients,
)
from client_app.losses import Task
from client_app.training.batched.gradients import build_dense_gradients
from client_app.training.local_sgd import Arrays, load_arrays
from client_app.training.workers import MIN_SHARED_FLOPS, WorkerPool, count_available_cores


class CachedEvaluator:
    """Evaluate models on the clients' splits, and cache the metrics of the last model.

    A client that reports F_k(w_t) after one round and trains on w_t in the next one computes it
    once. On a CPU a client's metrics have the same bits whichever clients are evaluated with it.

    Parameters
    ----------
    model : torch.nn.Module
        The model that arrays are loaded into.
    examples : mapping
        The clients' rows by split.
    task : Task
    metric : str
        ``evaluation.metric``, evaluated on test and validation splits, as is the calibration.
    flops_per_sample : int
        Operations of a forward pass, which determine the number of workers. By default all
        available cores are used.
    rows_at_once : int
        Maximum number of rows in one pass through the model.
    threads : int
        Number of torch threads in a product; it determines how the product is rounded.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Mapping[Split, Examples],
        task: Task,
        metric: str = "accuracy",
        *,
        flops_per_sample: int = MIN_SHARED_FLOPS,
        rows_at_once: int = MAX_PREDICTIONS,
        threads: int = 1,
    ) -> None:
        self._model = model
        self._examples = examples
        self._task = task
        self.metric = metric
        self._arrays: Arrays = []
        self._caches = {split: EvalCache(rows) for split, rows in examples.items()}
        self._flops_per_sample = flops_per_sample
        self._rows_at_once = min(MAX_PREDICTIONS, rows_at_once)
        self._threads = threads
        dense = build_dense_gradients(model, task)
        self._dense: dict[Split, DenseEvaluator] = {}
        if dense is not None:
            for split, rows in examples.items():
                self._dense[split] = DenseEvaluator(dense, rows, task, self._rows_at_once)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that clients have."""
        return tuple(self._examples)

    def count(self, split: Split, client: int) -> int:
        """Return the number of rows in a client's split."""
        return self._examples[split].count(client)

    def evaluate(self, arrays: Arrays, split: Split, client: int) -> ClientMetrics:
        """Return one client's metrics of the model with these arrays."""
        self._clear_if_changed(arrays)
        cache = self._caches[split]
        if not cache.has(client):
            self.prepare(arrays, split, [client])
        return cache.get(client)

    def prepare(self, arrays: Arrays, split: Split, clients: Iterable[int]) -> None:
        """Evaluate those of the clients whose metrics are not cached."""
        self._clear_if_changed(arrays)
        missing = self._caches[split].find_missing(clients)
        if not missing:
            return
        load_arrays(arrays, self._model)
        for group, metrics in self._evaluate_groups(split, missing):
            self._caches[split].add(group, metrics)

    def _clear_if_changed(self, arrays: Arrays) -> None:
        """Clear the caches if they are not of the model with these arrays."""
        if not _is_same_model(arrays, self._arrays):
            self._arrays = list(arrays)
            for cache in self._caches.values():
                cache.clear()

    def _evaluate_groups(
        self, split: Split, clients: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], MetricsByClient]]:
        """Yield the clients' metrics, group by group."""
        examples = self._examples[split]
        metric, has_calibration = ("loss", False) if split == "train" else (self.metric, True)
        if self._dense:
            workers = self._choose_workers(int(examples.get_counts(clients).sum()))
            state = self._model.state_dict()
            yield (
                clients,
                self._dense[split].evaluate(
                    state, clients, metric, workers, has_calibration=has_calibration
                ),
            )
        elif examples.device.type == "cpu":
            separately = self._evaluate_separately(
                examples, clients, metric, has_calibration=has_calibration
            )
            for client, metrics in separately:
                yield [client], metrics
        else:
            for group in _group_clients(clients, examples, self._rows_at_once):
                counts = examples.get_counts(group)
                rows = examples.select_clients(group)
                yield (
                    group,
                    self._evaluate_rows(*rows, counts, metric, has_calibration=has_calibration),
                )

    def _evaluate_separately(
        self, examples: Examples, clients: Sequence[int], metric: str, *, has_calibration: bool
    ) -> Iterator[tuple[int, MetricsByClient]]:
        """Evaluate each client in separate passes, whose shapes depend on its rows alone."""

        def evaluate_client(client: int) -> MetricsByClient:
            first, count = examples.get_start(client), examples.count(client)
            rows = torch.arange(first, first + count, device=examples.device)
            counts = np.array([count])
            return self._evaluate_rows(
                examples.gather_inputs(rows),
                examples.gather_labels(rows),
                counts,
                metric,
                has_calibration=has_calibration,
            )

        self._model.eval()
        workers = self._choose_workers(int(examples.get_counts(clients).max()))
        results = workers.map(evaluate_client, clients, prefetch=2 * workers.count)
        for client, metrics in zip(clients, results, strict=True):
            if isinstance(metrics, Exception):
                raise metrics
            yield client, metrics

    def _evaluate_rows(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        counts: NDArray[np.int64],
        metric: str,
        *,
        has_calibration: bool,
    ) -> MetricsByClient:
        return evaluate_clients(
            self._model,
            x,
            y,
            counts,
            task=self._task,
            metric_name=metric,
            has_calibration=has_calibration,
            rows_at_once=self._rows_at_once,
        )

    def _choose_workers(self, rows: int) -> WorkerPool:
        """Return one worker if the rows are little work; no result depends on the choice."""
        shared = self._flops_per_sample * rows >= MIN_SHARED_FLOPS
        return WorkerPool(count_available_cores() // self._threads if shared else 1, self._threads)


class EvalCache:
    """The clients' metrics of one model on one split, a row for each client.

    Parameters
    ----------
    examples : Examples
        The split, with its clients.
    """

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        count = len(examples.clients)
        self._is_cached = np.zeros(count, dtype=np.bool_)
        self._values = np.empty((count, len(NUMBERS)))
        self._calibration = np.full(count, b"", dtype=np.object_)
        self._added: list[NDArray[np.int64]] = []

    def has(self, client: int) -> bool:
        """Return whether a client's metrics are cached."""
        return bool(self._is_cached[self._examples.get_index(client)])

    def get(self, client: int) -> ClientMetrics:
        """Return a client's metrics."""
        index = self._examples.get_index(client)
        return build_client_metrics(self._values[index].tolist(), self._calibration[index])

    def find_missing(self, clients: Iterable[int]) -> list[int]:
        """Return those of the clients whose metrics are not cached."""
        wanted = np.asarray(list(clients), dtype=np.int64)
        missing: list[int] = wanted[~self._is_cached[self._examples.get_indices(wanted)]].tolist()
        return missing

    def add(self, clients: Sequence[int], metrics: MetricsByClient) -> None:
        """Cache the clients' metrics."""
        indices = self._examples.get_indices(clients)
        self._is_cached[indices] = True
        self._values[indices] = np.stack(metrics.columns, axis=1)
        self._calibration[indices] = metrics.calibration
        self._added.append(indices)

    def clear(self) -> None:
        """Clear the cache, in time proportional to its entries."""
        for indices in self._added:
            self._is_cached[indices] = False
        self._added = []


def _is_same_model(arrays: Arrays, others: Arrays) -> bool:
    if len(arrays) != len(others):
        return False
    # Compare identities first, because every client asks.
    return all(map(operator.is_, arrays, others)) or all(map(_has_same_bits, arrays, others))


def _has_same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same bits: NaN of a diverged model equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(_to_bits(one), _to_bits(other))


def _to_bits(array: NDArray[Any]) -> NDArray[Any]:
    unsigned = f"u{math.gcd(array.itemsize, 8)}"
    return np.ascontiguousarray(array).reshape(-1).view(unsigned)


def _group_clients(
    clients: Sequence[int], examples: Examples, rows_at_once: int
) -> Iterator[list[int]]:
    """Group clients so that the rows of each group fit one pass, or are those of one client."""
    group: list[int] = []
    rows, max_rows = 0, min(rows_at_once, MAX_INPUT_NUMBERS // math.prod(examples.input_shape))
    for client in clients:
        if group and rows + examples.count(client) > max_rows:
            yield group
            group, rows = [], 0
        group.append(client)
        rows += examples.count(client)
    if group:
        yield group
