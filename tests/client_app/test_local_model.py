"""Training in a lasting model against ``torch.optim.SGD`` and automatic differentiation."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from fedquorum.rng import make_generator
from torch import nn

from client_app.losses import BinaryCrossEntropy, CrossEntropy, SquaredError, Task
from client_app.models import CNN, LSTM, M5, MLP, CelebaCNN, LogisticRegression, SmallCNN, TextCNN
from client_app.rng import has_random_layers, seed_torch
from client_app.training.augmentation import build_augmentation
from client_app.training.dropout import find_dropouts, replace_dropout
from client_app.training.local_sgd import (
    LocalModel,
    LocalSGDConfig,
    TheoremLR,
    compute_batch_sizes,
    has_batch_norm,
)
from tests.client_app.clients import CPU, copy_arrays
from tests.reference import torch_sgd

CLASSES, T = 4, 2
IMAGE = (1, 16, 16)


class Tied(nn.Module):
    """Two layers with one weight, and a gap in the memory of another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.logits = nn.Linear(12, CLASSES)
        self.logits.weight = nn.Parameter(torch.rand(CLASSES, 20)[:, 3:15])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.logits(self.second(self.first(x).relu()))
        return logits


class Sometimes(nn.Module):
    """A layer is used by some batches only, another one by none, and a buffer is made anew."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(12, CLASSES)
        self.sometimes = nn.Linear(12, CLASSES)
        self.never = nn.Linear(12, CLASSES)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        self.seen = self.seen + 1
        logits: torch.Tensor = self.always(x)
        return logits + self.sometimes(x) if float(x[0, 0]) > 0.5 else logits


class Mixed(nn.Module):
    """Parameters of two types."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, CLASSES)
        self.scale = nn.Parameter(torch.ones(CLASSES, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.linear(x) * self.scale.to(x.dtype)
        return logits

    def double(self) -> "Mixed":
        """Leave the scale as it is."""
        self.linear.double()
        return self


def make_frozen_model() -> nn.Module:
    """Return a model of which the first layer, and its statistics, are kept or change alone."""
    model = nn.Sequential(nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, CLASSES))
    model[0].requires_grad_(False)
    return model


@dataclass(frozen=True)
class Kind:
    """A model, the shape of its inputs, its task, and a rate that it bears."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    task: Task = CrossEntropy()  # noqa: RUF009 (frozen)
    tokens: int = 0
    lr: float = 0.05
    tolerance: float = 1e-10


KINDS = {
    "logistic_regression": Kind(lambda: LogisticRegression((12,), CLASSES), (12,)),
    "binary": Kind(lambda: LogisticRegression((12,), 1), (12,), BinaryCrossEntropy()),
    "number": Kind(lambda: MLP((12,), 1, 5), (12,), SquaredError()),
    "small_cnn": Kind(lambda: SmallCNN(IMAGE, CLASSES, (7,)), IMAGE),
    "small_cnn, dropout": Kind(lambda: SmallCNN(IMAGE, CLASSES, (7, 6), 0.3), IMAGE),
    "small_cnn, class weights": Kind(
        lambda: SmallCNN(IMAGE, CLASSES, ()),
        IMAGE,
        CrossEntropy(torch.tensor([0.0, 2.0, 0.5, 1.0], dtype=torch.float64)),
    ),
    "small_cnn, odd": Kind(lambda: SmallCNN((3, 9, 11), CLASSES, (7,)), (3, 9, 11)),
    "small_cnn, torch's dropout": Kind(
        lambda: nn.Sequential(SmallCNN(IMAGE, CLASSES, (7,)), nn.Dropout(0.2)), IMAGE
    ),
    "cnn": Kind(lambda: CNN(IMAGE, CLASSES), IMAGE, lr=0.001),
    "celeba_cnn": Kind(lambda: CelebaCNN((3, 10, 9), CLASSES), (3, 10, 9), lr=0.001),
    "celeba_cnn, groups": Kind(
        lambda: CelebaCNN((3, 6, 5), CLASSES, "aaggff"), (3, 6, 5), lr=0.001
    ),
    "m5": Kind(lambda: M5((1, 1800), CLASSES, 2), (1, 1800), lr=0.001),
    "lstm": Kind(lambda: LSTM(11, CLASSES, 5, 6, 2, every_position=False), (8,), tokens=11),
    "text_cnn": Kind(lambda: TextCNN(11, CLASSES, 5, 4, 0.3), (9,), tokens=11),
    "tied": Kind(Tied, (12,)),
    "sometimes": Kind(Sometimes, (12,)),
    "mixed": Kind(Mixed, (12,), tolerance=1e-6),
    "frozen": Kind(make_frozen_model, (12,), lr=0.01),
}
OPTIONS = {
    "plain": LocalSGDConfig(1.0, 8, 2),
    "momentum": LocalSGDConfig(1.0, 8, 2, momentum=0.9),
    "weight decay": LocalSGDConfig(1.0, 8, 2, weight_decay=0.1),
    "proximal": LocalSGDConfig(1.0, 8, 2, proximal_mu=0.5),
    "all of them": LocalSGDConfig(1.0, 8, 2, 0.5, 0.05, proximal_mu=0.3),
    "steps": LocalSGDConfig(1.0, 8, 1, lr_schedule="step", lr_decay=0.5, local_steps=7),
    "theorem": LocalSGDConfig(1.0, 8, 2, lr_schedule="theorem", theorem_lr=TheoremLR(5.0, 400.0)),
}


def make_model(kind: Kind, dtype: torch.dtype = torch.float64) -> nn.Module:
    with seed_torch(5, CPU):
        model = kind.make()
    model = model.double() if dtype == torch.float64 else model.to(dtype)
    inputs = torch.zeros((2, *kind.shape), dtype=torch.int64 if kind.tokens else dtype)
    if "torch's" not in repr(kind):
        model = replace_dropout(model, inputs)
    if any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        model = model.to(memory_format=torch.channels_last)
    return model


def make_problem(
    kind: Kind, n: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand((n, *kind.shape), generator=generator, dtype=dtype)
    if kind.tokens:
        x = torch.randint(1, kind.tokens, (n, *kind.shape), generator=generator)
    if isinstance(kind.task, SquaredError):
        return x, torch.rand(n, generator=generator, dtype=dtype)
    classes = 2 if isinstance(kind.task, BinaryCrossEntropy) else CLASSES
    return x, torch.randint(classes, (n,), generator=generator)


def train_by_torch(
    model: nn.Module,
    rows: tuple[torch.Tensor, torch.Tensor],
    config: LocalSGDConfig,
    draws: Any,
    task: Task,
) -> None:
    x, y = rows
    sizes = compute_batch_sizes(len(y), config.batch_size, batch_norm=has_batch_norm(model))
    steps = config.count_steps(len(y), batch_norm=has_batch_norm(model))
    torch_sgd.train(
        model,
        x,
        y,
        sizes=sizes,
        rates=[config.compute_learning_rate(T, step, steps) for step in range(steps)],
        draw=draws,
        loss=task.compute_mean_loss,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        mu=config.proximal_mu,
        change=build_augmentation(config.augmentation, draws),
        masked=[layer for _, layer in find_dropouts(model)],
        seeded=has_random_layers(model),
    )


def make_rng_factory(client: int) -> Any:
    return partial(make_generator, 9, round_number=T + 1, client=client)


def check(
    kind: Kind,
    config: LocalSGDConfig,
    counts: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
    *,
    closed_form: bool = True,
) -> None:
    """Compare clients that train in one model, in turn, with clients of torch's optimizer."""
    model = make_model(kind, dtype)
    start = copy_arrays(model)
    local = LocalModel(copy.deepcopy(model), kind.task, closed_form=closed_form)
    local.load_arrays(start)
    received = local.copy_state()
    config = replace(config, lr=kind.lr)
    for client, n in enumerate(counts):
        x, y = make_problem(kind, n, client, dtype)
        expected = copy.deepcopy(model)
        train_by_torch(expected, (x, y), config, make_rng_factory(client), kind.task)
        local.load(received)
        local.train(x, y, config, make_rng_factory(client), t=T)
        names = expected.state_dict().items()
        for found, (name, tensor) in zip(local.tensors, names, strict=True):
            assert found.dtype == tensor.dtype
            torch.testing.assert_close(found, tensor, rtol=tolerance, atol=tolerance, msg=name)
    for array, tensor in zip(start, model.state_dict().values(), strict=True):
        assert torch.equal(torch.from_numpy(array), tensor)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_that_of_torch(kind: str, option: str) -> None:
    """Every model and option, clients of several sizes in one model; 1e-10 in float64.

    No batch is of two or three samples, whose normalization magnifies rounding.
    """
    check(KINDS[kind], OPTIONS[option], (30, 16, 14), torch.float64, KINDS[kind].tolerance)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["small_cnn, dropout", "cnn", "celeba_cnn", "m5"])
