"""Evaluate a model in closed form on the rows of many clients, in blocks.

The bits of a row's outputs depend on the number of rows in its product. Here a client's rows are
divided into blocks whose size depends only on their number, and all blocks of one size are one
batched product: the other clients change nothing.

Shapes: k blocks of b rows; d inputs, c outputs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.data.examples import Examples
from client_app.evaluation.passes import (
    BatchStats,
    MetricsByClient,
    compute_batch_stats,
    reduce_by_client,
)
from client_app.losses import Task
from client_app.training.batched.aligned import compute_padded_rows, copy_aligned, create_aligned
from client_app.training.batched.gradients import DenseGradients, StackedTensors
from client_app.training.batched.schedule import compute_padded_batch_size
from client_app.training.workers import WorkerPool

BLOCK_ROWS = 256


@dataclass(frozen=True)
class PaddedPass:
    """k blocks of b rows, gathered with padding: (k, capacity), of which (k, b) are used.

    ``real``, tensor of bool (k, b), is true for rows of a client; padding repeats a row.
    """

    capacity: int
    width: int
    real: torch.Tensor

    @property
    def num_gathered(self) -> int:
        """The number of gathered rows."""
        return len(self.real) * self.capacity


@dataclass(frozen=True)
class WorkShare:
    """Rows that are gathered and evaluated at the same time.

    Attributes
    ----------
    passes : sequence of PaddedPass
        One for each block size.
    rows : tensor of int64
        The rows of all passes, one pass after the other, with padding.
    real_rows : tensor of int64
        The same rows without padding.
    """

    passes: Sequence[PaddedPass]
    rows: torch.Tensor
    real_rows: torch.Tensor


@dataclass(frozen=True)
class BatchPlan:
    """The clients' row counts in evaluation order, and the work shares.

    ``indices`` has the position of each of ``clients`` in that order.
    """

    clients: NDArray[np.int64]
    num_workers: int
    indices: NDArray[np.int64]
    counts: NDArray[np.int64]
    shares: Sequence[WorkShare]


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of one size: the first row and the number of rows of each, (k,)."""

    width: int
    first: NDArray[np.int64]
    count: NDArray[np.int64]


