"""Train one client locally, batch by batch.

Shapes: n samples, inputs (n, *input_shape), labels (n,), or (n, l) of sequences.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from fedquorum.errors import DataError
from fedquorum.rules.schedules import ClientLRSchedule
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from client_app.data.base import PixelNormalization, to_device
from client_app.data.examples import Examples
from client_app.losses import CrossEntropy, Task
from client_app.rng import RngFactory, has_random_layers, seed_torch
from client_app.training.augmentation import build_augmentation
from client_app.training.closed_form_cnn import build_closed_form_cnn
from client_app.training.dropout import find_dropouts
from client_app.training.flat_sgd import FlatSGD

Arrays = list[NDArray[Any]]
"""A model's arrays, in the order of its ``state_dict``."""

DEFAULT_TASK = CrossEntropy()

FINETUNE_PREFIX = "finetune-"
"""The beginning of the purposes of random numbers with which clients train personal models."""


@dataclass(frozen=True)
class TheoremLR:
    """The learning rates of FedALIGN's Theorem 1, which counts local iterations.

    Parameters
    ----------
    mu : float
        The strong convexity of the clients' losses, > 0.
    L : float
        The smoothness of the clients' losses, > 0.
    """

    mu: float = 1.0
    L: float = 1.0

    def learning_rate(self, t: int, step: int, steps: int) -> float:
        """Return 2 / (mu (t s + i + gamma)), gamma = max(8 L / mu, s), for step i of s in round t.

        Both t and i count from 0.
        """
        gamma = max(8.0 * self.L / self.mu, float(steps))
        return 2.0 / (self.mu * (t * steps + step + gamma))


@dataclass(frozen=True)
class LocalSGDConfig:
    """A client's training: SGD with these hyperparameters for ``local_epochs`` epochs.

    With ``local_steps`` a client takes that many steps instead, for any number of samples: it goes
    through one epoch after the other, and may leave the last one unfinished. ``augmentation``
    changes the inputs of a batch, see ``client_app.training.augmentation``; ``pixel_scale`` is the
    normalization of the images, if they are normalized.

    The last batch of an epoch may be smaller. Batch normalization needs more than one sample, so a
    model with it skips a last batch of one sample, as ``drop_last`` of PyTorch's ``DataLoader``
    would; each epoch has a new order, so it skips another sample. See ``compute_batch_sizes``.

    ``proximal_mu`` is the weight mu of FedProx's proximal term. The learning rate in round t (from
    0) and local step i (from 0, of s steps a round) is that of
    ``fedquorum.rules.schedules.ClientLRSchedule``. With ``lr_schedule=theorem`` it is that of
    ``theorem_lr``, FedALIGN's Theorem 1, and ``lr`` is not used.
    """

    lr: float
    batch_size: int
    local_epochs: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    lr_schedule: str = "constant"
    lr_decay: float = 1.0
    lr_decay_every: int = 1
    theorem_lr: TheoremLR = TheoremLR()
    local_steps: int | None = None
    augmentation: str = "none"
    lr_decay_from: int = 0
    pixel_scale: PixelNormalization | None = None

    def count_steps(self, num_examples: int, *, batch_norm: bool = False) -> int:
        """Return the number of steps of a round; see ``compute_batch_sizes``."""
        if self.local_steps is not None:
            return self.local_steps
        sizes = compute_batch_sizes(num_examples, self.batch_size, batch_norm=batch_norm)
        return self.local_epochs * len(sizes)

    def compute_learning_rate(self, t: int, step: int, steps: int) -> float:
        """Return the learning rate of local step ``step`` of ``count_steps`` in round ``t``."""
        if self.lr_schedule == "constant":
            return self.lr
        if self.lr_schedule == "theorem":
            return self.theorem_lr.learning_rate(t, step, steps)
        every, since = self.lr_decay_every, self.lr_decay_from
        return ClientLRSchedule(self.lr, self.lr_schedule, self.lr_decay, every, since).compute_lr(
            t
        )


Rounds = int | Sequence[int]
"""The round of all clients, from 0; or that of each, if they were asked in different ones."""


