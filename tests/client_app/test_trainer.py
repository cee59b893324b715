"""Which clients train together, and that it makes no difference but to the clock."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from client_app import trainer as module
from client_app.dropout import give_dropout
from client_app.models import MLP, LogisticRegression, SmallCNN
from client_app.tasks import CrossEntropy
from client_app.trainer import Trainer
from client_app.training import LocalTraining, train
from tests.cases import sampled
from tests.client_app.clients import arrays_of, examples_of, ragged_data

CLASSES, SHAPE = 3, (1, 8, 8)
COUNTS = [9, 14, 5, 20]
HOW = LocalTraining(0.05, 4, 2, momentum=0.5)
EVERYONE = range(len(COUNTS))


def trainer(model: nn.Module, batching: str = "auto", **options: Any) -> Trainer:
    examples = examples_of(ragged_data(COUNTS, SHAPE, CLASSES))
    return Trainer(model, examples, HOW, CrossEntropy(), seed=3, batching=batching, **options)


def small_cnn(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return give_dropout(SmallCNN(SHAPE, CLASSES, (6,), dropout), torch.zeros(2, *SHAPE))


def together(own: Trainer, model: nn.Module, clients: Any = EVERYONE) -> bool:
    return own.trains_together(arrays_of(model), list(clients), 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let each trial take, in turn, the seconds put here; what is tried runs once."""
    seconds: list[float] = []

    def timed(work: Any, device: torch.device) -> float:
        work()
        return seconds.pop(0)

    monkeypatch.setattr(module, "_seconds", timed)
    return seconds


@pytest.mark.parametrize(
    "make",
    [
        lambda: LogisticRegression(SHAPE, CLASSES),
        lambda: MLP(SHAPE, CLASSES, 7),
        lambda: small_cnn(0.3),
    ],
)
def test_together_is_as_alone(make: Any) -> None:
    """The models of ``alone``, to rounding, stacked in the order of the clients asked."""
    torch.manual_seed(0)
    model = make()
    own, start = trainer(model), arrays_of(model)
    clients = [3, 0, 2]
    stacked = own.together(start, clients, 1)
    for place, client in enumerate(clients):
        for array, expected in zip(stacked, own.alone(start, client, 1), strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_allclose(array[place], expected, rtol=0, atol=1e-5)


def test_alone_returns_arrays_of_its_own() -> None:
    """What the shared model does later does not change them."""
    model = small_cnn()
    own, start = trainer(model), arrays_of(model)
    first = own.alone(start, 0, 0)
    kept = [array.copy() for array in first]
    own.alone(start, 1, 0)
    for array, before in zip(first, kept, strict=True):
        np.testing.assert_array_equal(array, before)
        assert array.flags.c_contiguous


def test_a_closed_form_is_always_used(clock: list[float]) -> None:
    """Nothing is tried, of one client or of several."""
    model = MLP(SHAPE, CLASSES, 7)
    own = trainer(model)
    assert together(own, model)
    assert together(own, model, [2])


def test_sequential_and_batched_are_what_they_say(clock: list[float]) -> None:
    """Nothing is tried where the setting decides."""
    dense, cnn = MLP(SHAPE, CLASSES, 7), small_cnn()
    for model in (dense, cnn):
        for clients in ([1], EVERYONE):
            assert not together(trainer(model, "sequential"), model, clients)
            assert together(trainer(model, "batched"), model, clients)


@pytest.mark.parametrize(("of_batched", "of_alone"), [(1.0, 2.0), (2.0, 1.0)])
def test_the_trial_decides_and_is_kept(
    of_batched: float, of_alone: float, clock: list[float]
) -> None:
    """What was faster once is taken from then on; one client alone needs no trial."""
    model = small_cnn()
    own = trainer(model)
    assert not together(own, model, [1])
    clock[:] = [of_batched, of_alone]
    assert together(own, model) is (of_batched < of_alone)
    assert clock == []
    assert together(own, model, [0, 1]) is (of_batched < of_alone)


def test_the_trial_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of eight clients at the most, and the arrays received stay."""
    model = small_cnn()
    sizes: list[int] = []
    data = ragged_data([30] * 12, SHAPE, CLASSES)
    own = Trainer(model, examples_of(data), HOW, CrossEntropy(), seed=3)
    start = arrays_of(model)
    before = [array.copy() for array in start]

    def spied(
        model: nn.Module, x: Any, y: Any, how: LocalTraining, *rest: Any, **more: Any
    ) -> None:
        sizes.append(how.steps(len(y)))
        train(model, x, y, how, *rest, **more)

    monkeypatch.setattr(module, "train", spied)
    own.trains_together(start, list(range(12)), 0)
    assert set(sizes) == {2}
    assert len(sizes) == 2 * 8  # once to warm up, once by the clock
    for array, other in zip(start, before, strict=True):
        np.testing.assert_array_equal(array, other)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.first(x.flatten(start_dim=1)).relu()
        logits: torch.Tensor = self.second(hidden)
        return logits


Tied.__module__ = "client_app.models.tied"  # of a model that does not draw numbers


@pytest.mark.parametrize("batching", ["auto", "batched"])
@pytest.mark.parametrize(
    "make",
    [Tied, lambda: SmallCNN(SHAPE, CLASSES, (6,), 0.3), lambda: nn.Sequential(nn.RReLU())],
    ids=["tied weights", "torch's dropout", "own random numbers"],
)
def test_what_cannot_be_batched_trains_alone(make: Any, batching: str, clock: list[float]) -> None:
    """Whatever the setting says; nothing is tried."""
    model = make()
    assert not together(trainer(model, batching), model)


class Branching(nn.Module):
    """A model whose forward pass looks at its numbers, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.linear(x.flatten(start_dim=1))
        return logits if float(logits.sum()) > 0 else 2 * logits


Branching.__module__ = "client_app.models.branching"


def test_what_vmap_cannot_run_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once, said, and trains one client after the other from then on."""
    said: list[str] = []
    monkeypatch.setattr(module, "log", lambda _, text, *rest: said.append(text % rest))
    model = Branching()
    own = trainer(model)
    assert not together(own, model)
    assert not together(own, model)
    (line,) = said
    assert "Branching cannot be batched" in line
    assert own.alone(arrays_of(model), 0, 0)[0].shape == (CLASSES, 64)


def test_the_trial_changes_no_training() -> None:
    """A trainer that tried gives the models of one that did not."""
    model = small_cnn(0.3)
    tried, fresh, start = trainer(model), trainer(model), arrays_of(model)
    together(tried, model)

    def models(own: Trainer) -> list[NDArray[Any]]:
        return [*own.together(start, [0, 1], 2), *own.alone(start, 1, 2)]

    for array, expected in zip(models(tried), models(fresh), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    sampled(
        [lambda: MLP(SHAPE, CLASSES, 7), lambda: small_cnn(0.3)], 1, seed=1
    ),  # minutes to compile
)
def test_compiled_training_is_as_ever(make: Any) -> None:
    """The same models to 1e-5 after a round, alone and together, with batches of two sizes."""
    model = make()
    own, start = trainer(model, compiled=True), arrays_of(model)
    expected = [trainer(model).alone(start, client, 1) for client in (0, 2)]
    stacked = own.together(start, [0, 2], 1)
    for place, client in enumerate((0, 2)):
        alone = own.alone(start, client, 1)
        for arrays in (alone, [array[place] for array in stacked]):
            for array, other in zip(arrays, expected[place], strict=True):
                np.testing.assert_allclose(array, other, rtol=0, atol=1e-5)
