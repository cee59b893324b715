"""Which clients train together, and that it makes no difference but to the clock."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.losses import CrossEntropy
from client_app.models import MLP, SmallCNN
from client_app.training import trainer as module
from client_app.training.dropout import replace_dropout
from client_app.training.local_sgd import LocalSGDConfig, TrainingSetup
from client_app.training.trainer import Trainer
from tests.cases import is_long
from tests.client_app.clients import copy_arrays, get_examples, make_ragged_data

CLASSES, SHAPE = 3, (1, 8, 8)
COUNTS = [9, 14, 5, 20]
HOW = LocalSGDConfig(0.05, 4, 2, momentum=0.5)
EVERYONE = range(len(COUNTS))


def make_trainer(
    model: nn.Module, batching: str = "auto", how: LocalSGDConfig = HOW, **options: Any
) -> Trainer:
    examples = get_examples(make_ragged_data(COUNTS, SHAPE, CLASSES))
    compiled = options.pop("compiled", False)
    setup = TrainingSetup(model, examples, how, CrossEntropy(), seed=3, compiled=compiled)
    return Trainer(setup, batching=batching, **options)


def small_cnn(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return replace_dropout(SmallCNN(SHAPE, CLASSES, (6,), dropout), torch.zeros(2, *SHAPE))


def test_sequential_training_returns_copies() -> None:
    """Later training of the shared model does not change returned arrays."""
    model = small_cnn()
    local_trainer, start = make_trainer(model), copy_arrays(model)
    first = local_trainer.train_client(start, 0, 0)
    stored = [array.copy() for array in first]
    local_trainer.train_client(start, 1, 0)
    for array, before in zip(first, stored, strict=True):
        np.testing.assert_array_equal(array, before)
        assert array.flags.c_contiguous


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("make", [lambda: MLP(SHAPE, CLASSES, 7), lambda: small_cnn(0.3)])
def test_train_clients_equals_train_client(make: Any, cores: int) -> None:
    """``train_clients`` yields the bits of ``train_client`` in order, for any number of cores."""
    torch.manual_seed(0)
    model = make()
    start, clients = copy_arrays(model), [3, 0, 2, 1, 3, 0]
    local_trainer = make_trainer(model, cores=cores)
    for _ in range(2):  # in models that trained before, too
        for found, client in zip(train_each(local_trainer, start, clients), clients, strict=True):
            for array, expected in zip(
                found, make_trainer(model).train_client(start, client, 1), strict=True
            ):
                np.testing.assert_array_equal(array, expected, strict=True)
    for array, before in zip(copy_arrays(model), start, strict=True):
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize(
    "how", [HOW, replace(HOW, momentum=0.0, proximal_mu=0.3), replace(HOW, proximal_mu=0.3)]
)
@pytest.mark.parametrize(
    ("make", "batching"),
    [
        (lambda: MLP(SHAPE, CLASSES, 7), "auto"),
        (lambda: MLP(SHAPE, CLASSES, 7), "sequential"),
        (small_cnn, "auto"),
        (small_cnn, "batched"),
    ],
)
def test_clients_may_start_from_different_models(
    make: Any, batching: str, how: LocalSGDConfig
) -> None:
    """Each trains as if its start were the model received: to the bit, by vmap to rounding."""
    torch.manual_seed(2)
    models = [make() for _ in range(3)]
    received, *others = map(copy_arrays, models)
    starts = {3: others[0], 1: others[1], 2: others[0]}
    clients = [3, 0, 2, 1]
    local_trainer = make_trainer(models[0], batching, how=how)
    before = [array.copy() for arrays in others for array in arrays]
    tolerance = 1e-6 if batching == "batched" else 0.0
    found = train_each(local_trainer, received, clients, starts=starts)
    for arrays, client in zip(found, clients, strict=True):
        separate = local_trainer.train_client(starts.get(client, received), client, 1)
        for array, expected in zip(arrays, separate, strict=True):
            np.testing.assert_allclose(array, expected, rtol=0, atol=tolerance)
    for array, stored in zip((a for arrays in others for a in arrays), before, strict=True):
        np.testing.assert_array_equal(array, stored)


def train_each(
    local_trainer: Trainer, start: Any, clients: list[int], t: int = 1, **options: Any
) -> list[Any]:
    """Return each client's arrays, or its exception, in the order of the clients."""
    found: dict[int, Any] = {}

    def copy_models(places: list[int], models: list[torch.Tensor]) -> list[list[Any]]:
        assert all(len(model) == len(places) for model in models)
        return [[model[i].numpy().copy() for model in models] for i in range(len(places))]

    for places, result in local_trainer.train_clients(start, clients, t, copy_models, **options):
        assert not found.keys() & set(places)
        each_of = [result] * len(places) if isinstance(result, Exception) else result
        found |= dict(zip(places, each_of, strict=True))
    return [found[index] for index in range(len(clients))]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("make", [lambda: MLP(SHAPE, CLASSES, 7), small_cnn])
def test_a_client_that_fails_takes_no_other_with_it(make: Any, cores: int) -> None:
    """Its exception is yielded at its index, and ``train_client`` raises it."""
    model = make()
    local_trainer, start = make_trainer(model, cores=cores), copy_arrays(model)
    first, failed, last = train_each(local_trainer, start, [2, 77, 1], 0)
    assert isinstance(failed, KeyError)
    with pytest.raises(KeyError, match="77"):
        local_trainer.train_client(start, 77, 0)
    for found, client in ((first, 2), (last, 1)):
        assert isinstance(found, list)
        for array, expected in zip(
            found, local_trainer.train_client(start, client, 0), strict=True
        ):
            np.testing.assert_array_equal(array, expected)


