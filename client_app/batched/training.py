"""Local training of many clients in one pass."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from fedquorum.streams import stream
from numpy.typing import NDArray

from client_app.alone import NO_STARTS
from client_app.arrays import Arrays, sent
from client_app.augmentation import Augmentation
from client_app.batched.aligned import copies, padded_rows
from client_app.batched.gradients import (
    Batches,
    FunctionalGradients,
    Gradients,
    Stacked,
    dense_gradients,
)
from client_app.batched.schedule import Schedule, local_schedule, width_of
from client_app.costs import numbers_of_sample
from client_app.dropout import GivenDropout, dropouts
from client_app.examples import Examples
from client_app.randomness import Draws
from client_app.training import LocalTraining, TrainingSetup, normalises_batches

MODELS = 4  # a client's model, direction, gradient and the copy in the result
ACTIVATIONS = 2  # and their gradients
AT_ONCE = 2**25  # bytes of inputs of a round that are gathered in one go


class BatchedTraining:
    """Trains the clients of a process together, each as ``client_app.training.train`` would.

    w_k <- w_k - lr v_k,  v_k <- momentum v_k + grad F_k(w_k; batch) + weight_decay w_k
    + mu (w_k - x_k), x_k its start, for all clients k at once. Each has the batches, augmentation
    and dropout of a client that trains alone, and is equal to it up to rounding. In closed form its
    bits do not depend on the clients beside it; with ``torch.func.vmap`` they do.

    Parameters
    ----------
    setup : TrainingSetup
        What they are trained with; of its model only the structure is used.
    memory_bytes : int
        About how much the models, gradients and activations of the clients that train at the
        same time may take; at least one client does.
    """

    def __init__(self, setup: TrainingSetup, *, memory_bytes: int) -> None:
        model, task = setup.model, setup.task
        self._model = model
        self._examples = setup.examples
        self._how = setup.how
        self._seed = setup.seed
        self._memory_bytes = memory_bytes
        self._dense = dense_gradients(model, task)
        self._gradients = self._dense or FunctionalGradients(model, task, compiled=setup.compiled)
        self._normalises = normalises_batches(model)
        self._trained = [name for name, p in model.named_parameters() if p.requires_grad]
        self._names = list(model.state_dict())
        self._masked = list(dropouts(model))

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
        for chunk in self.chunks(clients):
            places, models = self.train_chunk(arrays, clients, chunk, t)
            for whole, trained in zip(stacked, models, strict=True):
                whole.index_copy_(0, torch.tensor(places, device=device), trained)
        return stacked

    def chunks(self, clients: Sequence[int], at_least: int = 1) -> list[list[int]]:
        """Return the places of clients that train at the same time, as many as memory allows.

        In closed form they have one width: the products of a client then have one shape.

        Parameters
        ----------
        clients : sequence of int
            Who trains.
        at_least : int
            Into how many parts clients of one width are divided, as far as there are so many.
        """
        widths = defaultdict[int | None, list[int]](list)
        for place, client in enumerate(clients):
            widths[self._width(client)].append(place)
        chunks = []
        for places in widths.values():
            largest = max((clients[i] for i in places), key=self._examples.count)
            count = max(1, self._memory_bytes // self._bytes_of_client(largest))
            groups = max(at_least, math.ceil(len(places) / count))
            size = math.ceil(len(places) / groups)
            chunks += [places[low : low + size] for low in range(0, len(places), size)]
        return chunks

    @torch.no_grad()
    def train_chunk(
        self,
        arrays: Arrays,
        clients: Sequence[int],
        chunk: Sequence[int],
        t: int,
        starts: Mapping[int, Arrays] = NO_STARTS,
    ) -> tuple[list[int], list[torch.Tensor]]:
        """Return places of ``clients`` and the models of those clients after round ``t``, stacked.

        Parameters
        ----------
        arrays, clients, t
            As for ``train``.
        chunk : sequence of int
            One of ``chunks``.
        starts : mapping of int to Arrays
            The models of the clients that start from another one than ``arrays``.
        """
        self._model.train()
        others = {k: self._named(starts[k]) for k in (clients[i] for i in chunk) if k in starts}
        models, order = self._train_chunk(
            self._named(arrays), [clients[i] for i in chunk], t, others
        )
        return [chunk[i] for i in order], list(models.values())

    def _named(self, arrays: Arrays) -> Stacked:
        """Return a model's arrays by name, on the device."""
        return {
            name: torch.from_numpy(array).to(self._examples.device)
            for name, array in zip(self._names, arrays, strict=True)
        }

    def _width(self, client: int) -> int | None:
        """Return how many samples a step computes of a client, None for those of its batch."""
        if not self.closed_form:
            return None
        return width_of(self._examples.count(client), self._how.batch_size)

    def _train_chunk(
        self, received: Stacked, clients: Sequence[int], t: int, others: Mapping[int, Stacked]
    ) -> tuple[Stacked, tuple[int, ...]]:
        """Return the stacked models and which of ``clients`` is in which place.

        ``others`` are the models of clients that do not start from the one received.
        """
        examples, width = self._examples, self._width(clients[0])
        draws = [partial(stream, self._seed, round_number=t + 1, client=k) for k in clients]
        room = 0
        if width is not None:
            room = padded_rows(width, math.prod(examples.input_shape), examples.dtype)
        schedule = local_schedule(
            clients,
            draws,
            examples,
            self._how,
            t=t,
            normalises=self._normalises,
            width=width,
            room=room,
        )
        scale = torch.ones_like(schedule.rates) if self._directs else -schedule.rates
        source = _Batches(
            examples,
            schedule,
            self._gradients,
            scale,
            how=self._how,
            draws=[draws[i] for i in schedule.order],
            masked=self._masked,
        )
        like = received
        if self._dense is not None:
            received = self._dense.padded(received)
        models = {name: copies(tensor, len(clients)) for name, tensor in received.items()}
        self._begin_elsewhere(models, [others.get(clients[i]) for i in schedule.order])
        starts = {
            name: models[name].clone() if others else received[name].expand_as(models[name])
            for name in self._trained
            if self._how.proximal_mu
        }
        directions = {
            name: copies(torch.zeros_like(received[name]), len(clients))
            for name in self._trained
            if self._directs
        }
        m = 0
        for step in range(len(schedule.sizes)):
            batches = source.batches(step)
            if m != len(batches.sizes):
                m = len(batches.sizes)
                buffers = {name: tensor[:m] for name, tensor in models.items()}
                parameters = {name: buffers.pop(name) for name in self._trained}
                v = {name: tensor[:m] for name, tensor in directions.items()}
                begun = {name: tensor[:m] for name, tensor in starts.items()}
                state = _State(begun, parameters, buffers, v)
            if self._directs:
                self._directed_step(state, batches, schedule.rates[step, :m])
            else:
                self._gradient_step(state, batches, t)
        if self._dense is not None:
            models = self._dense.trimmed(models, like)
        return models, schedule.order

    def _begin_elsewhere(self, models: Stacked, starts: Sequence[Stacked | None]) -> None:
        """Put the start models of clients that have one in the places of the one received."""
        for place, start in enumerate(starts):
            if start is None:
                continue
            padded = start if self._dense is None else self._dense.padded(start)
            for name, tensor in padded.items():
                models[name][place].copy_(tensor)

    @property
    def _pull(self) -> float:
        """What a step adds of w to the gradient."""
        return self._how.weight_decay + self._how.proximal_mu

    @property
    def _directs(self) -> bool:
        """Whether v is kept; else a step is on w itself, with one rate for all clients."""
        one_rate = self._how.lr_schedule != "theorem"
        return self._how.momentum > 0 or (self._pull > 0 and not one_rate)

    def _gradient_step(self, state: "_State", batches: Batches, t: int) -> None:
        """Make w <- (1 - lr (decay + mu)) w - lr grad + lr mu x_k; the batches' scale is -lr."""
        rate = self._how.learning_rate(t, 0, 1) if self._pull else 0.0
        w, keep = state.parameters, 1.0 - rate * self._pull
        self._gradients.add(w, state.buffers, w, batches, keep=keep)
        if self._how.proximal_mu:
            for name, tensor in w.items():
                tensor.add_(state.starts[name], alpha=rate * self._how.proximal_mu)

    def _directed_step(self, state: "_State", batches: Batches, rates: torch.Tensor) -> None:
        """Make v <- momentum v + grad + (decay + mu) w - mu x_k, and w <- w - lr v."""
        w, v, momentum = state.parameters, state.directions, self._how.momentum
        self._gradients.add(w, state.buffers, v, batches, keep=momentum)
        for name, tensor in w.items():
            if self._pull:
                v[name].add_(tensor, alpha=self._pull)
            if self._how.proximal_mu:
                v[name].add_(state.starts[name], alpha=-self._how.proximal_mu)
            of_each = rates.reshape(-1, *[1] * (tensor.ndim - 1))
            tensor.addcmul_(v[name], of_each, value=-1.0)

    def _bytes_of_client(self, client: int) -> int:
        """Estimate what one client needs: models, gradients, a batch and its activations."""
        rows = min(self._how.batch_size, self._examples.count(client))
        model, sample = self._sizes
        return MODELS * model + ACTIVATIONS * rows * sample

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """The bytes of a model, and of one sample's inputs and activations."""
        x = self._examples.inputs(torch.tensor([0], device=self._examples.device))
        state = self._model.state_dict().values()
        model = sum(tensor.numel() * tensor.element_size() for tensor in state)
        return model, numbers_of_sample(self._model, x) * x.element_size()