def test_a_round_without_the_closed_form(kind: str, option: str) -> None:
    """The same models by automatic differentiation, as on a GPU."""
    config, model_kind = OPTIONS[option], KINDS[kind]
    check(model_kind, config, (30, 14), torch.float64, model_kind.tolerance, closed_form=False)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_torch_in_float32(kind: str, option: str) -> None:
    """One step only: after it ReLU and maxima may tip over."""
    config = replace(OPTIONS[option], local_steps=1)
    check(KINDS[kind], config, (16,), torch.float32, 2e-5)


@pytest.mark.parametrize("name", ["crop", "crop_flip", "cifar100"])
@pytest.mark.parametrize("kind", ["small_cnn, odd", "celeba_cnn"])
def test_augmented_images(kind: str, name: str) -> None:
    """Both train on the same changed images."""
    config = LocalSGDConfig(1.0, 8, 2, momentum=0.5, augmentation=name)
    check(KINDS[kind], config, (26,), torch.float64, 1e-10)


def test_something_trained() -> None:
    """The comparisons above are of models that differ from what they started from."""
    for kind in KINDS.values():
        model = make_model(kind)
        start = {name: tensor.clone() for name, tensor in model.named_parameters()}
        x, y = make_problem(kind, 26)
        LocalModel(model, kind.task).train(
            x, y, replace(OPTIONS["plain"], lr=kind.lr), make_rng_factory(0), t=T
        )
        for name, parameter in model.named_parameters():
            trains = parameter.requires_grad and not name.startswith("never")
            if parameter.ndim > 1:  # a bias before a normalization stays as it is
                assert torch.equal(parameter, start[name]) is not trains


def test_parameters_keep_strides_and_identity() -> None:
    """Layers see the same parameters, convolutions in the layout that they had."""
    model = make_model(KINDS["small_cnn"])
    before = {name: (p, p.stride()) for name, p in model.named_parameters()}
    LocalModel(model)
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert parameter.stride() == before[name][1]
    conv = dict(model.named_parameters())["features.3.weight"]
    assert conv.is_contiguous(memory_format=torch.channels_last)
