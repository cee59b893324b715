"""Local training of one client against a NumPy reference."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import DataError
from fedquorum.rng import make_generator
from fedquorum.rules.parameters import AUGMENTATION
from numpy.typing import NDArray
from torch import nn

from client_app.data.base import IGNORE_INDEX
from client_app.evaluation.passes import evaluate_clients
from client_app.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    SequenceCrossEntropy,
    SquaredError,
    Task,
)
from client_app.models import LogisticRegression, SmallCNN
from client_app.rng import RngFactory, seed_torch
from client_app.training.augmentation import build_augmentation
from client_app.training.local_sgd import (
    LocalSGDConfig,
    TheoremLR,
    compute_batch_sizes,
    train_model,
)
from conf import SettingsError, compose_settings
from tests.client_app.clients import EachToken
from tests.reference import losses, sgd

FEATURES, CLASSES = 6, 4
DRAWS = partial(make_generator, 8)


def make_problem(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, FEATURES)), rng.integers(CLASSES, size=n)


def make_model(precision: torch.dtype, seed: int = 3) -> LogisticRegression:
    rng = np.random.default_rng(seed)
    model = LogisticRegression((FEATURES,), CLASSES).to(precision)
    for tensor in model.state_dict().values():
        tensor.copy_(torch.from_numpy(rng.standard_normal(tuple(tensor.shape))))
    return model


def get_weights(model: nn.Module) -> sgd.Softmax:
    return sgd.read([tensor.numpy().copy() for tensor in model.state_dict().values()])


HOW = {
    "plain": LocalSGDConfig(0.1, 5, 3, 0.0, 0.0),
    "one epoch, batches of one": LocalSGDConfig(0.05, 1, 1, 0.0, 0.0),
    "momentum": LocalSGDConfig(0.1, 5, 4, 0.9, 0.0),
    "weight decay": LocalSGDConfig(0.1, 5, 3, 0.0, 0.3),
    "momentum and weight decay": LocalSGDConfig(0.2, 7, 3, 0.7, 0.05),
    "batch larger than the data": LocalSGDConfig(0.1, 100, 3, 0.5, 0.0),
    "no remainder": LocalSGDConfig(0.1, 23, 2, 0.0, 0.0),
    "proximal": LocalSGDConfig(0.1, 5, 3, proximal_mu=1.0),
    "proximal, momentum, decay": LocalSGDConfig(0.1, 5, 3, 0.5, 0.1, proximal_mu=0.3),
}


def make_options(config: LocalSGDConfig) -> dict[str, Any]:
    names = ("batch_size", "local_epochs", "momentum", "weight_decay")
    return {name: getattr(config, name) for name in names} | {"mu": config.proximal_mu}


@pytest.mark.parametrize("config", HOW.values(), ids=list(HOW))
@pytest.mark.parametrize(
    ("precision", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)]
)
def test_train_is_the_formula(
    config: LocalSGDConfig, precision: torch.dtype, tolerance: float
) -> None:
    """Training equals SGD written from the formula, over the same random batches."""
    x, y = make_problem(23)
    model = make_model(precision)
    expected = sgd.train(
        get_weights(model),
        x,
        y,
        make_generator(8, "batches"),
        rates=repeat(config.lr),
        **make_options(config),
    )
    train_model(
        model,
        torch.from_numpy(x).to(precision),
        torch.from_numpy(y),
        config,
        DRAWS,
    )
    trained = get_weights(model)
    np.testing.assert_allclose(trained.weight, expected.weight, rtol=0, atol=tolerance)
    np.testing.assert_allclose(trained.bias, expected.bias, rtol=0, atol=tolerance)


SCHEDULES: dict[str, tuple[LocalSGDConfig, Callable[[int, int], float]]] = {
    # round t, step i of 6 (23 samples, batches of 8, 2 epochs) -> rate, by hand
    "step": (
        LocalSGDConfig(0.2, 8, 2, lr_schedule="step", lr_decay=0.5, lr_decay_every=3),
        lambda t, i: {0: 0.2, 2: 0.2, 3: 0.1, 7: 0.05}[t],
    ),
    "step, from round 2": (
        LocalSGDConfig(
            0.2, 8, 2, lr_schedule="step", lr_decay=0.5, lr_decay_every=1, lr_decay_from=2
        ),
        lambda t, i: {0: 0.2, 2: 0.2, 3: 0.1, 7: 0.00625}[t],
    ),
    "exponential": (
        LocalSGDConfig(0.2, 8, 2, lr_schedule="exponential", lr_decay=0.5, lr_decay_every=2),
        lambda t, i: 0.2 * 2 ** (-t / 2),
    ),
    "inverse_sqrt": (
        LocalSGDConfig(0.2, 8, 2, lr_schedule="inverse_sqrt", lr_decay_every=10),
        lambda t, i: {0: 0.2, 2: 0.2 / 1.2**0.5, 3: 0.2 / 1.3**0.5, 7: 0.2 / 1.7**0.5}[t],
    ),
    "theorem, gamma from L": (
        LocalSGDConfig(9.9, 8, 2, lr_schedule="theorem", theorem_lr=TheoremLR(0.5, 2.0)),
        lambda t, i: 2 / (0.5 * (6 * t + i + 32)),
    ),
    "theorem, gamma from the steps": (
        LocalSGDConfig(9.9, 8, 2, lr_schedule="theorem", theorem_lr=TheoremLR(mu=4.0)),
        lambda t, i: 2 / (4 * (6 * t + i + 6)),
    ),
    "theorem, 4 local steps": (
        LocalSGDConfig(
            9.9, 8, 2, lr_schedule="theorem", theorem_lr=TheoremLR(mu=4.0), local_steps=4
        ),
        lambda t, i: 2 / (4 * (4 * t + i + 4)) if i < 4 else 0.0,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("t", [0, 2, 3, 7])
def test_learning_rate_schedules(name: str, t: int) -> None:
    """Every local step uses the rate of its round and step."""
    config, rate = SCHEDULES[name]
    x, y = make_problem(23)
    model = make_model(torch.float64)
    expected = sgd.train(
        get_weights(model),
        x,
        y,
        make_generator(8, "batches"),
        rates=[rate(t, i) for i in range(6)],
        **make_options(config),
    )
    train_model(model, torch.from_numpy(x), torch.from_numpy(y), config, DRAWS, t=t)
    np.testing.assert_allclose(get_weights(model).weight, expected.weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", HOW.values(), ids=list(HOW))
@pytest.mark.parametrize("local_steps", [1, 4, 5, 7, 13])
def test_local_steps_are_the_formula(config: LocalSGDConfig, local_steps: int) -> None:
    """I steps are the first I of enough epochs: in the reference the others have rate 0."""
    x, y = make_problem(23)
    model = make_model(torch.float64)
    expected = sgd.train(
        get_weights(model),
        x,
        y,
        make_generator(8, "batches"),
        rates=chain(repeat(config.lr, local_steps), repeat(0.0)),
        **make_options(replace(config, local_epochs=local_steps)),
    )
    config = replace(config, local_steps=local_steps)
    train_model(model, torch.from_numpy(x), torch.from_numpy(y), config, DRAWS)
    trained = get_weights(model)
    np.testing.assert_allclose(trained.weight, expected.weight, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trained.bias, expected.bias, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", HOW.values(), ids=list(HOW))
def test_the_steps_of_the_epochs_are_the_epochs(config: LocalSGDConfig) -> None:
    """As many steps as E epochs have give the model of E epochs, to the last bit."""
    x, y = (torch.from_numpy(a) for a in make_problem(23))
    ends = []
    for one in (config, replace(config, local_epochs=99, local_steps=config.count_steps(23))):
        model = make_model(torch.float32)
        train_model(model, x.float(), y, one, DRAWS)
        ends.append(get_weights(model))
    np.testing.assert_array_equal(ends[0].weight, ends[1].weight)
    np.testing.assert_array_equal(ends[0].bias, ends[1].bias)


class Spy(nn.Module):
    """A linear model that keeps what it was given to train on."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, CLASSES)
        self.batches: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches.append(x.clone())
        logits: torch.Tensor = self.linear(x.flatten(start_dim=1))
        return logits


