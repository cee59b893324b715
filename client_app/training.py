"""Local training and evaluation of one client, one batch after the other.

Shapes: n samples, inputs (n, *input_shape), labels (n,).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

EVALUATION_BATCH = 4096


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD with these hyperparameters for ``local_epochs`` epochs."""

    lr: float
    batch_size: int
    local_epochs: int
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class Measure:
    """Mean cross entropy and share of correct predictions over ``num_examples`` samples."""

    num_examples: int
    loss: float
    accuracy: float


def train(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    how: LocalTraining,
    rng: np.random.Generator,
) -> None:
    """Train ``model`` in place: E epochs over freshly shuffled batches of B samples.

    w <- w - lr * v, v <- momentum * v + grad + weight_decay * w; grad of the batch's mean
    cross entropy. The last batch of an epoch may be smaller. Momentum starts at 0 in every
    round. (FedALIGN's ClientUpdate, Algorithm 1.)
    """
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay
    )
    for _ in range(how.local_epochs):
        order = torch.from_numpy(rng.permutation(len(y))).to(y.device)
        for rows in order.split(how.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Measure:
    """Return the mean loss and the accuracy of ``model``, summed in float64."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=y.device)
    correct = torch.zeros((), dtype=torch.int64, device=y.device)
    for inputs, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
        logits = model(inputs).double()
        loss += functional.cross_entropy(logits, labels, reduction="sum")
        correct += (logits.argmax(dim=1) == labels).sum()
    return Measure(len(y), float(loss) / len(y), int(correct) / len(y))
