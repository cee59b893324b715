"""Local training and evaluation of one client, one batch after the other.

Shapes: n samples, inputs (n, *input_shape), labels (n,).
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from client_app.augmentation import augmentation
from client_app.randomness import Draws, torch_seeded

EVALUATION_BATCH = 4096
BINARY = 2


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: SGD with these hyperparameters for ``local_epochs`` epochs.

    With ``local_steps`` it takes that many steps instead, whatever the number of its samples:
    through one epoch after the other, the last one left unfinished. ``augmentation`` changes
    the inputs of a batch, see ``client_app.augmentation``.

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
    local_steps: int | None = None
    augmentation: str = "none"

    def steps(self, num_examples: int) -> int:
        """Return the number of steps of a round on that many samples."""
        if self.local_steps is not None:
            return self.local_steps
        return self.local_epochs * math.ceil(num_examples / self.batch_size)

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
    draws: Draws,
    *,
    t: int = 0,
) -> None:
    """Train ``model`` in place in round ``t``: epochs over freshly shuffled batches.

    w <- w - lr * v, v <- momentum * v + grad + weight_decay * w + mu (w - w_t), with grad that
    of the batch's mean cross entropy and w_t the model as it comes. The last batch of an epoch
    may be smaller. Momentum starts at 0 in every round.

    The order of the samples is drawn from ``draws("batches")``, their augmentation from
    ``draws("augmentation")``, dropout from ``draws("dropout")``; torch's own generators decide
    nothing and stay as they are.

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
    augment = augmentation(how.augmentation, draws)
    batches = _batches(y, how.batch_size, draws)
    steps = how.steps(len(y))
    with _dropout(model, y.device, draws):
        for step, rows in zip(range(steps), batches, strict=False):
            optimizer.param_groups[0]["lr"] = how.learning_rate(t, step, steps)
            optimizer.zero_grad()
            functional.cross_entropy(model(augment(x[rows])), y[rows]).backward()
            for parameter, start in zip(parameters, received, strict=False):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=how.mu)
            optimizer.step()


def _batches(y: torch.Tensor, batch_size: int, draws: Draws) -> Iterator[torch.Tensor]:
    """Yield the rows of one batch after the other, without end."""
    rng = draws("batches")
    while True:
        yield from torch.from_numpy(rng.permutation(len(y))).to(y.device).split(batch_size)


def _dropout(model: nn.Module, device: torch.device, draws: Draws) -> AbstractContextManager[None]:
    """Let dropout draw from ``draws``; free of charge for a model without."""
    if any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in model.modules()):
        return torch_seeded(int(draws("dropout").integers(2**63)), device)
    return nullcontext()


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


@torch.no_grad()
def auroc(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the area under the ROC curve of the softmax outputs, by torchmetrics, in [0, 1].

    With two classes that of class 1, with more the mean over the classes that ``y`` has of each
    one against the rest. NaN where ``y`` has only one class: then it is not defined.
    """
    # Takes seconds to import: not for those who do not ask for it.
    from torchmetrics.functional.classification import binary_auroc

    present = y.unique()
    if len(present) < BINARY:
        return math.nan
    model.eval()
    scores = torch.cat([model(inputs) for inputs in x.split(EVALUATION_BATCH)]).softmax(dim=1)
    classes = present if scores.shape[1] > BINARY else present[-1:]
    areas = [binary_auroc(scores[:, c], (y == c).long()) for c in classes.tolist()]
    return float(torch.stack(areas).double().mean())
