"""Assign rows to each client's local steps, exactly as in sequential training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.data.examples import Examples
from client_app.rng import RngFactory
from client_app.training.local_sgd import LocalSGDConfig, compute_batch_sizes

IntArray = NDArray[np.int64]
MAX_POWER_OF_TWO_ROWS = 32
"""Above this many rows, four widths for each doubling keep the padding below a quarter."""


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of K clients, those with the most local steps first.

    Attributes
    ----------
    order : tuple of int
        The index among the given clients of the client in each position.
    rows : tensor of int64
        Rows of the examples (S, K, B), with B at least the largest batch. Smaller batches, and
        steps that a client does not have, are padded with its first row.
    sizes : array of int64
        True sizes of the batches (S, K), 0 for steps that a client does not have.
    mask : tensor of bool
        Whether a row counts (S, K, W); W <= B is the number of samples that a step computes for
        every client.
    learning_rates : tensor
        Learning rates (S, K).
    """

    order: tuple[int, ...]
    rows: torch.Tensor
    sizes: IntArray
    mask: torch.Tensor
    learning_rates: torch.Tensor

    @cached_property
    def num_active(self) -> list[int]:
        """The number of clients that have each step; they are the first ones."""
        active: list[int] = np.count_nonzero(self.sizes, axis=1).tolist()
        return active


def build_batch_schedule(
    clients: Sequence[int],
    rng_factories: Sequence[RngFactory],
    examples: Examples,
    config: LocalSGDConfig,
    *,
    rounds: Sequence[int],
    batch_norm: bool,
    width: int | None = None,
    min_capacity: int = 0,
) -> BatchSchedule:
    """Return the batches of ``clients``, each in its round (from 0).

    Every client has a separate generator for the order of its samples, so the order does not depend
    on the others. A step computes ``width`` samples for every client, by default the size of the
    largest batch. The last axis of ``rows`` has at least ``min_capacity`` samples.

    Raises
    ------
    DataError
        If the model has batch normalization and a client has no batch of two samples.
    """
    counts = [examples.count(client) for client in clients]
    steps_by_count = {
        count: _compute_steps(count, config, batch_norm=batch_norm) for count in set(counts)
    }
    lengths = np.array([len(steps_by_count[count].sizes) for count in counts])
    order = np.argsort(-lengths, kind="stable")
    max_steps = int(lengths.max())
    max_batch = max(int(steps.sizes.max()) for steps in steps_by_count.values())
    widest = max(min_capacity, max_batch)
    samples = {
        count: steps.compute_batch_indices(widest) for count, steps in steps_by_count.items()
    }
    rows = np.zeros((max_steps, len(clients), widest), dtype=np.int64)
    sizes = np.zeros((max_steps, len(clients)), dtype=np.int64)
    rates = np.zeros((max_steps, len(clients)))
    for position, i in enumerate(order.tolist()):
        count = counts[i]
        steps, length = steps_by_count[count], lengths[i]
        shuffled = steps.shuffle_rows(rng_factories[i]("batches"), count) + examples.get_start(
            clients[i]
        )
        rows[:length, position] = shuffled[samples[count]]
        sizes[:length, position] = steps.sizes
        rates[:length, position] = _compute_learning_rates(config, rounds[i], int(length))
    mask = np.arange(max_batch if width is None else width) < sizes[:, :, None]
    return BatchSchedule(
        tuple(order.tolist()),
        torch.from_numpy(rows).to(examples.device),
        sizes,
        torch.from_numpy(mask).to(examples.device),
        torch.from_numpy(rates).to(examples.device, examples.dtype),
    )


@dataclass(frozen=True)
class _ClientSteps:
    """The local steps of every client with a given number of rows.

    Attributes
    ----------
    num_used : int
        Number of samples of an epoch that are in a batch.
    num_epochs : int
        Number of epochs that the steps start.
    sizes : array of int64
        Sizes of the batches (S,).
    """

    num_used: int
    num_epochs: int
    sizes: IntArray

    def shuffle_rows(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return a client's shuffled samples, one epoch after the other."""
        epochs = [rng.permutation(count)[: self.num_used] for _ in range(self.num_epochs)]
        return np.concatenate(epochs) if len(epochs) > 1 else epochs[0]

    def compute_batch_indices(self, width: int) -> IntArray:
        """Return the indices in the shuffled samples of each batch (S, width)."""
        first = np.cumsum(self.sizes) - self.sizes
        within = np.arange(width)
        return first[:, None] + np.where(within < self.sizes[:, None], within, 0)


def _compute_steps(count: int, config: LocalSGDConfig, *, batch_norm: bool) -> _ClientSteps:
    epoch = compute_batch_sizes(count, config.batch_size, batch_norm=batch_norm)
    steps = config.count_steps(count, batch_norm=batch_norm)
    epochs = -(-steps // len(epoch))
    return _ClientSteps(sum(epoch), epochs, np.tile(np.array(epoch), epochs)[:steps])


def compute_padded_batch_size(count: int, batch_size: int) -> int:
    """Return the number of samples that a step computes for a client with ``count`` rows.

    It is the client's largest batch. If the client has fewer rows than a batch, it is rounded up so
    that many clients share a width: to a power of two, and above ``MAX_POWER_OF_TWO_ROWS`` rows to
    one of four widths for each doubling. It is at least two, because torch computes a product of
    one sample differently alone than with others.
    """
    widths_per_doubling = 1 if count <= MAX_POWER_OF_TWO_ROWS else 4
    step = max(1, (1 << (count - 1).bit_length()) // (2 * widths_per_doubling))
    return max(2, min(batch_size, -(-count // step) * step))


def _compute_learning_rates(config: LocalSGDConfig, t: int, steps: int) -> list[float]:
    if config.lr_schedule != "theorem":
        return [config.compute_learning_rate(t, 0, steps)] * steps
    return [config.compute_learning_rate(t, step, steps) for step in range(steps)]
