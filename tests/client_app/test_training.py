"""Local training and evaluation against a NumPy reference."""

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app import training
from client_app.models import LogisticRegression
from client_app.training import LocalTraining, evaluate, train
from tests.reference import sgd

FEATURES, CLASSES = 6, 4


def problem(n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(n)
    return rng.standard_normal((n, FEATURES)), rng.integers(CLASSES, size=n)


def model_of(precision: torch.dtype, seed: int = 3) -> LogisticRegression:
    rng = np.random.default_rng(seed)
    model = LogisticRegression((FEATURES,), CLASSES).to(precision)
    for tensor in model.state_dict().values():
        tensor.copy_(torch.from_numpy(rng.standard_normal(tuple(tensor.shape))))
    return model


def weights(model: torch.nn.Module) -> sgd.Softmax:
    return sgd.read([tensor.numpy().copy() for tensor in model.state_dict().values()])


HOW = {
    "plain": LocalTraining(0.1, 5, 3, 0.0, 0.0),
    "one epoch, batches of one": LocalTraining(0.05, 1, 1, 0.0, 0.0),
    "momentum": LocalTraining(0.1, 5, 4, 0.9, 0.0),
    "weight decay": LocalTraining(0.1, 5, 3, 0.0, 0.3),
    "momentum and weight decay": LocalTraining(0.2, 7, 3, 0.7, 0.05),
    "batch larger than the data": LocalTraining(0.1, 100, 3, 0.5, 0.0),
    "no remainder": LocalTraining(0.1, 23, 2, 0.0, 0.0),
    "proximal": LocalTraining(0.1, 5, 3, mu=1.0),
    "proximal, momentum, decay": LocalTraining(0.1, 5, 3, 0.5, 0.1, mu=0.3),
}


def options(how: LocalTraining) -> dict[str, Any]:
    names = ("batch_size", "local_epochs", "momentum", "weight_decay", "mu")
    return {name: getattr(how, name) for name in names}


@pytest.mark.parametrize("how", HOW.values(), ids=list(HOW))
@pytest.mark.parametrize(
    ("precision", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)]
)
def test_train_is_the_formula(how: LocalTraining, precision: torch.dtype, tolerance: float) -> None:
    """Training equals SGD written from the formula, over the same random batches."""
    x, y = problem(23)
    model = model_of(precision)
    expected = sgd.train(
        weights(model), x, y, np.random.default_rng(8), rates=repeat(how.lr), **options(how)
    )
    train(
        model,
        torch.from_numpy(x).to(precision),
        torch.from_numpy(y),
        how,
        np.random.default_rng(8),
    )
    trained = weights(model)
    np.testing.assert_allclose(trained.weight, expected.weight, rtol=0, atol=tolerance)
    np.testing.assert_allclose(trained.bias, expected.bias, rtol=0, atol=tolerance)


