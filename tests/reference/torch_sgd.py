"""Local training by ``torch.optim.SGD`` and automatic differentiation, batch by batch."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import nn

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Change = Callable[[torch.Tensor], torch.Tensor]


class Dropping(Protocol):
    """A layer that multiplies by a mask, 0 with probability ``p``."""

    p: float
    shape: tuple[int, ...]
    mask: torch.Tensor


def train(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    sizes: list[int],
    rates: list[float],
    draw: Callable[[str], np.random.Generator],
    loss: Loss,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    mu: float = 0.0,
    change: Change = lambda images: images,
    masked: Sequence[Dropping] = (),
    seeded: bool = False,
) -> None:
    """Train ``model`` in place.

    Parameters
    ----------
    model : torch.nn.Module
    x, y : tensor
        A client's inputs and targets.
    sizes : list of int
        Sizes of the batches of one epoch.
    rates : list of float
        Learning rate of each step.
    draw : callable
        The generator of ``batches`` and ``dropout``.
    loss : callable
        Mean loss of outputs and targets.
    momentum, weight_decay, mu : float
        The parameters of SGD, and of FedProx's proximal term.
    change : callable
        Augmentation of a batch.
    masked : sequence of layers
        Layers whose dropout mask is drawn for each batch.
    seeded : bool
        Whether layers draw from torch's generator.
    """
    model.train()
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1.0, momentum=momentum, weight_decay=weight_decay
    )
    batches = draw("batches")
    rows: list[torch.Tensor] = []
    masks = draw("dropout")
    with torch.random.fork_rng() if seeded else nullcontext():
        if seeded:
            torch.manual_seed(int(draw("dropout").integers(2**63)))
        for rate in rates:
            if not rows:
                order = torch.from_numpy(batches.permutation(len(y)))[: sum(sizes)]
                rows = list(order.split(sizes))
            batch = rows.pop(0)
            for layer in masked:
                uniform = torch.from_numpy(masks.random((len(batch), *layer.shape), np.float32))
                layer.mask = ((uniform >= layer.p).float() / (1 - layer.p)).to(x.dtype)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss(model(change(x[batch])), y[batch]).backward()
            for parameter, received in zip(model.parameters(), start, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - received, alpha=mu)
            optimizer.step()