@dataclass(frozen=True)
class _State:
    """What a step changes: the parameters w, the buffers and v of m clients; and their starts.

    The starts, to which mu pulls, are there with mu > 0 alone.
    """

    starts: Stacked
    parameters: Stacked
    buffers: Stacked
    directions: Stacked


class _Batches:
    """The batches of one schedule, step by step."""

    def __init__(
        self,
        examples: Examples,
        schedule: Schedule,
        gradients: Gradients,
        scale: torch.Tensor,
        *,
        how: LocalTraining,
        draws: Sequence[Draws],
        masked: Sequence[tuple[str, GivenDropout]],
    ) -> None:
        self._examples = examples
        self._schedule = schedule
        self._augments = how.augmentation != "none"
        self._augment = Augmentation(how.augmentation, draws, how.pixel_scale)
        self._masked = masked
        self._drops = [draw("dropout") for draw in draws] if masked else []
        self._rooms: dict[str, torch.Tensor] = {}
        self._gathered: torch.Tensor | None = None
        # What is small is there for all steps at once: a step of many small operations mostly
        # waits for them to begin.
        here = schedule.sizes > 0
        self._active = schedule.active
        sizes = torch.from_numpy(schedule.sizes[here]).to(examples.device, examples.dtype)
        places = sent(torch.from_numpy(np.flatnonzero(here)), examples.device)
        rows, counts, scale = (
            tensor.flatten(0, 1).index_select(0, places)
            for tensor in (schedule.rows, schedule.counts, scale)
        )
        self._width = counts.shape[1]
        labels = examples.labels(rows.reshape(-1)).unflatten(0, rows.shape)[:, : self._width]
        coefficients = gradients.coefficients(labels, counts, sizes, scale)
        self._labels = labels.split(self._active)
        self._coefficients = coefficients.split(self._active)
        self._rows = rows.split(self._active)
        self._inputs: tuple[torch.Tensor, ...] | None = None
        size = math.prod(examples.input_shape) * examples.dtype.itemsize
        if not self._augments and rows.numel() * size <= AT_ONCE:
            x = examples.inputs(rows.reshape(-1)).unflatten(0, rows.shape)
            self._inputs = x[:, : self._width].split(self._active)

    def batches(self, step: int) -> Batches:
        """Return the batches of a step, whose inputs stay valid until the next one is made."""
        sizes = self._schedule.sizes[step, : self._active[step]]
        return Batches(
            self._gather(step) if self._inputs is None else self._inputs[step],
            self._labels[step],
            sizes,
            {name: self._mask(layer, sizes) for name, layer in self._masked},
            self._coefficients[step],
            self._rooms,
        )

    def _gather(self, step: int) -> torch.Tensor:
        """Return the inputs (m, b, ...) of a step, in memory that all steps share."""
        examples, rows = self._examples, self._rows[step]
        flat = rows.reshape(-1)
        # In place, since gathering into fresh memory costs several times as much as the copy.
        if self._gathered is None or len(self._gathered) < len(flat):
            self._gathered = examples.inputs(flat)
        else:
            examples.inputs(flat, out=self._gathered[: len(flat)])
        inputs = self._gathered[: len(flat)]
        if self._augments:
            sizes = self._schedule.sizes[step, : self._active[step]]
            counted = np.flatnonzero(np.arange(rows.shape[1]) < sizes[:, None])
            places = sent(torch.from_numpy(counted), examples.device)
            changed = self._augment(inputs.index_select(0, places), sizes.tolist())
            inputs.index_copy_(0, places, changed)
        x: torch.Tensor = inputs.unflatten(0, rows.shape)[:, : self._width]
        return x

    def _mask(self, layer: GivenDropout, sizes: NDArray[np.int64]) -> torch.Tensor:
        masks = torch.zeros((len(sizes), self._width, *layer.shape), dtype=self._examples.dtype)
        for mask, size, rng in zip(masks, sizes.tolist(), self._drops, strict=False):
            mask[:size] = layer.draw(size, rng)
        return sent(masks, self._examples.device)
