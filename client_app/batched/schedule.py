"""Which rows each client's local steps are on: the same as when it trains alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.examples import Examples
from client_app.randomness import Draws
from client_app.training import LocalTraining, batch_sizes

IntArray = NDArray[np.int64]
FEW = 32


@dataclass(frozen=True)
class Schedule:
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
    counts : tensor of bool
        Whether a row counts (S, K, W), with W at most B the number of samples that a step
        computes of every client.
    rates : tensor
        Learning rates (S, K).
    """

    order: tuple[int, ...]
    rows: torch.Tensor
    sizes: IntArray
    counts: torch.Tensor
    rates: torch.Tensor

    @cached_property
    def active(self) -> list[int]:
        """How many clients have each step: the first ones."""
        active: list[int] = np.count_nonzero(self.sizes, axis=1).tolist()
        return active


def local_schedule(
    clients: Sequence[int],
    draws: Sequence[Draws],
    examples: Examples,
    how: LocalTraining,
    *,
    t: int,
    normalises: bool,
    width: int | None = None,
    room: int = 0,
) -> Schedule:
    """Return the batches of ``clients`` in round ``t`` (from 0).

    Every client's order of samples is drawn from its own ``draws``, so that it does not depend
    on the others. A step computes ``width`` samples of every client, by default those of the
    largest batch. ``rows`` has room for at least ``room`` samples of a batch.

    Raises
    ------
    DataError
        If the model normalises batches and a client has none of two samples.
    """
    found = [examples.count(client) for client in clients]
    alike = {count: _steps_of(count, how, normalises=normalises) for count in set(found)}
    lengths = np.array([len(alike[count].sizes) for count in found])
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max())
    largest = max(int(steps.sizes.max()) for steps in alike.values())
    widest = max(room, largest)
    samples = {count: steps.samples(widest) for count, steps in alike.items()}
    rows = np.zeros((longest, len(clients), widest), dtype=np.int64)
    sizes = np.zeros((longest, len(clients)), dtype=np.int64)
    rates = np.zeros((longest, len(clients)))
    for place, i in enumerate(order.tolist()):
        count = found[i]
        steps, length = alike[count], lengths[i]
        shuffled = steps.shuffled(draws[i]("batches"), count) + examples.start(clients[i])
        rows[:length, place] = shuffled[samples[count]]
        sizes[:length, place] = steps.sizes
        rates[:length, place] = _rates(how, t, int(length))
    counts = np.arange(largest if width is None else width) < sizes[:, :, None]
    return Schedule(
        tuple(order.tolist()),
        torch.from_numpy(rows).to(examples.device),
        sizes,
        torch.from_numpy(counts).to(examples.device),
        torch.from_numpy(rates).to(examples.device, examples.dtype),
    )


@dataclass(frozen=True)
class _Steps:
    """The steps of a client, the same for all that have as many rows.

    Attributes
    ----------
    used : int
        How many samples of an epoch are in a batch.
    epochs : int
        How many epochs the steps begin.
    sizes : array of int64
        Of the batches (S,).
    """

    used: int
    epochs: int
    sizes: IntArray

    def shuffled(self, rng: np.random.Generator, count: int) -> IntArray:
        """Return a client's samples in the order of its steps, one epoch after the other."""
        epochs = [rng.permutation(count)[: self.used] for _ in range(self.epochs)]
        return np.concatenate(epochs) if len(epochs) > 1 else epochs[0]

    def samples(self, width: int) -> IntArray:
        """Return which of the shuffled samples are in each batch (S, width), see ``Schedule``."""
        first = np.cumsum(self.sizes) - self.sizes
        within = np.arange(width)
        return first[:, None] + np.where(within < self.sizes[:, None], within, 0)


def _steps_of(count: int, how: LocalTraining, *, normalises: bool) -> _Steps:
    epoch = batch_sizes(count, how.batch_size, normalises=normalises)
    steps = how.steps(count, normalises=normalises)
    epochs = -(-steps // len(epoch))
    return _Steps(sum(epoch), epochs, np.tile(np.array(epoch), epochs)[:steps])


def width_of(count: int, batch_size: int) -> int:
    """Return how many samples a step computes of a client with so many rows.

    It is the client's largest batch. Where the client has fewer rows than a batch it is rounded
    up, so that many clients have the same: to a power of two, above ``FEW`` rows to four widths
    for each doubling. A product of one sample is computed in another way alone than beside
    others, so there are at least two.
    """
    parts = 1 if count <= FEW else 4
    step = max(1, (1 << (count - 1).bit_length()) // (2 * parts))
    return max(2, min(batch_size, -(-count // step) * step))


def _rates(how: LocalTraining, t: int, steps: int) -> list[float]:
    if how.lr_schedule != "theorem":
        return [how.learning_rate(t, 0, steps)] * steps
    return [how.learning_rate(t, step, steps) for step in range(steps)]
