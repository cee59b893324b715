"""Compute gradients of the mean losses of many clients at once, each with a separate model.

Shapes: m clients; b samples in a batch. *Stacked* means with a leading axis over the clients.
"""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from client_app.data.base import to_device
from client_app.losses import BinaryCrossEntropy, CrossEntropy, Task
from client_app.models import MLP, LogisticRegression
from client_app.training.batched.aligned import compute_padded_rows, copy_aligned, create_aligned

StackedTensors = dict[str, torch.Tensor]


@dataclass
class Batches:
    """One batch of each of m clients.

    Attributes
    ----------
    x, y : tensor
        Inputs (m, b, *input_shape) and labels (m, b, ...), b the size of the largest batch.
    sizes : array of int64
        True sizes (m,); the rest of x and y repeats a sample and must not count.
    masks : mapping
        Dropout masks (m, b, *shape), by the name of the layer's mask.
    coefficients : tensor
        The result of ``Gradients.compute_coefficients`` for these batches (m, b).
    workspaces : dict of tensor
        Memory for intermediate results by name, shared by the steps of a round.
    """

    x: torch.Tensor
    y: torch.Tensor
    sizes: NDArray[np.int64]
    masks: Mapping[str, torch.Tensor]
    coefficients: torch.Tensor
    workspaces: dict[str, torch.Tensor] = field(default_factory=dict)

    def get_workspace(self, name: str, units: int) -> torch.Tensor:
        """Return aligned memory (m, units, b) with arbitrary contents."""
        m, b = self.y.shape
        workspace = self.workspaces.get(name)
        if workspace is None or workspace.shape[0] < m:
            workspace = create_aligned(m, (units, b), self.x.dtype, self.x.device)
        if workspace.shape[0] > m:
            workspace = workspace[:m]  # a later step has no more clients
        self.workspaces[name] = workspace
        return workspace


class Gradients(Protocol):
    """Compute the stacked gradients of one model."""

    def compute_coefficients(
        self,
        labels: torch.Tensor,
        counts: torch.Tensor,
        sizes: torch.Tensor,
        scale: torch.Tensor,
    ) -> torch.Tensor:
        """Return the coefficients of the samples of n batches in ``accumulate``, (n, b).

        The mean over a batch is multiplied by ``scale`` (n,). ``labels`` is (n, b, ...); ``counts``
        (n, b) is true for samples that count, and ``sizes`` (n,) is their number.
        """

    def accumulate(
        self,
        parameters: StackedTensors,
        buffers: StackedTensors,
        grads: StackedTensors,
        batches: Batches,
        *,
        beta: float = 1.0,
    ) -> None:
        """Set ``grads`` to beta * grads + scale_k times the gradient of client k's mean loss.

        If ``grads`` is ``parameters``, this is a step of gradient descent. ``buffers`` change as
        the model changes them in training.
        """