def list_rows(n: int, config: LocalSGDConfig) -> list[list[int]]:
    """Return the samples of each batch that a client with n samples trains on."""
    spy = Spy(1)
    train_model(
        spy, torch.arange(float(n))[:, None], torch.zeros(n, dtype=torch.int64), config, DRAWS
    )
    return [batch.flatten().int().tolist() for batch in spy.batches]


def test_local_steps_go_through_fresh_permutations() -> None:
    """When all samples were used the next permutation begins, and it is another one."""
    batches = list_rows(23, LocalSGDConfig(0.1, 5, 1, local_steps=12))
    assert [len(rows) for rows in batches] == [5, 5, 5, 5, 3] * 2 + [5, 5]
    first, second = (
        [row for rows in split for row in rows] for split in (batches[:5], batches[5:10])
    )
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second
    assert len(set(batches[10] + batches[11])) == 10


@pytest.mark.parametrize("n", [1, 3])
def test_fewer_samples_than_a_batch(n: int) -> None:
    """A client with fewer samples than a batch takes each of its steps on all it has."""
    batches = list_rows(n, LocalSGDConfig(0.1, 16, 1, local_steps=5))
    assert [sorted(rows) for rows in batches] == [list(range(n))] * 5


@pytest.mark.parametrize("name", AUGMENTATION.choices)
def test_augmentation_is_for_training_only(name: str) -> None:
    """A model trains on changed batches and is evaluated on the images as they are."""
    x, y = torch.rand(7, 3, 6, 5), torch.arange(7) % CLASSES
    config = LocalSGDConfig(0.1, 3, 2, augmentation=name)
    spy, plain = Spy(90), Spy(90)
    evaluate_clients(spy, x, y, [len(y)])
    assert torch.equal(spy.batches.pop(), x)
    train_model(plain, x, y, replace(config, augmentation="none"), DRAWS)
    images, labels = x.clone(), y.clone()
    train_model(spy, images, labels, config, DRAWS)
    augment = build_augmentation(name, DRAWS)
    for changed, batch in zip(spy.batches, plain.batches, strict=True):
        assert torch.equal(changed, augment(batch))
    assert torch.equal(images, x)
    assert torch.equal(labels, y)


