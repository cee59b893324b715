"""Measure one model on the data of many clients at once, and never twice."""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_app.arrays import Arrays, put
from client_app.batched.forward import DenseMeasuring
from client_app.batched.gradients import dense_gradients
from client_app.data.base import Part
from client_app.evaluation import BATCH, NUMBERS, Measured, Measurement, evaluate, measurement
from client_app.examples import Examples
from client_app.tasks import Task
from client_app.workers import SHARED_FLOPS, Workers, available_cores


class Measurements:
    """Measure models on the clients' parts, and keep the measurements of the last model.

    A client that was asked for F_k(w_t) after one round and trains on w_t in the next one
    computes it once. On a CPU what a client measures has the same bits whichever clients measure
    beside it.

    Parameters
    ----------
    model : torch.nn.Module
        Where arrays are put to compute with them.
    examples : mapping
        The clients' rows by part.
    task : Task
        The loss.
    metric : str
        ``evaluation.metric``, measured of test and validation parts.
    flops_per_sample : int
        Operations of a forward pass, by which the number of workers is chosen; by default as
        many as there are.
    rows_at_once : int
        How many rows pass through the model at the same time, at most.
    threads : int
        Number of torch threads in a product. It decides how the product is rounded.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Mapping[Part, Examples],
        task: Task,
        metric: str = "accuracy",
        *,
        flops_per_sample: int = SHARED_FLOPS,
        rows_at_once: int = BATCH,
        threads: int = 1,
    ) -> None:
        self._model = model
        self._examples = examples
        self._task = task
        self.metric = metric
        self._arrays: Arrays = []
        self._kept = {part: Kept(rows) for part, rows in examples.items()}
        self._flops_per_sample = flops_per_sample
        self._rows_at_once = min(BATCH, rows_at_once)
        self._threads = threads
        dense = dense_gradients(model, task)
        self._dense: dict[Part, DenseMeasuring] = {}
        if dense is not None:
            for part, rows in examples.items():
                self._dense[part] = DenseMeasuring(dense, rows, task, self._rows_at_once)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that clients have."""
        return tuple(self._examples)

    def count(self, part: Part, client: int) -> int:
        """Return how many rows a part of a client has."""
        return self._examples[part].count(client)

    def measure(self, arrays: Arrays, part: Part, client: int) -> Measurement:
        """Return one client's measurements of the model with these arrays."""
        self._keep_of(arrays)
        kept = self._kept[part]
        if not kept.has(client):
            self.prepare(arrays, part, [client])
        return kept.of(client)

    def prepare(self, arrays: Arrays, part: Part, clients: Iterable[int]) -> None:
        """Make the missing measurements for these clients."""
        self._keep_of(arrays)
        missing = self._kept[part].missing(clients)
        if not missing:
            return
        put(arrays, self._model)
        metric = "loss" if part == "train" else self.metric
        for group, measured in self._measured(part, missing, metric):
            self._kept[part].add(group, measured)

    def _keep_of(self, arrays: Arrays) -> None:
        """Forget what was measured of another model than that with these arrays."""
        if not _same(arrays, self._arrays):
            self._arrays = list(arrays)
            for kept in self._kept.values():
                kept.clear()

    def _measured(
        self, part: Part, clients: Sequence[int], metric: str
    ) -> Iterator[tuple[Sequence[int], Measured]]:
        """Yield what clients measure, group by group."""
        examples = self._examples[part]
        if self._dense:
            workers = self._workers_for(int(examples.counts(clients).sum()))
            state = self._model.state_dict()
            yield clients, self._dense[part].measure(state, clients, metric, workers)
        elif examples.device.type == "cpu":
            for client, measured in self._each_alone(examples, clients, metric):
                yield [client], measured
        else:
            for group in _groups(clients, examples, self._rows_at_once):
                counts = examples.counts(group)
                yield group, self._evaluate(*examples.of(group), counts, metric)

    def _each_alone(
        self, examples: Examples, clients: Sequence[int], metric: str
    ) -> Iterator[tuple[int, Measured]]:
        """Measure each client in passes of its own: their shapes depend on its rows alone."""

        def measure(client: int) -> Measured:
            first, count = examples.start(client), examples.count(client)
            rows = torch.arange(first, first + count, device=examples.device)
            counts = np.array([count])
            return self._evaluate(examples.inputs(rows), examples.labels(rows), counts, metric)

        self._model.eval()
        workers = self._workers_for(int(examples.counts(clients).max()))
        measurements = workers.map(measure, clients, ahead=2 * workers.count)
        for client, measured in zip(clients, measurements, strict=True):
            if isinstance(measured, Exception):
                raise measured
            yield client, measured

    def _evaluate(
        self, x: torch.Tensor, y: torch.Tensor, counts: NDArray[np.int64], metric: str
    ) -> Measured:
        return evaluate(
            self._model,
            x,
            y,
            counts,
            task=self._task,
            metric_name=metric,
            rows_at_once=self._rows_at_once,
        )

    def _workers_for(self, rows: int) -> Workers:
        """Return one worker where so many rows are little work; no result depends on it."""
        shared = self._flops_per_sample * rows >= SHARED_FLOPS
        return Workers(available_cores() // self._threads if shared else 1, self._threads)


class Kept:
    """The clients' measurements of one model on one part, a row for each client.

    Parameters
    ----------
    examples : Examples
        The part, whose clients these are.
    """

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        count = len(examples.clients)
        self._known = np.zeros(count, dtype=np.bool_)
        self._values = np.empty((count, len(fields(Measurement))))
        self._added: list[NDArray[np.int64]] = []

    def has(self, client: int) -> bool:
        """Say whether a client has measured."""
        return bool(self._known[self._examples.place(client)])

    def of(self, client: int) -> Measurement:
        """Return a client's measurements."""
        return measurement(self._values[self._examples.place(client)].tolist())

    def missing(self, clients: Iterable[int]) -> list[int]:
        """Return those of the clients that have not measured."""
        wanted = np.asarray(list(clients), dtype=np.int64)
        missing: list[int] = wanted[~self._known[self._examples.places(wanted)]].tolist()
        return missing

    def add(self, clients: Sequence[int], measured: Measured) -> None:
        """Keep the clients' measurements."""
        places = self._examples.places(clients)
        self._known[places] = True
        self._values[places] = np.stack(measured.columns, axis=1)
        self._added.append(places)

    def clear(self) -> None:
        """Forget all, in time for those that measured."""
        for places in self._added:
            self._known[places] = False
        self._added = []


def _same(arrays: Arrays, others: Arrays) -> bool:
    if len(arrays) != len(others):
        return False
    # First whether they are the same objects: every client asks.
    return all(map(operator.is_, arrays, others)) or all(map(_same_bits, arrays, others))


def _same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Say whether two arrays are the same to the bit: NaN of a diverged model equals itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return np.array_equal(_bits(one), _bits(other))


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    unsigned = f"u{math.gcd(array.itemsize, 8)}"
    return np.ascontiguousarray(array).reshape(-1).view(unsigned)


def _groups(clients: Sequence[int], examples: Examples, rows_at_once: int) -> Iterator[list[int]]:
    """Divide clients so that the rows of each group are one pass, or those of one client."""
    group: list[int] = []
    rows, most = 0, min(rows_at_once, NUMBERS // math.prod(examples.input_shape))
    for client in clients:
        if group and rows + examples.count(client) > most:
            yield group
            group, rows = [], 0
        group.append(client)
        rows += examples.count(client)
    if group:
        yield group
