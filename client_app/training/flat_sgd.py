"""Run SGD on the parameters of one model, stored in one vector."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

PARAM_ALIGNMENT_BYTES = 64  # products are faster if a matrix begins at a cache line

GradientFn = Callable[[Sequence[torch.Tensor], float], None]
"""Add the gradient, times a factor, to these tensors, one for each parameter that trains."""


class FlatSGD:
    """Store the trainable parameters of a model in one vector, and apply SGD to it.

    w <- w - rate v,  v <- momentum v + grad + weight_decay w + mu (w - start), with v = 0 at the
    start: ``torch.optim.SGD`` with FedProx's proximal term. If the loss of a step does not depend
    on a parameter, its w and v do not change.

    One vector makes each part of a step one pass over memory. There is one vector for each dtype of
    the model.

    Parameters
    ----------
    model : torch.nn.Module
        Each parameter retains its shape and strides and becomes a view of the vector.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self._vectors: list[torch.Tensor] = []
        locations: list[tuple[int, int]] = []  # vector and offset of each parameter
        lengths: list[int] = []
        dtypes: list[torch.dtype] = []
        for parameter in self.parameters:
            if parameter.dtype not in dtypes:
                dtypes.append(parameter.dtype)
                lengths.append(0)
            dtype_index = dtypes.index(parameter.dtype)
            locations.append((dtype_index, lengths[dtype_index]))
            step = PARAM_ALIGNMENT_BYTES // parameter.element_size()
            lengths[dtype_index] += -(-parameter.numel() // step) * step
        for dtype, length in zip(dtypes, lengths, strict=True):
            device = self.parameters[0].device
            self._vectors.append(torch.zeros(length, dtype=dtype, device=device))
        self._locations = locations
        self.weights = self._build_views(self._vectors)
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            weight.copy_(parameter.detach())
            parameter.data = weight
        self._velocities: list[torch.Tensor] = []
        self._directions: list[torch.Tensor] = []
        self._start: list[torch.Tensor] = []

    def _build_views(self, vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return a view of the vectors for each parameter."""
        return [
            # The strides of empty_like have no gaps, even if the parameter's memory has.
            vectors[kind].as_strided(p.shape, torch.empty_like(p).stride(), offset)
            for p, (kind, offset) in zip(self.parameters, self._locations, strict=True)
        ]

    def copy_vectors(self) -> list[torch.Tensor]:
        """Return copies of the vectors."""
        return [vector.clone() for vector in self._vectors]

    def load(self, vectors: Sequence[torch.Tensor]) -> None:
        """Load the vectors of another model of the same class."""
        for vector, other in zip(self._vectors, vectors, strict=True):
            vector.copy_(other)

    def start_client(self, *, momentum: float, weight_decay: float, mu: float) -> None:
        """Start a client's round at the current parameters, with zero velocity."""
        self._momentum, self._decay, self._mu = momentum, weight_decay, mu
        self._start = self.copy_vectors() if mu else []
        if not (momentum or weight_decay or mu):
            self._velocities, self._directions = [], []
        elif self._velocities:
            for velocity in self._velocities:
                velocity.zero_()
        else:
            self._velocities = [torch.zeros_like(vector) for vector in self._vectors]
            self._directions = self._build_views(self._velocities)

    def step_gradients(self, gradients: Sequence[torch.Tensor | None], rate: float) -> None:
        """Take a step along these gradients, None for parameters that the loss does not use."""
        present = [gradient for gradient in gradients if gradient is not None]
        if len(present) < len(gradients):
            self._step_partially(gradients, rate)
            return

        def add_gradient(into: Sequence[torch.Tensor], factor: float) -> None:
            torch._foreach_add_(list(into), present, alpha=factor)

        self.step(add_gradient, rate)

    def step(self, add_gradient: GradientFn, rate: float) -> None:
        """Take a step along a gradient that ``add`` computes and adds."""
        if not self._velocities:
            add_gradient(self.weights, -rate)
            return
        start = self._start or self._vectors
        for w, v, w_0 in zip(self._vectors, self._velocities, start, strict=True):
            self._update_direction(w, v, w_0)
        add_gradient(self._directions, 1.0)
        for w, v in zip(self._vectors, self._velocities, strict=True):
            w.add_(v, alpha=-rate)

    def _update_direction(self, w: torch.Tensor, v: torch.Tensor, start: torch.Tensor) -> None:
        """Set v to the direction without the gradient."""
        v.mul_(self._momentum)
        if self._decay or self._mu:
            v.add_(w, alpha=self._decay + self._mu)
        if self._mu:
            v.add_(start, alpha=-self._mu)

    def _step_partially(self, gradients: Sequence[torch.Tensor | None], rate: float) -> None:
        starts = self._build_views(self._start) if self._start else self.weights
        directions = self._directions or self.weights
        for w, v, w_0, gradient in zip(self.weights, directions, starts, gradients, strict=True):
            if gradient is None:
                continue
            if not self._velocities:
                w.add_(gradient, alpha=-rate)
                continue
            self._update_direction(w, v, w_0)
            v.add_(gradient)
            w.add_(v, alpha=-rate)
