"""A model in closed form measured on the rows of many clients, in blocks.

A row's outputs have other bits where the product that it is in has another number of rows. Here a
client's rows are divided into blocks whose size follows from their number, and all blocks of one
size are one batched product: who else is measured changes nothing.

Shapes: k blocks of b rows; d inputs, c outputs.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.batched.aligned import aligned, copies, padded_rows
from client_app.batched.gradients import DenseGradients, Stacked
from client_app.batched.schedule import width_of
from client_app.evaluation import Judged, Measurement, judged, measurements_of
from client_app.examples import Examples
from client_app.tasks import Task
from client_app.workers import Workers

BLOCK = 256


@dataclass(frozen=True)
class Pass:
    """Blocks of one size: the first row of each and how many of its rows there are, (k,)."""

    width: int
    first: NDArray[np.int64]
    count: NDArray[np.int64]


class DenseMeasuring:
    """Measures fully connected models with ReLU between their layers.

    Parameters
    ----------
    gradients : DenseGradients
        The model's closed form.
    examples : Examples
        The clients' rows.
    task : Task
        The loss.
    rows_at_once : int
        How many rows pass through the model at the same time, at least one block.
    """

    def __init__(
        self, gradients: DenseGradients, examples: Examples, task: Task, rows_at_once: int
    ) -> None:
        self._layers = gradients.layers
        self._examples = examples
        self._task = task
        self._rows_at_once = rows_at_once

    @torch.no_grad()
    def measure(
        self, state: Stacked, clients: Sequence[int], metric_name: str, workers: Workers
    ) -> dict[int, Measurement]:
        """Return what each client measures of the model with this state.

        Parameters
        ----------
        state : dict of tensor
            The model's arrays by name.
        clients : sequence of int
            Who measures.
        metric_name : str
            See ``client_app.evaluation.evaluate``.
        workers : Workers
            Among whom the passes are divided, which changes no result.
        """
        of_width = defaultdict[int, list[int]](list)
        for client in clients:
            of_width[self._width(client)].append(client)
        order = [client for group in of_width.values() for client in group]
        passes = [
            each
            for width, group in of_width.items()
            if width
            for each in self._passes(width, group)
        ]

        def judge(each: Pass) -> Judged:
            with torch.no_grad():  # each thread has its own mode
                return self._judge(state, each, metric_name)

        results = []
        for result in workers.map(judge, passes, ahead=max(1, len(passes))):
            if isinstance(result, Exception):
                raise result
            results.append(result)
        counts = [self._examples.count(client) for client in order]
        if not results:
            nothing = torch.zeros((0, 4), dtype=torch.float64, device=self._examples.device)
            results = [Judged(nothing, None)]
        measured = measurements_of(results, counts, metric_name)
        return dict(zip(order, measured, strict=True))

    def _width(self, client: int) -> int:
        """Return the size of a client's blocks, 0 where it has no row."""
        count = self._examples.count(client)
        return width_of(math.ceil(count / math.ceil(count / BLOCK)), BLOCK) if count else 0

    def _passes(self, width: int, clients: Sequence[int]) -> list[Pass]:
        """Return the blocks of clients in their order, as many in a pass as may be."""
        first, count = [], []
        for client in clients:
            start, rows = self._examples.start(client), self._examples.count(client)
            begins = np.arange(0, rows, width)
            first.append(start + begins)
            count.append(np.minimum(width, rows - begins))
        firsts, counts = np.concatenate(first), np.concatenate(count)
        k = max(1, self._rows_at_once // width)
        return [Pass(width, firsts[i : i + k], counts[i : i + k]) for i in range(0, len(firsts), k)]

    def _judge(self, state: Stacked, each: Pass, metric_name: str) -> Judged:
        examples = self._examples
        numbers = math.prod(examples.input_shape)
        room = np.arange(padded_rows(each.width, numbers, examples.dtype))
        within = np.where(room < each.count[:, None], room, 0)
        rows = torch.from_numpy(each.first[:, None] + within).to(examples.device)
        x = examples.inputs(rows.reshape(-1)).view(*rows.shape, numbers)[:, : each.width]
        outputs = self._outputs(state, x)  # (k, b, c)
        real = torch.from_numpy(room[: each.width] < each.count[:, None]).to(examples.device)
        labels = examples.labels(rows[:, : each.width][real])
        return judged(outputs[real], labels, self._task, metric_name)

    def _outputs(self, state: Stacked, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (k, b, c) of inputs (k, b, d)."""
        blocks = len(x)
        if blocks == 1 and any(1 in state[weight].shape for weight, _ in self._layers):
            # A product with a vector is computed in another way alone than as one of several.
            return self._outputs(state, copies(x[0], 2))[:1]
        a = x.transpose(1, 2)  # (k, d, b)
        for layer, (weight, bias) in enumerate(self._layers):
            w = state[weight]
            if layer:
                a.clamp_(min=0)
            a = torch.baddbmm(
                state[bias].reshape(1, -1, 1),
                w.expand(blocks, *w.shape),
                a,
                out=aligned(blocks, (len(w), x.shape[1]), x.dtype, x.device),
            )
        return a.transpose(1, 2)
