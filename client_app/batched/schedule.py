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
    batches = [
        _batches(examples, client, how, drawn, normalises=normalises)
        for client, drawn in zip(clients, draws, strict=True)
    ]
    steps = np.array([len(sizes) for _, sizes in batches])
    order = np.argsort(-steps, kind="stable")
    longest = int(steps.max())
    largest = max(int(sizes.max()) for _, sizes in batches)
    widest = max(room, largest)
    rows = np.zeros((longest, len(batches), widest), dtype=np.int64)
    sizes = np.zeros((longest, len(batches)), dtype=np.int64)
    rates = np.zeros((longest, len(batches)))
    for place, position in enumerate(order):
        flat, taken = batches[position]
        first = np.cumsum(taken) - taken
        within = np.arange(widest)
        columns = np.where(within < taken[:, None], within, 0)
        rows[: len(taken), place] = flat[first[:, None] + columns]
        sizes[: len(taken), place] = taken
        rates[: len(taken), place] = _rates(how, t, len(taken))
    counts = np.arange(largest if width is None else width) < sizes[:, :, None]
    return Schedule(
        tuple(order.tolist()),
        torch.from_numpy(rows).to(examples.device),
        sizes,
        torch.from_numpy(counts).to(examples.device),
        torch.from_numpy(rates).to(examples.device, examples.dtype),
    )


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


def _batches(
    examples: Examples, client: int, how: LocalTraining, draws: Draws, *, normalises: bool
) -> tuple[IntArray, IntArray]:
    """Return a client's rows in the order of its steps, and how many each step takes."""
    count = examples.count(client)
    steps = how.steps(count, normalises=normalises)
    epoch = batch_sizes(count, how.batch_size, normalises=normalises)
    epochs = -(-steps // len(epoch))
    rng = draws("batches")
    flat = np.concatenate([rng.permutation(count)[: sum(epoch)] for _ in range(epochs)])
    return flat + examples.start(client), np.tile(np.array(epoch), epochs)[:steps]


def _rates(how: LocalTraining, t: int, steps: int) -> list[float]:
    if how.lr_schedule != "theorem":
        return [how.learning_rate(t, 0, steps)] * steps
    return [how.learning_rate(t, step, steps) for step in range(steps)]