def make_cnn(dropout: float) -> SmallCNN:
    with seed_torch(5, torch.device("cpu")):
        return SmallCNN((1, 8, 8), CLASSES, (16,), dropout)


IMAGES, LABELS = torch.linspace(0, 1, 9 * 64).reshape(9, 1, 8, 8), torch.arange(9) % CLASSES


def train_cnn(dropout: float, draws: RngFactory = DRAWS) -> torch.Tensor:
    model = make_cnn(dropout)
    train_model(model, IMAGES, LABELS, LocalSGDConfig(0.1, 4, 2), draws)
    return model.logits.weight.detach()


def test_dropout_draws_from_its_stream() -> None:
    """What dropout drops follows from the stream, not from what torch's generator did before."""
    first = train_cnn(0.5)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    assert torch.equal(train_cnn(0.5), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(train_cnn(0.0), first)


@pytest.mark.parametrize("key", [{"client": 1}, {"round_number": 1}])
def test_dropout_differs_between_clients_and_rounds(key: dict[str, int]) -> None:
    """Another client or round drops other numbers, with the same batches."""

    def draws(purpose: str) -> np.random.Generator:
        return make_generator(8, purpose, **(key if purpose == "dropout" else {}))

    assert not torch.equal(train_cnn(0.5, draws), train_cnn(0.5))
    assert torch.equal(train_cnn(0.0, draws), train_cnn(0.0))


def test_a_failure_in_training_puts_the_generator_back() -> None:
    """A model that raises while dropout is seeded leaves torch's generator as it was."""
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shape"):
        train_model(make_cnn(0.5), torch.zeros(2, 1, 20, 20), LABELS[:2], HOW["plain"], DRAWS)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("config", "dropout", "purposes"),
    [
        (LocalSGDConfig(0.1, 4, 2), 0.0, {"batches"}),
        (LocalSGDConfig(0.1, 4, 2), 0.2, {"batches", "dropout"}),
        (LocalSGDConfig(0.1, 4, 2, augmentation="crop_flip"), 0.0, {"batches", "augmentation"}),
    ],
)
def test_only_what_is_needed_is_drawn(
    config: LocalSGDConfig, dropout: float, purposes: set[str]
) -> None:
    """A model without dropout and a training without augmentation do not pay for them."""
    selected: list[str] = []

    def draws(purpose: str) -> np.random.Generator:
        selected.append(purpose)
        return make_generator(1, purpose)

    train_model(make_cnn(dropout), IMAGES, LABELS, config, draws)
    assert sorted(selected) == sorted(purposes)


