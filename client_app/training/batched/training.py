"""Train many clients locally in one pass."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.data.base import to_device
from client_app.data.examples import Examples
from client_app.rng import RngFactory, build_rng_factory
from client_app.training.augmentation import Augmentation
from client_app.training.batched.aligned import compute_padded_rows, copy_aligned
from client_app.training.batched.gradients import (
    Batches,
    FunctionalGradients,
    Gradients,
    StackedTensors,
    build_dense_gradients,
)
from client_app.training.batched.schedule import (
    BatchSchedule,
    build_batch_schedule,
    compute_padded_batch_size,
)
from client_app.training.dropout import MaskedDropout, find_dropouts
from client_app.training.flops import count_sample_activations
from client_app.training.local_sgd import (
    Arrays,
    LocalSGDConfig,
    Rounds,
    TrainingSetup,
    has_batch_norm,
    list_rounds,
)
from client_app.training.sequential import NO_STARTS

MODEL_COPIES = 4  # a client's model, velocity, gradient and the copy in the result
ACTIVATION_COPIES = 2  # activations and their gradients
MAX_GATHERED_BYTES = {"cpu": 2**25, "cuda": 2**30}
"""Inputs of a round up to this size are gathered at once, because a step of many small operations
mostly waits for their start. A CPU's caches hold no more."""