def list_rounds(t: Rounds, num_clients: int) -> Sequence[int]:
    """Return the round of each client."""
    return [t] * num_clients if isinstance(t, int) else t


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """Model, data and hyperparameters for training the clients of a process.

    Parameters
    ----------
    model : torch.nn.Module
        The model, on the examples' device.
    examples : Examples
        The clients' training rows.
    config : LocalSGDConfig
    task : Task
    seed : int
        The run's seed; random numbers depend on (seed, purpose, round, client id).
    compiled : bool
        Whether models, or batched gradients, use ``torch.compile``; gradients in closed form
        never do.
    rng_prefix : str
        The beginning of each purpose of random numbers; empty for the training of the rounds.
    """

    model: nn.Module
    examples: Examples
    config: LocalSGDConfig
    task: Task
    seed: int
    compiled: bool = False
    rng_prefix: str = ""

    def for_finetuning(self, epochs: int) -> "TrainingSetup":
        """Return the setup that trains a personal model for ``epochs`` epochs.

        There is no proximal term, which would pull the model back to the common one, and a number
        of steps for each round does not count.
        """
        config = replace(self.config, local_epochs=epochs, local_steps=None, proximal_mu=0.0)
        return replace(self, config=config, rng_prefix=FINETUNE_PREFIX)