def test_a_model_is_valid_while_it_is_used() -> None:
    """While a consumer looks at a model no other client trains in its memory."""
    model = small_cnn()
    local_trainer, start = make_trainer(model, cores=2), copy_arrays(model)

    def stays(_: list[int], models: list[torch.Tensor]) -> bool:
        seen = [tensor.clone() for tensor in models]
        time.sleep(0.02)
        return all(map(torch.equal, models, seen))

    assert all(
        result is True
        for _, result in local_trainer.train_clients(start, [3, 0, 2, 1] * 3, 1, stays)
    )


@pytest.mark.parametrize("batching", ["auto", "batched"])
def test_a_closed_form_trains_together(batching: str) -> None:
    """On every device; with ``sequential`` one client after the other, by the same path."""
    model = MLP(SHAPE, CLASSES, 7)
    assert make_trainer(model, batching).is_batched()
    assert not make_trainer(model, "sequential").is_batched()
    assert {make_trainer(model, way).mode for way in (batching, "sequential")} == {
        "batched, closed form"
    }
    local_trainer, start = make_trainer(model, "sequential"), copy_arrays(model)
    batched = train_each(make_trainer(model, batching), start, [0, 1, 2, 3], 2)
    for found, expected in zip(local_trainer.train_client(start, 1, 2), batched[1], strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("batching", "device", "expected"),
    [
        ("auto", "cpu", False),
        ("auto", "cuda", True),
        ("sequential", "cpu", False),
        ("sequential", "cuda", False),
        ("batched", "cpu", True),
        ("batched", "cuda", True),
    ],
)
def test_the_device_decides_for_other_models(
    batching: str, device: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a closed form a GPU batches clients and a CPU trains them one by one."""
    set_device(device, monkeypatch)
    local_trainer = make_trainer(small_cnn(), batching)
    assert local_trainer.is_batched() is expected
    separate = "sequential, closed form" if device == "cpu" else "sequential, autograd"
    assert local_trainer.mode == ("batched, autograd" if expected else separate)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_threads_that_batch_clients_do_not_meet(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk of clients is trained as if it were alone, and the model is not changed."""
    monkeypatch.setattr(module, "MAX_CPU_BYTES", 1)  # a chunk for every client
    model, clients = small_cnn(0.3), list(EVERYONE) * 3
    start = copy_arrays(model)
    found = train_each(make_trainer(model, "batched", cores=cores), start, clients)
    for arrays, client in zip(found, clients, strict=True):
        alone = make_trainer(model, "batched", cores=1).train_client(start, client, 1)
        for array, expected in zip(arrays, alone, strict=True):
            np.testing.assert_array_equal(array, expected)
    for array, before in zip(copy_arrays(model), start, strict=True):
        np.testing.assert_array_equal(array, before)


def set_device(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainers decide as on this device."""
    monkeypatch.setattr(Trainer, "_on_gpu", property(lambda _: device == "cuda"))


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
def test_models_without_batching_train_one_by_one(
    make: Any, batching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models that vmap cannot run train one by one, on any device."""
    set_device("cuda", monkeypatch)
    local_trainer = make_trainer(make(), batching)
    assert not local_trainer.is_batched()
    assert local_trainer.mode == "sequential, autograd"


class Branching(nn.Module):
    """A model whose forward pass branches on its numbers, which vmap cannot run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits: torch.Tensor = self.linear(x.flatten(start_dim=1))
        return logits if float(logits.sum()) > 0 else 2 * logits


Branching.__module__ = "client_app.models.branching"


def test_what_vmap_cannot_run_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's trainer tries it once, says so, and trains one client after the other."""
    set_device("cuda", monkeypatch)
    said: list[str] = []
    monkeypatch.setattr(module, "log", lambda _, text, *rest: said.append(text % rest))
    model = Branching()
    local_trainer = make_trainer(model)
    assert not local_trainer.is_batched()
    assert not local_trainer.is_batched()
    (line,) = said
    assert "Branching cannot be batched" in line
    assert local_trainer.train_client(copy_arrays(model), 0, 0)[0].shape == (CLASSES, 64)


def test_trying_changes_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that tried whether vmap can run a model gives the models of one that did not."""
    model = small_cnn(0.3)
    tried, fresh, start = make_trainer(model), make_trainer(model), copy_arrays(model)
    set_device("cuda", monkeypatch)
    assert tried.is_batched()

    assert fresh.is_batched()
    for found, expected in zip(
        *(train_each(local_trainer, start, [0, 1], 2) for local_trainer in (tried, fresh)),
        strict=True,
    ):
        for array, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(array, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    # The convolutions take minutes to compile.
    [lambda: MLP(SHAPE, CLASSES, 7)] + [lambda: small_cnn(0.3)] * is_long(),
)
def test_compiled_training_gives_the_same_models(make: Any) -> None:
    """Compiled training gives the same models to 1e-5, sequential and batched."""
    model = make()
    start = copy_arrays(model)
    expected = train_each(make_trainer(model), start, [0, 2])
    for batching in ("batched", "sequential"):
        found = train_each(make_trainer(model, batching, compiled=True), start, [0, 2])
        for arrays, others in zip(found, expected, strict=True):
            for array, other in zip(arrays, others, strict=True):
                np.testing.assert_allclose(array, other, rtol=0, atol=1e-5)