class BatchedTrainer:
    """Train the clients of a process in batches, as ``local_sgd.train_model`` would.

    w_k <- w_k - lr v_k,  v_k <- momentum v_k + grad F_k(w_k; batch) + weight_decay w_k
    + mu (w_k - x_k), with x_k its start, for all clients k at once. Each client has the batches,
    augmentation and dropout of sequential training, and equals it up to rounding. In closed form
    its bits do not depend on the other clients; with ``torch.func.vmap`` they do.

    Parameters
    ----------
    setup : TrainingSetup
        Only the structure of its model is used.
    memory_bytes : int
        Approximate memory limit of the models, gradients and activations of the clients that train
        at the same time; at least one client trains.
    """

    def __init__(self, setup: TrainingSetup, *, memory_bytes: int) -> None:
        model, task = setup.model, setup.task
        self._model = model
        self._examples = setup.examples
        self._config = setup.config
        self._seed, self._rng_prefix = setup.seed, setup.rng_prefix
        self._memory_bytes = memory_bytes
        self._dense = build_dense_gradients(model, task)
        self._gradients = self._dense or FunctionalGradients(model, task, compiled=setup.compiled)
        self._has_batch_norm = has_batch_norm(model)
        self._trained = [name for name, p in model.named_parameters() if p.requires_grad]
        self._names = list(model.state_dict())
        self._masked = list(find_dropouts(model))

    @property
    def closed_form(self) -> bool:
        """Whether gradients are computed in closed form, without automatic differentiation."""
        return self._dense is not None

    def train(self, arrays: Arrays, clients: Sequence[int], t: int) -> list[torch.Tensor]:
        """Return the clients' models after round ``t`` (from 0), stacked.

        Parameters
        ----------
        arrays : list of array
            The received model, in the order of the model's ``state_dict``.
        clients : sequence of int
            At least one.
        t : int

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
        for chunk in self.plan_chunks(clients):
            indices, models = self.train_chunk(arrays, clients, chunk, t)
            for whole, trained in zip(stacked, models, strict=True):
                whole.index_copy_(0, torch.tensor(indices, device=device), trained)
        return stacked

    def plan_chunks(self, clients: Sequence[int], min_chunks: int = 1) -> list[list[int]]:
        """Return the indices of the clients of each chunk, as many clients as memory allows.

        In closed form the clients of a chunk have one width, so that a client's products have one
        shape.

        Parameters
        ----------
        clients : sequence of int
        min_chunks : int
            The minimum number of chunks of the clients of one width, if there are enough clients.
        """
        widths = defaultdict[int | None, list[int]](list)
        for index, client in enumerate(clients):
            widths[self._compute_width(client)].append(index)
        chunks = []
        for indices in widths.values():
            largest = max((clients[i] for i in indices), key=self._examples.count)
            count = max(1, self._memory_bytes // self._estimate_client_bytes(largest))
            groups = max(min_chunks, math.ceil(len(indices) / count))
            size = math.ceil(len(indices) / groups)
            chunks += [indices[low : low + size] for low in range(0, len(indices), size)]
        return chunks

    def split_by_rate(self, chunk: Sequence[int], rounds: Sequence[int]) -> list[list[int]]:
        """Return the parts of a chunk with one learning rate each, if a step needs one for all."""
        if self._uses_velocity or not self._total_decay:
            return [list(chunk)]
        parts = defaultdict[float, list[int]](list)
        for index in chunk:
            parts[self._config.compute_learning_rate(rounds[index], 0, 1)].append(index)
        return [*parts.values()]

    @torch.no_grad()
    def train_chunk(
        self,
        arrays: Arrays,
        clients: Sequence[int],
        chunk: Sequence[int],
        t: Rounds,
        starts: Mapping[int, Arrays] = NO_STARTS,
    ) -> tuple[list[int], list[torch.Tensor]]:
        """Return indices in ``clients`` and those clients' stacked models after round ``t``.

        Parameters
        ----------
        arrays, clients
            As for ``train``.
        t : int or sequence of int
            The round, or that of each of ``clients``.
        chunk : sequence of int
            One of ``plan_chunks``, and of ``split_by_rate`` if rounds differ.
        starts : mapping of int to Arrays
            The models of the clients that do not start from ``arrays``.
        """
        self._model.train()
        others = {k: starts[k] for k in (clients[i] for i in chunk) if k in starts}
        rounds = list_rounds(t, len(clients))
        models, order = self._train_chunk(
            self._to_named_tensors(arrays),
            [clients[i] for i in chunk],
            [rounds[i] for i in chunk],
            others,
        )
        return [chunk[i] for i in order], list(models.values())

    def _to_named_tensors(self, arrays: Arrays) -> StackedTensors:
        """Return a model's arrays by name, on the device."""
        return {
            name: torch.from_numpy(array).to(self._examples.device)
            for name, array in zip(self._names, arrays, strict=True)
        }

    def _compute_width(self, client: int) -> int | None:
        """Return the number of samples that a step computes for a client, or None."""
        if not self.closed_form:
            return None
        return compute_padded_batch_size(self._examples.count(client), self._config.batch_size)

    def _train_chunk(
        self,
        received: StackedTensors,
        clients: Sequence[int],
        rounds: Sequence[int],
        others: Mapping[int, Arrays],
    ) -> tuple[StackedTensors, tuple[int, ...]]:
        """Return the stacked models and the index in ``clients`` of each.

        ``others`` are the models of clients that do not start from the received one.
        """
        # All clients of a chunk have one width: a product's shape must not depend on the others.
        examples, width = self._examples, self._compute_width(clients[0])
        rng_factories = [
            build_rng_factory(self._seed, t + 1, client, self._rng_prefix)
            for client, t in zip(clients, rounds, strict=True)
        ]
        min_capacity = 0
        if width is not None:
            min_capacity = compute_padded_rows(
                width, math.prod(examples.input_shape), examples.dtype
            )
        # Every client has the batches of sequential training, drawn by a separate generator.
        schedule = build_batch_schedule(
            clients,
            rng_factories,
            examples,
            self._config,
            rounds=rounds,
            batch_norm=self._has_batch_norm,
            width=width,
            min_capacity=min_capacity,
        )
        # Without a velocity the gradients are added to w directly, so their scale is -lr.
        scale = (
            torch.ones_like(schedule.learning_rates)
            if self._uses_velocity
            else -schedule.learning_rates
        )
        source = _BatchSource(
            examples,
            schedule,
            self._gradients,
            scale,
            config=self._config,
            rng_factories=[rng_factories[i] for i in schedule.order],
            masked=self._masked,
        )
        reference = received
        # Padded units fill whole cache lines: the rounding of a product depends on the address of
        # its matrices.
        if self._dense is not None:
            received = self._dense.pad_units(received)
        models = {name: copy_aligned(tensor, len(clients)) for name, tensor in received.items()}
        self._load_starts(models, [others.get(clients[i]) for i in schedule.order])
        starts = {
            name: models[name].clone() if others else received[name].expand_as(models[name])
            for name in self._trained
            if self._config.proximal_mu
        }
        directions = {
            name: copy_aligned(torch.zeros_like(received[name]), len(clients))
            for name in self._trained
            if self._uses_velocity
        }
        m = 0
        for step in range(len(schedule.sizes)):
            batches = source.get_batches(step)
            # Clients with the most steps come first, so those that still train are a view.
            if m != len(batches.sizes):
                m = len(batches.sizes)
                buffers = {name: tensor[:m] for name, tensor in models.items()}
                parameters = {name: buffers.pop(name) for name in self._trained}
                v = {name: tensor[:m] for name, tensor in directions.items()}
                active_starts = {name: tensor[:m] for name, tensor in starts.items()}
                state = _TrainState(active_starts, parameters, buffers, v)
            if self._uses_velocity:
                self._apply_velocity_step(state, batches, schedule.learning_rates[step, :m])
            else:
                self._apply_gradient_step(state, batches, rounds[0])
        # The padding never leaves the trainer: its weights stay 0.
        if self._dense is not None:
            models = self._dense.trim_units(models, reference)
        return models, schedule.order

    def _load_starts(self, models: StackedTensors, starts: Sequence[Arrays | None]) -> None:
        """Overwrite the received model for clients that start from another one."""
        distinct = {id(start): start for start in starts if start is not None}
        if not distinct:
            return
        position = {identity: index for index, identity in enumerate(distinct)}
        rows = [row for row, start in enumerate(starts) if start is not None]
        sources = [position[id(starts[row])] for row in rows]
        stacked = self._to_named_tensors([*map(np.stack, zip(*distinct.values(), strict=True))])
        padded = stacked if self._dense is None else self._dense.pad_units(stacked)
        indices = torch.tensor([rows, sources], device=self._examples.device)
        for name, tensor in padded.items():
            models[name].index_copy_(0, indices[0], tensor.index_select(0, indices[1]))

    @property
    def _total_decay(self) -> float:
        """The coefficient of w in the direction of a step."""
        return self._config.weight_decay + self._config.proximal_mu

    @property
    def _uses_velocity(self) -> bool:
        """Whether v is stored; otherwise a step changes w directly, with one rate for all."""
        one_rate = self._config.lr_schedule != "theorem"
        return self._config.momentum > 0 or (self._total_decay > 0 and not one_rate)

    def _apply_gradient_step(self, state: "_TrainState", batches: Batches, t: int) -> None:
        """Apply w <- (1 - lr (decay + mu)) w - lr grad + lr mu x_k; the batches' scale is -lr.

        The rate lr is that of round ``t``, and of all rounds in the chunk if it is needed.
        """
        rate = self._config.compute_learning_rate(t, 0, 1) if self._total_decay else 0.0
        w, beta = state.parameters, 1.0 - rate * self._total_decay
        self._gradients.accumulate(w, state.buffers, w, batches, beta=beta)
        if self._config.proximal_mu:
            for name, tensor in w.items():
                tensor.add_(state.starts[name], alpha=rate * self._config.proximal_mu)

    def _apply_velocity_step(
        self, state: "_TrainState", batches: Batches, rates: torch.Tensor
    ) -> None:
        """Apply v <- momentum v + grad + (decay + mu) w - mu x_k, and w <- w - lr v."""
        w, v, momentum = state.parameters, state.velocities, self._config.momentum
        self._gradients.accumulate(w, state.buffers, v, batches, beta=momentum)
        for name, tensor in w.items():
            if self._total_decay:
                v[name].add_(tensor, alpha=self._total_decay)
            if self._config.proximal_mu:
                v[name].add_(state.starts[name], alpha=-self._config.proximal_mu)
            of_each = rates.reshape(-1, *[1] * (tensor.ndim - 1))
            tensor.addcmul_(v[name], of_each, value=-1.0)

    def _estimate_client_bytes(self, client: int) -> int:
        """Estimate one client's memory: models, gradients, a batch and its activations."""
        rows = min(self._config.batch_size, self._examples.count(client))
        model, sample = self._memory_sizes
        return MODEL_COPIES * model + ACTIVATION_COPIES * rows * sample

    @cached_property
    def _memory_sizes(self) -> tuple[int, int]:
        """The bytes of a model, and of one sample's inputs and activations."""
        x = self._examples.gather_inputs(torch.tensor([0], device=self._examples.device))
        state = self._model.state_dict().values()
        model = sum(tensor.numel() * tensor.element_size() for tensor in state)
        return model, count_sample_activations(self._model, x) * x.element_size()