def compute_batch_sizes(
    num_examples: int, batch_size: int, *, batch_norm: bool = False
) -> list[int]:
    """Return the sizes of the batches of one epoch: full batches, and one of the remainder.

    With ``batch_norm`` a last batch of one sample is left out.

    Raises
    ------
    DataError
        If that leaves no batch.
    """
    full, remainder = divmod(num_examples, batch_size)
    sizes = [batch_size] * full + [remainder] * (remainder > 0)
    if not batch_norm:
        return sizes
    usable = [size for size in sizes if size > 1]
    if not usable:
        raise DataError(
            "batch normalization needs batches of at least 2 training samples, got client."
            f"batch_size={batch_size} and {num_examples} of the client"
        )
    return usable


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model has batch normalization."""
    return any(isinstance(layer, _BatchNorm) for layer in model.modules())


def load_arrays(arrays: Sequence[NDArray[Any]], model: nn.Module) -> None:
    """Load arrays into ``model``, in the order of its ``state_dict``."""
    names = model.state_dict()
    model.load_state_dict(
        {name: torch.from_numpy(a) for name, a in zip(names, arrays, strict=True)}
    )


class LocalModel:
    """A model in which clients train, one after the other.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters move into one vector, see ``FlatSGD``, and train in place.
    task : Task
    closed_form : bool
        Whether to use the closed form of the gradient if there is one, see
        ``build_closed_form_cnn``.
    """

    def __init__(
        self, model: nn.Module, task: Task = DEFAULT_TASK, *, closed_form: bool = True
    ) -> None:
        self._model = model
        self._task = task
        self._sgd = FlatSGD(model)
        self._trained = {id(parameter) for parameter in self._sgd.parameters}
        self._closed_form = build_closed_form_cnn(model, task) if closed_form else None
        self._has_batch_norm = has_batch_norm(model)
        self._uses_rng = has_random_layers(model)

    @property
    def closed_form(self) -> bool:
        """Whether gradients are computed in closed form, without automatic differentiation."""
        return self._closed_form is not None

    def load_arrays(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Load arrays into the model, in the order of its ``state_dict``."""
        load_arrays(arrays, self._model)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors of the model's ``state_dict``; training changes them in place."""
        return [tensor.detach() for tensor in self._model.state_dict().values()]

    def copy_state(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return a copy of the model's whole state, for ``load``."""
        return self._sgd.copy_vectors(), [tensor.clone() for tensor in self._list_other_tensors()]

    def load(self, state: tuple[list[torch.Tensor], list[torch.Tensor]]) -> None:
        """Load the state of another model of the same class."""
        vectors, others = state
        self._sgd.load(vectors)
        for tensor, other in zip(self._list_other_tensors(), others, strict=True):
            tensor.copy_(other)

    def _list_other_tensors(self) -> list[torch.Tensor]:
        """Return buffers and frozen parameters, read anew because a layer may replace them."""
        tensors = self._model.state_dict(keep_vars=True).values()
        return [tensor.detach() for tensor in tensors if id(tensor) not in self._trained]

    def train(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        config: LocalSGDConfig,
        get_rng: RngFactory,
        *,
        t: int = 0,
    ) -> None:
        """Train the model in place in round ``t``; see ``train_model``."""
        self._model.train()
        self._sgd.start_client(
            momentum=config.momentum, weight_decay=config.weight_decay, mu=config.proximal_mu
        )
        augment = None
        if config.augmentation != "none":
            augment = build_augmentation(config.augmentation, get_rng, config.pixel_scale)
        sizes = compute_batch_sizes(len(y), config.batch_size, batch_norm=self._has_batch_norm)
        batches = _draw_batches(y, sizes, get_rng)
        steps = config.count_steps(len(y), batch_norm=self._has_batch_norm)
        sample_masks = _create_mask_sampler(self._model, x, get_rng)
        with self._seed_layers(y.device, get_rng):
            for step, rows in zip(range(steps), batches, strict=False):
                sample_masks(len(rows))
                inputs = x.index_select(0, rows)
                if augment is not None:
                    inputs = augment(inputs)
                self._step(
                    inputs, y.index_select(0, rows), config.compute_learning_rate(t, step, steps)
                )

    def _step(self, x: torch.Tensor, y: torch.Tensor, rate: float) -> None:
        if self._closed_form is not None:
            self._sgd.step(partial(self._closed_form.accumulate, x, y, self._sgd.weights), rate)
            return
        loss = self._task.compute_mean_loss(self._model(x), y)
        gradients = torch.autograd.grad(loss, self._sgd.parameters, allow_unused=True)
        self._sgd.step_gradients(gradients, rate)

    def _seed_layers(
        self, device: torch.device, get_rng: RngFactory
    ) -> AbstractContextManager[None]:
        """Seed random layers from ``get_rng``; do nothing for a model without any."""
        if self._uses_rng:
            return seed_torch(int(get_rng("dropout").integers(2**63)), device)
        return nullcontext()


def train_model(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    config: LocalSGDConfig,
    get_rng: RngFactory,
    *,
    t: int = 0,
    task: Task = DEFAULT_TASK,
) -> None:
    """Train ``model`` in place in round ``t``: epochs over freshly shuffled batches.

    w <- w - lr * v, v <- momentum * v + grad + weight_decay * w + mu (w - w_t), with grad the
    gradient of the batch's mean loss and w_t the given model. Momentum starts at 0 in every round.

    The order of the samples is drawn from ``get_rng("batches")``, their augmentation from
    ``get_rng("augmentation")``, dropout from ``get_rng("dropout")``; torch's own generators are not
    used, and their state does not change.

    References
    ----------
    FedALIGN's ClientUpdate (Algorithm 1); for mu = ``proximal_mu`` > 0 FedProx (Li et al. 2020),
    whose local objective is F_k(w) + (mu / 2) ||w - w_t||^2.

    Raises
    ------
    DataError
        If the model has batch normalization and there is no batch of two samples.
    """
    LocalModel(model, task).train(x, y, config, get_rng, t=t)


def _draw_batches(y: torch.Tensor, sizes: list[int], get_rng: RngFactory) -> Iterator[torch.Tensor]:
    """Yield the rows of batch after batch, without end."""
    rng = get_rng("batches")
    used = sum(sizes)
    while True:
        order = torch.from_numpy(rng.permutation(len(y)))[:used]
        yield from to_device(order, y.device).split(sizes)


def _create_mask_sampler(
    model: nn.Module, x: torch.Tensor, get_rng: RngFactory
) -> Callable[[int], None]:
    """Return a function that draws the dropout masks of the next batch."""
    layers = [layer for _, layer in find_dropouts(model)]
    if not layers:
        return lambda _: None
    rng = get_rng("dropout")

    def sample_masks(n: int) -> None:
        for layer in layers:
            layer.mask = to_device(layer.draw_mask(n, rng), x.device).to(x.dtype)

    return sample_masks