@dataclass(frozen=True)
class DenseGradients:
    """Gradients in closed form of fully connected layers with ReLU, and a cross entropy.

    With z_l = W_l a_{l-1} + b_l, a_l = max(z_l, 0) and p the softmax of the last z, the
    gradient of the mean loss, weight v_i of sample i and v their sum, is

        d_L = v_i (p - onehot(y)) / v,   d_l = (W_{l+1}^T d_{l+1}) [z_l > 0],
        dW_l = d_l a_{l-1}^T,            db_l = sum_i d_l;

    with one logit for two classes, p is its sigmoid and y replaces onehot(y). This takes two matrix
    products for each layer and client, and one for the first layer.

    Parameters
    ----------
    layers : sequence of (str, str)
        Names of weight and bias of each layer.
    num_outputs : int
        Number of units of the last layer.
    binary : bool
        Whether the cross entropy is that of one logit.
    class_weights : tensor, optional
        The weights in the cross entropy.
    """

    layers: Sequence[tuple[str, str]]
    num_outputs: int
    binary: bool = False
    class_weights: torch.Tensor | None = None

    def pad_units(self, model: StackedTensors) -> StackedTensors:
        """Return a model, or stacked ones, with additional units, whose weights are 0 and stay 0.

        A weight then fills whole cache lines, and many of them are one contiguous tensor, which
        torch multiplies in one call. ``accumulate`` takes models with and without padding.
        """
        padded, before = dict(model), 0
        for weight, bias in self.layers:
            units, inputs = model[weight].shape[-2:]
            inputs += before
            more = compute_padded_rows(units, inputs, model[weight].dtype) - units
            padded[weight] = functional.pad(model[weight], (0, before, 0, more))
            padded[bias] = functional.pad(model[bias], (0, more))
            before = more
        return padded

    def trim_units(self, models: StackedTensors, reference: StackedTensors) -> StackedTensors:
        """Return stacked models (m, ...) without padding, in the shapes of ``reference``."""
        return {
            name: tensor[(slice(None), *map(slice, reference[name].shape))]
            for name, tensor in models.items()
        }

    def compute_coefficients(
        self,
        labels: torch.Tensor,
        counts: torch.Tensor,
        sizes: torch.Tensor,
        scale: torch.Tensor,
    ) -> torch.Tensor:
        """Return scale v_i / v (n, b), 0 for samples that do not count."""
        if self.class_weights is None:
            return counts * (scale / sizes).unsqueeze(1)
        weights = self.class_weights.to(scale)[labels] * counts
        total = weights.sum(dim=1)
        return weights * (scale / torch.where(total == 0, 1, total)).unsqueeze(1)

    def accumulate(
        self,
        parameters: StackedTensors,
        buffers: StackedTensors,
        grads: StackedTensors,
        batches: Batches,
        *,
        beta: float = 1.0,
    ) -> None:
        """Set ``grads`` to beta * grads + scale_k times the gradient of client k's mean loss."""
        x, y = batches.x.flatten(start_dim=2), batches.y  # (m, b, d), (m, b)
        m, b = y.shape
        if m == 1 and self._has_vectors(parameters):
            self._accumulate_duplicated(parameters, buffers, grads, batches, beta=beta)
            return

        activations = [x.transpose(1, 2)]  # (m, units, b): long rows for the products
        for weight, bias in self.layers:
            if len(activations) > 1:
                activations[-1].clamp_(min=0)
            w = parameters[weight]  # (m, units, inputs)
            out = batches.get_workspace(bias, w.shape[1])
            torch.baddbmm(parameters[bias].unsqueeze(2), w, activations[-1], out=out)
            activations.append(out)
        delta = activations.pop()  # 0 for padded units, whose weights are 0
        output = delta[:, : self.num_outputs]
        if self.binary:
            error = output.sigmoid().sub_(y.unsqueeze(1))
        else:
            error = functional.softmax(output, dim=1)
            minus_one = _get_minus_one(error.dtype, error.device).expand(m, 1, b)
            error.scatter_add_(1, y.unsqueeze(1), minus_one)
        torch.mul(error, batches.coefficients.unsqueeze(1), out=output)
        for weight, bias in reversed(self.layers):
            before = activations.pop()
            # Compute this first: grads may be the parameters.
            back = delta
            if activations:
                w = parameters[weight]
                out = batches.get_workspace(weight, w.shape[2])
                back = torch.bmm(w.transpose(1, 2), delta, out=out)
            grads[weight].baddbmm_(delta, before.transpose(1, 2), beta=beta)
            if beta != 1.0:
                grads[bias].mul_(beta)
            grads[bias].add_(delta.sum(dim=2))
            delta = back.mul_(before > 0) if activations else back

    def _has_vectors(self, parameters: StackedTensors) -> bool:
        """Return whether a layer's product is one with a vector."""
        return any(1 in parameters[weight].shape[1:] for weight, _ in self.layers)

    def _accumulate_duplicated(
        self,
        parameters: StackedTensors,
        buffers: StackedTensors,
        grads: StackedTensors,
        batches: Batches,
        *,
        beta: float,
    ) -> None:
        """Compute one client's gradient twice in one batch, with the bits of a larger batch.

        torch computes a product with a vector differently alone than as one of several.
        """
        doubled_parameters = {
            name: copy_aligned(tensor[0], 2) for name, tensor in parameters.items()
        }
        doubled_grads = (
            doubled_parameters
            if grads is parameters
            else {n: copy_aligned(t[0], 2) for n, t in grads.items()}
        )
        doubled = Batches(
            copy_aligned(batches.x[0], 2),
            batches.y.expand(2, -1),
            np.repeat(batches.sizes, 2),
            {},
            batches.coefficients.expand(2, -1),
        )
        self.accumulate(doubled_parameters, buffers, doubled_grads, doubled, beta=beta)
        for name, tensor in grads.items():
            tensor.copy_(doubled_grads[name][:1])


