"""Local training of many clients in one pass."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from fedquorum.streams import stream
from numpy.typing import NDArray
from torch import nn

from client_app.augmentation import Augmentation
from client_app.batched.gradients import Batches, FunctionalGradients, Stacked, dense_gradients
from client_app.batched.schedule import Schedule, local_schedule
from client_app.costs import numbers_of_sample
from client_app.dropout import GivenDropout, dropouts
from client_app.examples import Examples
from client_app.measurements import Arrays
from client_app.randomness import Draws
from client_app.tasks import Task
from client_app.training import LocalTraining, normalises_batches

MODELS = 4  # a client's model, direction, gradient and the copy in the result
ACTIVATIONS = 2  # and their gradients
AT_ONCE = 2**25  # bytes of inputs of a round that are gathered in one go


class BatchedTraining:
    """Trains the clients of a process together; each ends as if it had trained alone.

    w_k <- w_k - lr v_k,  v_k <- momentum v_k + grad F_k(w_k; batch) + weight_decay w_k
    + mu (w_k - w_t), for all clients k at once, with the batches, augmentation and dropout that
    ``client_app.training.train`` gives each of them; equal to rounding.

    Parameters
    ----------
    model : torch.nn.Module
        The model; only its structure is used.
    examples : Examples
        The clients' training rows.
    how : LocalTraining
        Hyperparameters of local training.
    task : Task
        The loss.
    seed : int
        The run's seed.
    compiled : bool
        Whether automatic gradients go through ``torch.compile``.
    memory_bytes : int
        About how much the models, gradients and activations of the clients that train at the
        same time may take; at least one client does.
    """

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        how: LocalTraining,
        task: Task,
        *,
        seed: int,
        compiled: bool = False,
        memory_bytes: int,
    ) -> None:
        self._model = model
        self._examples = examples
        self._how = how
        self._seed = seed
        self._memory_bytes = memory_bytes
        self._dense = dense_gradients(model, task)
        self._gradients = self._dense or FunctionalGradients(model, task, compiled=compiled)
        self._normalises = normalises_batches(model)
        self._trained = [name for name, p in model.named_parameters() if p.requires_grad]
        self._names = list(model.state_dict())
        self._masked = list(dropouts(model))
        self._numbers: int | None = None

    @property
    def closed_form(self) -> bool:
        """Whether the gradients need no automatic differentiation."""
        return self._dense is not None

    def train(self, arrays: Arrays, clients: Sequence[int], t: int) -> list[torch.Tensor]:
        """Return the clients' models after round ``t`` (from 0), stacked.

        Parameters
        ----------
        arrays : list of array
            The received model, in the order of the model's ``state_dict``.
        clients : sequence of int
            Who trains, at least one.
        t : int
            Round.

        Returns
        -------
        list of tensor
            For each of ``arrays`` (len(clients), *shape), on the device.
        """
        device = self._examples.device
        stacked = [
            torch.empty((len(clients), *a.shape), dtype=torch.from_numpy(a).dtype, device=device)
            for a in arrays
        ]
        for places, models in self.models(arrays, clients, t):
            for whole, trained in zip(stacked, models, strict=True):
                whole.index_copy_(0, torch.tensor(places, device=device), trained)
        return stacked

    @torch.no_grad()
    def models(
        self, arrays: Arrays, clients: Sequence[int], t: int
    ) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """Yield as many models at once as memory allows, and the places of their clients."""
        device = self._examples.device
        received = {
            name: torch.from_numpy(array).to(device)
            for name, array in zip(self._names, arrays, strict=True)
        }
        self._model.train()
        for low, chunk in self._chunks(clients):
            models, order = self._train_chunk(received, chunk, t)
            yield [low + i for i in order], list(models.values())

    def _chunks(self, clients: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Divide the clients into as few groups as memory allows, in order."""
        largest = max(clients, key=self._examples.count)
        count = max(1, self._memory_bytes // self._bytes_of_client(largest))
        groups = math.ceil(len(clients) / count)
        size = math.ceil(len(clients) / groups)
        for low in range(0, len(clients), size):
            yield low, clients[low : low + size]

    def _train_chunk(
        self, received: Stacked, clients: Sequence[int], t: int
    ) -> tuple[Stacked, tuple[int, ...]]:
        """Return the stacked models and which of ``clients`` is in which place."""
        draws = [partial(stream, self._seed, round_number=t + 1, client=k) for k in clients]
        schedule = local_schedule(
            clients, draws, self._examples, self._how, t=t, normalises=self._normalises
        )
        source = _Batches(
            self._examples, schedule, self._how, [draws[i] for i in schedule.order], self._masked
        )
        models = {
            name: tensor.expand(len(clients), *tensor.shape).clone()
            for name, tensor in received.items()
        }
        directions = {
            name: torch.zeros_like(models[name]) for name in self._trained if not self._how.plain
        }
        down = -schedule.rates
        parameters: Stacked = {}
        m = 0
        for step in range(len(schedule.sizes)):
            batches = source.batches(step)
            if m != len(batches.sizes):
                m = len(batches.sizes)
                now = {name: tensor[:m] for name, tensor in models.items()}
                parameters = {name: now.pop(name) for name in self._trained}
                v = {name: tensor[:m] for name, tensor in directions.items()}
            if self._how.plain:
                self._gradients.add(parameters, now, parameters, batches, down[step, :m])
                continue
            rates = schedule.rates[step, :m]
            for direction in v.values():
                direction.mul_(self._how.momentum)
            self._gradients.add(parameters, now, v, batches, torch.ones_like(rates))
            for name, w in parameters.items():
                v[name].add_(w, alpha=self._how.weight_decay + self._how.mu)
                v[name].add_(received[name], alpha=-self._how.mu)
                w.sub_(v[name] * rates.reshape(m, *[1] * (w.ndim - 1)))
        return models, schedule.order

    def _bytes_of_client(self, client: int) -> int:
        """Estimate what one client needs: models, gradients, a batch and its activations."""
        first = torch.tensor([self._examples.start(client)], device=self._examples.device)
        x = self._examples.inputs(first)
        rows = min(self._how.batch_size, self._examples.count(client))
        if self._numbers is None:
            self._numbers = numbers_of_sample(self._model, x)
        model: int = sum(t.numel() * t.element_size() for t in self._model.state_dict().values())
        return MODELS * model + ACTIVATIONS * rows * self._numbers * x.element_size()


class _Batches:
    """The batches of one schedule, step by step."""

    def __init__(
        self,
        examples: Examples,
        schedule: Schedule,
        how: LocalTraining,
        draws: Sequence[Draws],
        masked: Sequence[tuple[str, GivenDropout]],
    ) -> None:
        self._examples = examples
        self._schedule = schedule
        self._augments = how.augmentation != "none"
        self._augment = Augmentation(how.augmentation, draws)
        self._masked = masked
        self._drops = [draw("dropout") for draw in draws] if masked else []
        self._inputs: torch.Tensor | None = None
        self._labels = self._of_all(examples.labels(schedule.rows.reshape(-1)))
        self._all_inputs: torch.Tensor | None = None
        size = math.prod(examples.input_shape) * examples.dtype.itemsize
        if not self._augments and schedule.rows.numel() * size <= AT_ONCE:
            self._all_inputs = self._of_all(examples.inputs(schedule.rows.reshape(-1)))

    def _of_all(self, flat: torch.Tensor) -> torch.Tensor:
        """Return what is there for all rows of the schedule, (S, K, B, ...)."""
        return flat.view(*self._schedule.rows.shape, *flat.shape[1:])

    def batches(self, step: int) -> Batches:
        """Return the batches of a step, whose inputs stay valid until the next one is made."""
        schedule = self._schedule
        m, b, whole = schedule.extents[step]
        sizes = schedule.sizes[step, :m]
        counts = None
        if schedule.counts is not None and not whole:
            counts = schedule.counts[step, :m, :b]
        if self._all_inputs is not None:
            x = self._all_inputs[step, :m, :b]
        else:
            x = self._gather(schedule.rows[step, :m, :b].reshape(-1))
            if self._augments:
                x = self._augmented(x, sizes, counts)
            x = x.view(m, b, *x.shape[1:])
        return Batches(
            x,
            self._labels[step, :m, :b],
            sizes,
            counts,
            {name: self._mask(layer, sizes, b) for name, layer in self._masked},
        )

    def _gather(self, rows: torch.Tensor) -> torch.Tensor:
        # In place, since gathering into fresh memory costs several times as much as the copy.
        if self._inputs is None or len(self._inputs) < len(rows):
            self._inputs = self._examples.inputs(rows)
            return self._inputs
        return self._examples.inputs(rows, out=self._inputs[: len(rows)])

    def _augmented(
        self, x: torch.Tensor, sizes: NDArray[np.int64], counts: torch.Tensor | None
    ) -> torch.Tensor:
        if counts is None:
            return self._augment(x, sizes.tolist())
        places = counts.reshape(-1).nonzero().squeeze(1)
        return x.index_copy(0, places, self._augment(x[places], sizes.tolist()))

    def _mask(self, layer: GivenDropout, sizes: NDArray[np.int64], b: int) -> torch.Tensor:
        masks = torch.zeros((len(sizes), b, *layer.shape), dtype=self._examples.dtype)
        for mask, size, rng in zip(masks, sizes.tolist(), self._drops, strict=False):
            mask[:size] = layer.draw(size, rng)
        return masks.to(self._examples.device)