@dataclass(frozen=True)
class _TrainState:
    """Parameters w, buffers and velocities v of m clients, which a step changes; and their starts.

    The starts, to which mu pulls, are set only if mu > 0.
    """

    starts: StackedTensors
    parameters: StackedTensors
    buffers: StackedTensors
    velocities: StackedTensors


class _BatchSource:
    """The batches of one schedule, step by step."""

    def __init__(
        self,
        examples: Examples,
        schedule: BatchSchedule,
        gradients: Gradients,
        scale: torch.Tensor,
        *,
        config: LocalSGDConfig,
        rng_factories: Sequence[RngFactory],
        masked: Sequence[tuple[str, MaskedDropout]],
    ) -> None:
        self._examples = examples
        self._schedule = schedule
        self._augment = None
        if config.augmentation != "none":
            self._augment = Augmentation(config.augmentation, rng_factories, config.pixel_scale)
        self._masked = masked
        self._dropout_rngs = [factory("dropout") for factory in rng_factories] if masked else []
        self._workspaces: dict[str, torch.Tensor] = {}
        self._gathered: torch.Tensor | None = None
        # Small tensors are computed for all steps at once: a step of many small operations mostly
        # waits for their start.
        is_active = schedule.sizes > 0
        self._active = schedule.num_active
        sizes = torch.from_numpy(schedule.sizes[is_active]).to(examples.device, examples.dtype)
        indices = to_device(torch.from_numpy(np.flatnonzero(is_active)), examples.device)
        rows, counts, scale = (
            tensor.flatten(0, 1).index_select(0, indices)
            for tensor in (schedule.rows, schedule.mask, scale)
        )
        self._width = counts.shape[1]
        labels = examples.gather_labels(rows.reshape(-1)).unflatten(0, rows.shape)[:, : self._width]
        coefficients = gradients.compute_coefficients(labels, counts, sizes, scale)
        self._labels = labels.split(self._active)
        self._coefficients = coefficients.split(self._active)
        self._rows = rows.split(self._active)
        self._inputs: tuple[torch.Tensor, ...] | None = None
        size = math.prod(examples.input_shape) * examples.dtype.itemsize
        limit = MAX_GATHERED_BYTES["cpu" if examples.device.type == "cpu" else "cuda"]
        if self._augment is None and rows.numel() * size <= limit:
            x = examples.gather_inputs(rows.reshape(-1)).unflatten(0, rows.shape)
            self._inputs = x[:, : self._width].split(self._active)

    def get_batches(self, step: int) -> Batches:
        """Return the batches of a step; their inputs stay valid until the next step."""
        sizes = self._schedule.sizes[step, : self._active[step]]
        return Batches(
            self._gather_inputs(step) if self._inputs is None else self._inputs[step],
            self._labels[step],
            sizes,
            {name: self._draw_masks(layer, sizes) for name, layer in self._masked},
            self._coefficients[step],
            self._workspaces,
        )

    def _gather_inputs(self, step: int) -> torch.Tensor:
        """Return the inputs (m, b, ...) of a step, in memory that all steps share."""
        examples, rows = self._examples, self._rows[step]
        flat = rows.reshape(-1)
        # In place, because gathering into new memory takes several times as long as the copy.
        if self._gathered is None or len(self._gathered) < len(flat):
            self._gathered = examples.gather_inputs(flat)
        else:
            examples.gather_inputs(flat, out=self._gathered[: len(flat)])
        inputs = self._gathered[: len(flat)]
        if self._augment is not None:
            sizes = self._schedule.sizes[step, : self._active[step]]
            counted = np.flatnonzero(np.arange(rows.shape[1]) < sizes[:, None])
            indices = to_device(torch.from_numpy(counted), examples.device)
            changed = self._augment(inputs.index_select(0, indices), sizes.tolist())
            inputs.index_copy_(0, indices, changed)
        x: torch.Tensor = inputs.unflatten(0, rows.shape)[:, : self._width]
        return x

    def _draw_masks(self, layer: MaskedDropout, sizes: NDArray[np.int64]) -> torch.Tensor:
        masks = torch.zeros((len(sizes), self._width, *layer.shape), dtype=self._examples.dtype)
        for mask, size, rng in zip(masks, sizes.tolist(), self._dropout_rngs, strict=False):
            mask[:size] = layer.draw_mask(size, rng)
        return to_device(masks, self._examples.device)