@lru_cache
def _get_minus_one(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full((1, 1, 1), -1.0, dtype=dtype, device=device)


class FunctionalGradients:
    """Batched automatic differentiation, for any model that ``torch.func.vmap`` can run.

    Batches of different sizes are computed one size after the other, without padding, because
    layers such as batch normalization use all samples of a batch.

    Parameters
    ----------
    model : torch.nn.Module
        Every thread computes with a copy in training mode.
    task : Task
    compiled : bool
        Whether to use ``torch.compile``.
    """

    def __init__(self, model: nn.Module, task: Task, *, compiled: bool = False) -> None:
        self._model = model
        self._task = task
        self._compiled = compiled
        self._local = threading.local()

    def _get_gradients(self) -> Callable[..., tuple[StackedTensors, StackedTensors]]:
        """Return this thread's function, with a separate model.

        ``functional_call`` replaces the model's tensors during the call, and would meet those of
        another thread.
        """
        if not hasattr(self._local, "gradients"):
            self._local.gradients = self._build_gradients(copy.deepcopy(self._model).train())
        gradients: Callable[..., tuple[StackedTensors, StackedTensors]] = self._local.gradients
        return gradients

    def _build_gradients(
        self, model: nn.Module
    ) -> Callable[..., tuple[StackedTensors, StackedTensors]]:
        task = self._task

        def compute_loss(
            parameters: StackedTensors,
            rest: StackedTensors,
            x: torch.Tensor,
            y: torch.Tensor,
            scale: torch.Tensor,
        ) -> tuple[torch.Tensor, StackedTensors]:
            rest = {name: tensor.clone() for name, tensor in rest.items()}
            outputs = functional_call(model, {**parameters, **rest}, (x,))
            return scale * task.compute_mean_loss(outputs, y), rest

        gradients = vmap(grad(compute_loss, has_aux=True), randomness="error")
        return torch.compile(gradients) if self._compiled else gradients

    def compute_coefficients(
        self,
        labels: torch.Tensor,
        counts: torch.Tensor,
        sizes: torch.Tensor,
        scale: torch.Tensor,
    ) -> torch.Tensor:
        """Return the scale for every sample, because the task weights the samples of a batch."""
        return scale.unsqueeze(1).expand(counts.shape)

    def accumulate(
        self,
        parameters: StackedTensors,
        buffers: StackedTensors,
        grads: StackedTensors,
        batches: Batches,
        *,
        beta: float = 1.0,
    ) -> None:
        """Set ``grads`` to beta * grads + scale_k times the gradient of client k's mean loss."""
        scale, compute_gradients = batches.coefficients[:, 0], self._get_gradients()
        for size in np.unique(batches.sizes).tolist():
            selected = np.flatnonzero(batches.sizes == size)
            is_whole = len(selected) == len(batches.sizes)
            indices = None if is_whole else to_device(torch.from_numpy(selected), scale.device)
            select = partial(_select_rows, indices)
            masks = {name: mask[:, :size] for name, mask in batches.masks.items()}
            gradients, after = compute_gradients(
                select(parameters),
                select({**buffers, **masks}),
                *select({"x": batches.x[:, :size], "y": batches.y[:, :size], "s": scale}).values(),
            )
            before = select({name: grads[name] for name in gradients})
            for name, gradient in gradients.items():
                _write_rows(grads[name], indices, gradient.add(before[name], alpha=beta))
            for name, tensor in buffers.items():
                _write_rows(tensor, indices, after[name])


def _select_rows(indices: torch.Tensor | None, stacked: StackedTensors) -> StackedTensors:
    """Return the rows at ``indices``, None for all."""
    if indices is None:
        return stacked
    return {name: tensor.index_select(0, indices) for name, tensor in stacked.items()}


def _write_rows(stacked: torch.Tensor, indices: torch.Tensor | None, rows: torch.Tensor) -> None:
    if indices is None:
        stacked.copy_(rows)
    else:
        stacked.index_copy_(0, indices, rows)


def build_dense_gradients(model: nn.Module, task: Task) -> DenseGradients | None:
    """Return the closed form for ``model``, or None if it has none."""
    # These types exactly: a subclass may compute another loss.
    if type(task) is not CrossEntropy and type(task) is not BinaryCrossEntropy:
        return None
    if type(model) not in {LogisticRegression, MLP}:
        return None
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return None
    layers = {n: layer for n, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    *_, last = layers.values()
    return DenseGradients(
        [(f"{name}.weight", f"{name}.bias") for name in layers],
        last.out_features,
        isinstance(task, BinaryCrossEntropy),
        task.class_weights,
    )
