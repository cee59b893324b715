"""Which rows each client's local steps are on: the same as when it trains alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.examples import Examples
from client_app.rng import RngFactory
from client_app.training import LocalSGDConfig, compute_batch_sizes

IntArray = NDArray[np.int64]
MAX_POWER_OF_TWO_ROWS = 32


@dataclass(frozen=True)
class BatchSchedule:
    """The batches of K clients, those with the most local steps first.

    Attributes
    ----------
    order : tuple of int
        Which of the clients asked is in which place.
    rows : tensor of int64
        Rows of the examples (S, K, B), B the largest batch or more; a batch that is smaller, or
        of a client without so many steps, repeats its first row.
    sizes : array of int64
        True sizes of the batches (S, K), 0 where a client has no such step.
    mask : tensor of bool
        Whether a row counts (S, K, W), with W at most B the number of samples that a step
        computes of every client.
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
        """How many clients have each step: the first ones."""
        active: list[int] = np.count_nonzero(self.sizes, axis=1).tolist()
        return active


def build_batch_schedule(
    clients: Sequence[int],
    rng_factories: Sequence[RngFactory],
    examples: Examples,
    config: LocalSGDConfig,
    *,
    t: int,
    batch_norm: bool,
    width: int | None = None,
    min_capacity: int = 0,
) -> BatchSchedule:
    """Return the batches of ``clients`` in round ``t`` (from 0).

    Every client's order of samples is drawn from its own ``rng_factories``, so that it does not depend
    on the others. A step computes ``width`` samples of every client, by default those of the
    largest batch. ``rows`` has room for at least ``min_capacity`` samples of a batch.

    Raises
    ------
    DataError
        If the model normalizes batches and a client has none of two samples.
    """
    counts = [examples.count(client) for client in clients]
    steps_by_count = {count: _compute_steps(count, config, batch_norm=batch_norm) for count in set(counts)}
    lengths = np.array([len(steps_by_count[count].sizes) for count in counts])
    order = np.argsort(-lengths, kind="stable")
    max_steps = int(lengths.max())
    max_batch = max(int(steps.sizes.max()) for steps in steps_by_count.values())
    widest = max(min_capacity, max_batch)
    samples = {count: steps.compute_batch_indices(widest) for count, steps in steps_by_count.items()}
    rows = np.zeros((max_steps, len(clients), widest), dtype=np.int64)
    sizes = np.zeros((max_steps, len(clients)), dtype=np.int64)
    rates = np.zeros((max_steps, len(clients)))
    for position, i in enumerate(order.tolist()):
        count = counts[i]
        steps, length = steps_by_count[count], lengths[i]
        shuffled = steps.shuffle(rng_factories[i]("batches"), count) + examples.get_start(
            clients[i]
        )
        rows[:length, position] = shuffled[samples[count]]
        sizes[:length, position] = steps.sizes
        rates[:length, position] = _compute_learning_rates(config, t, int(length))
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
    """The steps of a client, the same for all that have as many rows.

    Attributes
    ----------
    num_used : int
        How many samples of an epoch are in a batch.
    num_epochs : int
        How many epochs the steps begin.
    sizes : array of int64
        Of the batches (S,).
    """

    num_used: int
    num_epochs: int
    sizes: IntArray

    def shuffle(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return a client's samples in the order of its steps, one epoch after the other."""
        epochs = [rng.permutation(count)[: self.num_used] for _ in range(self.num_epochs)]
        return np.concatenate(epochs) if len(epochs) > 1 else epochs[0]

    def compute_batch_indices(self, width: int) -> IntArray:
        """Return which of the shuffled samples are in each batch (S, width), see ``BatchSchedule``."""
        first = np.cumsum(self.sizes) - self.sizes
        within = np.arange(width)
        return first[:, None] + np.where(within < self.sizes[:, None], within, 0)


def _compute_steps(count: int, config: LocalSGDConfig, *, batch_norm: bool) -> _ClientSteps:
    epoch = compute_batch_sizes(count, config.batch_size, batch_norm=batch_norm)
    steps = config.count_steps(count, batch_norm=batch_norm)
    epochs = -(-steps // len(epoch))
    return _ClientSteps(sum(epoch), epochs, np.tile(np.array(epoch), epochs)[:steps])


def compute_padded_batch_size(count: int, batch_size: int) -> int:
    """Return how many samples a step computes of a client with so many rows.

    It is the client's largest batch. Where the client has fewer rows than a batch it is rounded
    up, so that many clients have the same: to a power of two, above ``FEW`` rows to four widths
    for each doubling. A product of one sample is computed in another way alone than beside
    others, so there are at least two.
    """
    widths_per_doubling = 1 if count <= MAX_POWER_OF_TWO_ROWS else 4
    step = max(1, (1 << (count - 1).bit_length()) // (2 * widths_per_doubling))
    return max(2, min(batch_size, -(-count // step) * step))


def _compute_learning_rates(config: LocalSGDConfig, t: int, steps: int) -> list[float]:
    if config.lr_schedule != "theorem":
        return [config.compute_learning_rate(t, 0, steps)] * steps
    return [config.compute_learning_rate(t, step, steps) for step in range(steps)]