def test_settings_of_local_training() -> None:
    """Local steps are null unless set; what is not allowed is refused in one line."""
    client = compose_settings("custom").settings.client
    assert (client.local_steps, client.augmentation) == (None, "none")
    assert compose_settings("custom", "client.local_steps=5").settings.client.local_steps == 5
    for overrides, message in {
        "client.local_steps=0": "client.local_steps must be a whole number >= 1, got 0",
        "client.augmentation=mix": "client.augmentation must be one of none, crop, crop_flip, cif",
    }.items():
        with pytest.raises(SettingsError, match=message):
            compose_settings("custom", overrides)


def test_momentum_starts_at_zero_in_every_call() -> None:
    """A second call with the same start and stream ends at the same model as the first."""
    x, y = make_problem(12)
    ends = []
    model = make_model(torch.float64)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        model.load_state_dict(start)
        train_model(
            model,
            torch.from_numpy(x),
            torch.from_numpy(y),
            HOW["momentum"],
            partial(make_generator, 1),
        )
        ends.append(get_weights(model))
    np.testing.assert_array_equal(ends[0].weight, ends[1].weight)
    assert not np.array_equal(ends[0].weight, start["linear.weight"].numpy())


def test_train_works_in_training_mode_and_evaluate_does_not() -> None:
    """Layers such as dropout are active while training and passive while evaluating."""
    modes: list[bool] = []

    class Spy(LogisticRegression):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            modes.append(self.training)
            return super().forward(x)

    x, y = make_problem(4)
    model = Spy((FEATURES,), CLASSES).double()
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    evaluate_clients(model, inputs, labels, [len(labels)])
    train_model(
        model, inputs, labels, LocalSGDConfig(0.1, 2, 1, 0.0, 0.0), partial(make_generator, 1)
    )
    evaluate_clients(model, inputs, labels, [len(labels)])
    assert modes == [False, True, True, False]


WEIGHTS = [0.5, 2.0, 0.1, 3.0]
# task -> it, number of outputs, and the slope of the mean loss by the outputs
TASKS: dict[str, tuple[Task, int, Callable[[Any, Any], NDArray[np.float64]]]] = {
    "cross entropy": (CrossEntropy(), CLASSES, losses.cross_entropy_slope),
    "class weights": (
        CrossEntropy(torch.tensor(WEIGHTS)),
        CLASSES,
        partial(losses.cross_entropy_slope, weights=torch.tensor(WEIGHTS).tolist()),
    ),
    "binary": (BinaryCrossEntropy(), 1, losses.binary_slope),
    "binary, class weights": (
        BinaryCrossEntropy(torch.tensor([0.25, 4.0])),
        1,
        partial(losses.binary_slope, weights=[0.25, 4.0]),
    ),
    "sequence": (
        SequenceCrossEntropy(),
        CLASSES,
        partial(losses.sequence_slope, no_target=IGNORE_INDEX),
    ),
    "number": (SquaredError(), 1, losses.squared_error_slope),
}