class DenseEvaluator:
    """Evaluate fully connected models with ReLU between their layers.

    Parameters
    ----------
    gradients : DenseGradients
        The model's closed form.
    examples : Examples
        The clients' rows.
    task : Task
    rows_at_once : int
        Maximum number of rows in one pass through the model, but at least one block.
    """

    def __init__(
        self, gradients: DenseGradients, examples: Examples, task: Task, rows_at_once: int
    ) -> None:
        self._layers = gradients.layers
        self._examples = examples
        self._task = task
        self._rows_at_once = rows_at_once
        self._plan: BatchPlan | None = None

    @torch.no_grad()
    def evaluate(
        self,
        state: StackedTensors,
        clients: Sequence[int],
        metric_name: str,
        workers: WorkerPool,
        *,
        has_calibration: bool = False,
    ) -> MetricsByClient:
        """Return each client's metrics of the model with this state.

        Parameters
        ----------
        state : dict of tensor
            The model's arrays by name.
        clients : sequence of int
        metric_name, has_calibration : str and bool
            See ``client_app.evaluation.passes.evaluate_clients``.
        workers : WorkerPool
            The workers that share the passes; no result depends on their number.
        """
        plan = self._get_plan(np.asarray(clients, dtype=np.int64), workers.count)

        def compute_share_stats(share: WorkShare) -> BatchStats:
            with torch.no_grad():  # each thread has its own mode
                return self._compute_stats(
                    state, share, metric_name, has_calibration=has_calibration
                )

        results = []
        for result in workers.map(
            compute_share_stats, plan.shares, prefetch=max(1, len(plan.shares))
        ):
            if isinstance(result, Exception):
                raise result
            results.append(result)
        if not results:
            empty = torch.zeros((0, 4), dtype=torch.float64, device=self._examples.device)
            results = [BatchStats(empty, None)]
        return reduce_by_client(results, plan.counts, metric_name)[plan.indices]

    def _get_plan(self, clients: NDArray[np.int64], num_workers: int) -> BatchPlan:
        """Return the plan for these clients, usually that of the previous call."""
        last = self._plan
        if (
            last is None
            or last.num_workers != num_workers
            or not np.array_equal(last.clients, clients)
        ):
            counts = self._examples.get_counts(clients)
            groups = dict(_group_by_width(counts))
            blocks = [
                block
                for width, indices in groups.items()
                if width
                for block in self._build_blocks(width, clients[indices])
            ]
            order = np.concatenate([np.zeros(0, np.int64), *groups.values()])
            shares = self._split_blocks(blocks, num_workers)
            last = self._plan = BatchPlan(
                clients, num_workers, np.argsort(order), counts[order], shares
            )
        return last

    def _build_blocks(self, width: int, clients: NDArray[np.int64]) -> list[RowBlocks]:
        """Return the blocks of clients in their order, in groups as large as one pass allows."""
        starts, rows = self._examples.get_starts(clients), self._examples.get_counts(clients)
        blocks = -(-rows // width)
        begins = width * (np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks))
        firsts = np.repeat(starts, blocks) + begins
        counts = np.minimum(width, np.repeat(rows, blocks) - begins)
        k = max(1, self._rows_at_once // width)
        return [
            RowBlocks(width, firsts[i : i + k], counts[i : i + k]) for i in range(0, len(firsts), k)
        ]

    def _split_blocks(self, blocks: Sequence[RowBlocks], count: int) -> list[WorkShare]:
        """Return the blocks divided among ``count`` workers, each share within ``rows_at_once``."""
        rows = [each.width * len(each.first) for each in blocks]
        max_rows = min(self._rows_at_once, math.ceil(sum(rows) / count))
        shares: list[list[RowBlocks]] = []
        available = 0
        for each, needed in zip(blocks, rows, strict=True):
            if needed > available or not shares:
                shares.append([])
                available = max_rows
            shares[-1].append(each)
            available -= needed
        return [self._build_share(each) for each in shares]

    def _build_share(self, blocks: Sequence[RowBlocks]) -> WorkShare:
        examples = self._examples
        numbers = math.prod(examples.input_shape)
        passes, rows, real_rows = [], [], []
        for each in blocks:
            capacity = compute_padded_rows(each.width, numbers, examples.dtype)
            within = np.arange(capacity)
            real = within < each.count[:, None]
            of_blocks = each.first[:, None] + np.where(real, within, 0)
            rows.append(of_blocks.reshape(-1))
            real_rows.append(of_blocks[real])
            used = torch.from_numpy(real[:, : each.width]).to(examples.device)
            passes.append(PaddedPass(capacity, each.width, used))
        return WorkShare(
            passes,
            torch.from_numpy(np.concatenate(rows)).to(examples.device),
            torch.from_numpy(np.concatenate(real_rows)).to(examples.device),
        )

    def _compute_stats(
        self, state: StackedTensors, share: WorkShare, metric_name: str, *, has_calibration: bool
    ) -> BatchStats:
        """Return loss terms and metric inputs for one work share."""
        gathered = self._examples.gather_inputs(share.rows).flatten(start_dim=1)
        outputs = []
        for each, x in zip(
            share.passes, gathered.split([p.num_gathered for p in share.passes]), strict=True
        ):
            of_blocks = x.view(len(each.real), each.capacity, -1)[:, : each.width]
            outputs.append(self._compute_outputs(state, of_blocks)[each.real])
        labels = self._examples.gather_labels(share.real_rows)
        return compute_batch_stats(
            torch.cat(outputs), labels, self._task, metric_name, has_calibration=has_calibration
        )

    def _compute_outputs(self, state: StackedTensors, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (k, b, c) of inputs (k, b, d)."""
        blocks = len(x)
        if blocks == 1 and any(1 in state[weight].shape for weight, _ in self._layers):
            # torch computes a product with a vector differently alone than as one of several.
            return self._compute_outputs(state, copy_aligned(x[0], 2))[:1]
        a = x.transpose(1, 2)  # (k, d, b)
        for layer, (weight, bias) in enumerate(self._layers):
            w = state[weight]
            if layer:
                a.clamp_(min=0)
            a = torch.baddbmm(
                state[bias].reshape(1, -1, 1),
                w.expand(blocks, *w.shape),
                a,
                out=create_aligned(blocks, (len(w), x.shape[1]), x.dtype, x.device),
            )
        return a.transpose(1, 2)


def _group_by_width(counts: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each block size with the indices of its clients, in order of first occurrence."""
    unique_counts, inverse = np.unique(counts, return_inverse=True)
    widths = np.array(
        [_compute_block_size(count) for count in unique_counts.tolist()], dtype=np.int64
    )[inverse]
    found, first = np.unique(widths, return_index=True)
    for width in found[np.argsort(first)].tolist():
        yield width, np.flatnonzero(widths == width)


def _compute_block_size(count: int) -> int:
    """Return the block size of a client with ``count`` rows; 0 without rows."""
    return (
        compute_padded_batch_size(math.ceil(count / math.ceil(count / BLOCK_ROWS)), BLOCK_ROWS)
        if count
        else 0
    )