SCHEDULES: dict[str, tuple[LocalTraining, Callable[[int, int], float]]] = {
    # round t, step i of 6 (23 samples, batches of 8, 2 epochs) -> rate, by hand
    "step": (
        LocalTraining(0.2, 8, 2, lr_schedule="step", lr_decay=0.5, lr_decay_every=3),
        lambda t, i: {0: 0.2, 2: 0.2, 3: 0.1, 7: 0.05}[t],
    ),
    "exponential": (
        LocalTraining(0.2, 8, 2, lr_schedule="exponential", lr_decay=0.5, lr_decay_every=2),
        lambda t, i: 0.2 * 2 ** (-t / 2),
    ),
    "theorem, gamma from L": (
        LocalTraining(9.9, 8, 2, lr_schedule="theorem", strong_convexity=0.5, smoothness=2.0),
        lambda t, i: 2 / (0.5 * (6 * t + i + 32)),
    ),
    "theorem, gamma from the steps": (
        LocalTraining(9.9, 8, 2, lr_schedule="theorem", strong_convexity=4.0, smoothness=1.0),
        lambda t, i: 2 / (4 * (6 * t + i + 6)),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("t", [0, 2, 3, 7])
def test_learning_rate_schedules(name: str, t: int) -> None:
    """Every local step uses the rate of its round and step."""
    how, rate = SCHEDULES[name]
    x, y = problem(23)
    model = model_of(torch.float64)
    expected = sgd.train(
        weights(model),
        x,
        y,
        np.random.default_rng(8),
        rates=[rate(t, i) for i in range(6)],
        **options(how),
    )
    train(model, torch.from_numpy(x), torch.from_numpy(y), how, np.random.default_rng(8), t=t)
    np.testing.assert_allclose(weights(model).weight, expected.weight, rtol=0, atol=1e-10)


def test_momentum_starts_at_zero_in_every_call() -> None:
    """A second call with the same start and stream ends at the same model as the first."""
    x, y = problem(12)
    ends = []
    model = model_of(torch.float64)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        model.load_state_dict(start)
        train(
            model,
            torch.from_numpy(x),
            torch.from_numpy(y),
            HOW["momentum"],
            np.random.default_rng(1),
        )
        ends.append(weights(model))
    np.testing.assert_array_equal(ends[0].weight, ends[1].weight)
    assert not np.array_equal(ends[0].weight, start["linear.weight"].numpy())


def test_train_works_in_training_mode_and_evaluate_does_not() -> None:
    """Layers such as dropout are active while training and passive while evaluating."""
    modes: list[bool] = []

    class Spy(LogisticRegression):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            modes.append(self.training)
            return super().forward(x)

    x, y = problem(4)
    model = Spy((FEATURES,), CLASSES).double()
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    evaluate(model, inputs, labels)
    train(model, inputs, labels, LocalTraining(0.1, 2, 1, 0.0, 0.0), np.random.default_rng(1))
    evaluate(model, inputs, labels)
    assert modes == [False, True, True, False]


@pytest.mark.parametrize("n", [1, 23, 300])
def test_evaluate_is_the_formula(n: int) -> None:
    """Mean cross entropy, accuracy and count are those of the formula, sample by sample."""
    x, y = problem(n)
    model = model_of(torch.float64)
    loss, accuracy = sgd.measure(weights(model), x, y)
    measure = evaluate(model, torch.from_numpy(x), torch.from_numpy(y))
    assert measure.num_examples == n
    assert measure.loss == pytest.approx(loss, abs=1e-12)
    assert measure.accuracy == accuracy


def test_evaluate_survives_huge_logits() -> None:
    """A confident wrong model has a large finite loss, not inf or NaN."""
    model = LogisticRegression((1,), 2)
    model.load_state_dict(
        {"linear.weight": torch.tensor([[1e6], [0.0]]), "linear.bias": torch.zeros(2)}
    )
    measure = evaluate(model, torch.ones(3, 1), torch.tensor([1, 1, 0]))
    assert measure.loss == pytest.approx(2e6 / 3)
    assert measure.accuracy == 1 / 3


@pytest.mark.parametrize("chunk", [1, 7, 23, 24])
def test_evaluate_in_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the chunks, also with a smaller last one, does not change the measure."""
    x, y = problem(23)
    model = model_of(torch.float64)
    loss, accuracy = sgd.measure(weights(model), x, y)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(training, "EVALUATION_BATCH", chunk)
    measure = evaluate(model, torch.from_numpy(x), torch.from_numpy(y))
    assert sum(sizes) == 23
    assert max(sizes) == min(chunk, 23)
    assert measure.num_examples == 23
    assert measure.loss == pytest.approx(loss, abs=1e-12)
    assert measure.accuracy == accuracy


def test_evaluate_changes_nothing() -> None:
    """Evaluation leaves parameters and gradients as they are."""
    x, y = problem(9)
    model = model_of(torch.float64)
    before = weights(model)
    evaluate(model, torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_array_equal(weights(model).weight, before.weight)
    assert all(parameter.grad is None for parameter in model.parameters())
