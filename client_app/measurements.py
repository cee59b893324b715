"""What clients' own data say of one model, measured for many clients at once and never twice."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_app.data.base import Part
from client_app.evaluation import BATCH, NUMBERS, Measurement, evaluate
from client_app.examples import Examples
from client_app.tasks import Task
from client_app.threads import SHARED_FLOPS, threads_for

Arrays = list[NDArray[Any]]


class Measurements:
    """Measures models on the parts of clients and keeps what the last one measured.

    A client that was asked for F_k(w_t) after one round and trains on w_t in the next one
    computes it once.

    Parameters
    ----------
    model : torch.nn.Module
        Where arrays are put to compute with them.
    examples : mapping
        The clients' rows by part.
    task : Task
        The loss.
    metric : str
        ``evaluation.metric``, measured of test parts.
    flops_per_sample : int
        Operations of a forward pass, by which the number of threads is chosen; by default as
        many as there are.
    rows_at_once : int
        How many rows pass through the model at the same time, at most.
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
    ) -> None:
        self._model = model
        self._examples = examples
        self._task = task
        self.metric = metric
        self._arrays: Arrays = []
        self._kept: dict[tuple[Part, int], Measurement] = {}
        self._flops_per_sample = flops_per_sample
        self._rows_at_once = min(BATCH, rows_at_once)

    def count(self, part: Part, client: int) -> int:
        """Return how many rows a part of a client has."""
        return self._examples[part].count(client)

    def measure(self, arrays: Arrays, part: Part, client: int) -> Measurement:
        """Return what one client measures of the model with these arrays."""
        self.prepare(arrays, part, [client])
        return self._kept[part, client]

    def prepare(self, arrays: Arrays, part: Part, clients: Iterable[int]) -> None:
        """Measure for these clients what is not known yet."""
        if not _same(arrays, self._arrays):
            self._arrays, self._kept = list(arrays), {}
        missing = [k for k in clients if (part, k) not in self._kept]
        if not missing:
            return
        put(arrays, self._model)
        examples = self._examples[part]
        metric = self.metric if part == "test" else "loss"
        for group in _groups(missing, examples, self._rows_at_once):
            counts = [examples.count(k) for k in group]
            x, y = examples.of(group)
            with threads_for(self._flops_per_sample * len(y)):
                measured = evaluate(
                    self._model,
                    x,
                    y,
                    counts,
                    task=self._task,
                    metric_name=metric,
                    rows_at_once=self._rows_at_once,
                )
            self._kept.update({(part, k): m for k, m in zip(group, measured, strict=True)})


def put(arrays: Sequence[NDArray[Any]], model: nn.Module) -> None:
    """Give ``model`` these arrays, in the order of its ``state_dict``."""
    names = model.state_dict()
    model.load_state_dict(
        {name: torch.from_numpy(a) for name, a in zip(names, arrays, strict=True)}
    )


def _same(arrays: Arrays, others: Arrays) -> bool:
    return len(arrays) == len(others) and all(
        a is b or np.array_equal(a, b) for a, b in zip(arrays, others, strict=True)
    )


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
