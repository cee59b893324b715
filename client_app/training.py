"""Local training and evaluation of one client, one batch after the other.

Shapes: n samples, inputs (n, *input_shape), labels (n,).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

EVALUATION_BATCH = 4096


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD with these hyperparameters for ``local_epochs`` epochs.

    ``mu`` is the weight of FedProx's proximal term. The learning rate in round t (from 0) and
    local step i (from 0, of s steps a round) is, by ``lr_schedule``:

    ``constant``     lr
    ``step``         lr * lr_decay^floor(t / lr_decay_every)
    ``exponential``  lr * lr_decay^(t / lr_decay_every)
    ``theorem``      2 / (m (t s + i + gamma)), gamma = max(8 L / m, s), with m
                     ``strong_convexity`` and L ``smoothness``: FedALIGN's Theorem 1, which
                     counts local iterations; ``lr`` is not used.
    """

    lr: float
    batch_size: int
    local_epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0
    lr_schedule: str = "constant"
    lr_decay: float = 1.0
    lr_decay_every: int = 1
    strong_convexity: float = 1.0
    smoothness: float = 1.0

    def learning_rate(self, t: int, step: int, steps: int) -> float:
        """Return the learning rate of local step ``step`` of ``steps`` in round ``t``."""
        if self.lr_schedule == "theorem":
            gamma = max(8.0 * self.smoothness / self.strong_convexity, float(steps))
            return 2.0 / (self.strong_convexity * (t * steps + step + gamma))
        if self.lr_schedule == "step":
            return self.lr * self.lr_decay ** (t // self.lr_decay_every)
        if self.lr_schedule == "exponential":
            return float(self.lr * self.lr_decay ** (t / self.lr_decay_every))
        return self.lr


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
    *,
    t: int = 0,
) -> None:
    """Train ``model`` in place in round ``t``: E epochs over freshly shuffled batches.

    w <- w - lr * v, v <- momentum * v + grad + weight_decay * w + mu (w - w_t), with grad that
    of the batch's mean cross entropy and w_t the model as it comes. The last batch of an epoch
    may be smaller. Momentum starts at 0 in every round.

    References
    ----------
    FedALIGN's ClientUpdate (Algorithm 1); for mu > 0 FedProx (Li et al. 2020), whose local
    objective is F_k(w) + (mu / 2) ||w - w_t||^2.
    """
    model.train()
    parameters = list(model.parameters())
    received = [p.detach().clone() for p in parameters] if how.mu else []
    optimizer = torch.optim.SGD(
        parameters, lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay
    )
    steps = how.local_epochs * math.ceil(len(y) / how.batch_size)
    step = 0
    for _ in range(how.local_epochs):
        order = torch.from_numpy(rng.permutation(len(y))).to(y.device)
        for rows in order.split(how.batch_size):
            optimizer.param_groups[0]["lr"] = how.learning_rate(t, step, steps)
            optimizer.zero_grad()
            functional.cross_entropy(model(x[rows]), y[rows]).backward()
            for parameter, start in zip(parameters, received, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=how.mu)
            optimizer.step()
            step += 1


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