def make_task_problem(name: str, n: int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    rng = np.random.default_rng(n)
    shape = (n, 5) if name == "sequence" else (n,)
    x = rng.standard_normal((*shape, FEATURES))
    if name == "number":
        return x, rng.standard_normal(n)
    y = rng.integers(2 if name.startswith("binary") else CLASSES, size=shape)
    if name == "sequence":
        y[rng.random(shape) < 0.3] = IGNORE_INDEX
        y[0] = IGNORE_INDEX
    return x, y


@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_by_its_formula(name: str) -> None:
    """Each step goes down the slope of the batch's mean loss, as written without autograd."""
    task, outputs, slope = TASKS[name]
    x, y = make_task_problem(name, 23)
    model = EachToken(FEATURES, CLASSES)
    model.linear = nn.Linear(FEATURES, outputs, dtype=torch.float64)
    weight, bias = (p.detach().numpy().copy() for p in model.parameters())
    rng = make_generator(8, "batches")
    for _ in range(3):
        order = rng.permutation(23)
        for start in range(0, 23, 5):
            rows = order[start : start + 5]
            error = slope(x[rows] @ weight.T + bias, y[rows]).reshape(-1, outputs)
            weight -= 0.1 * error.T @ x[rows].reshape(-1, FEATURES)
            bias -= 0.1 * error.sum(axis=0)
    config = LocalSGDConfig(0.1, 5, 3)
    train_model(model, torch.from_numpy(x), torch.from_numpy(y), config, DRAWS, task=task)
    trained = [p.detach().numpy() for p in model.parameters()]
    np.testing.assert_allclose(trained[0], weight, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trained[1], bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("n", "batch_size", "plain", "normalized"),
    [
        (23, 5, [5, 5, 5, 5, 3], [5, 5, 5, 5, 3]),
        (21, 5, [5, 5, 5, 5, 1], [5, 5, 5, 5]),
        (20, 5, [5, 5, 5, 5], [5, 5, 5, 5]),
        (6, 5, [5, 1], [5]),
        (3, 5, [3], [3]),
        (1, 5, [1], None),
        (3, 1, [1, 1, 1], None),
    ],
)
def test_batch_sizes(n: int, batch_size: int, plain: list[int], normalized: list[int]) -> None:
    """Full batches and the rest; of a model that normalizes batches none is of one sample."""
    config = LocalSGDConfig(0.1, batch_size, 3)
    assert compute_batch_sizes(n, batch_size) == plain
    assert config.count_steps(n) == 3 * len(plain)
    if normalized:
        assert compute_batch_sizes(n, batch_size, batch_norm=True) == normalized
        assert config.count_steps(n, batch_norm=True) == 3 * len(normalized)
        return
    message = f"at least 2 training samples, got client.batch_size={batch_size} and {n} of the"
    with pytest.raises(DataError, match=message):
        compute_batch_sizes(n, batch_size, batch_norm=True)


class Normalized(Spy):
    """A linear model after batch normalization."""

    def __init__(self) -> None:
        super().__init__(1)
        self.normalize = nn.BatchNorm1d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = super().forward(x) + 0 * self.normalize(x)
        return logits


def test_batch_normalization_leaves_out_a_last_batch_of_one() -> None:
    """Of 21 samples in batches of 5 one is left out of each epoch, another each time."""
    spy = Normalized()
    x, y = torch.arange(21.0)[:, None], torch.zeros(21, dtype=torch.int64)
    train_model(spy, x, y, LocalSGDConfig(0.1, 5, 3), DRAWS)
    batches = [batch.flatten().int().tolist() for batch in spy.batches]
    assert [len(rows) for rows in batches] == [5] * 12
    left_out = []
    for epoch in (batches[:4], batches[4:8], batches[8:]):
        rows = [row for batch in epoch for row in batch]
        assert len(set(rows)) == 20
        left_out.append((set(range(21)) - set(rows)).pop())
    assert len(set(left_out)) > 1
    with pytest.raises(DataError, match="batch normalization"):
        train_model(spy, x[:1], y[:1], LocalSGDConfig(0.1, 5, 3), DRAWS)


def test_without_normalization_a_batch_of_one_is_trained_on() -> None:
    """Every sample is in every epoch."""
    assert [len(rows) for rows in list_rows(21, LocalSGDConfig(0.1, 5, 1))] == [5, 5, 5, 5, 1]
