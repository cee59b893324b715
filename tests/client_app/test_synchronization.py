"""A GPU is never waited for within a round's local steps.

Training runs on PyTorch's device ``meta``, which knows shapes and no numbers: whatever asks for a
number, as ``item`` and boolean indices do, fails there as it would wait on a GPU. Copies from the
host to the device are looked at one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from fedquorum.rng import make_generator
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from client_app.data.base import build_pooled_split, select_split, to_device
from client_app.data.examples import Examples
from client_app.losses import CrossEntropy
from client_app.models import CNN, LogisticRegression, SmallCNN
from client_app.training.batched import BatchedTrainer
from client_app.training.dropout import replace_dropout
from client_app.training.local_sgd import LocalModel, LocalSGDConfig, TrainingSetup
from tests.client_app.clients import CPU, copy_arrays, make_ragged_data

META = torch.device("meta")
SHAPE, CLASSES, SIZES = (3, 8, 8), 4, (7, 33, 20)
WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.5], dtype=torch.float64)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic_regression": lambda: LogisticRegression(SHAPE, CLASSES),
    "small_cnn, dropout": lambda: SmallCNN(SHAPE, CLASSES, (6,), 0.3),
    "cnn": lambda: CNN((3, 16, 16), CLASSES),
}
HOW = {
    "plain": LocalSGDConfig(0.1, 8, 2),
    "momentum, decay, proximal": LocalSGDConfig(0.1, 8, 2, 0.5, 0.05, proximal_mu=0.3),
    "augmented": LocalSGDConfig(0.1, 8, 2, augmentation="crop_flip"),
}


class WaitingCopies(TorchDispatchMode):
    """Notes copies to the device that wait for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Compare the devices of what goes in and of what comes out."""
        given = kwargs or {}
        result = func(*args, **given)
        if func is torch.ops.aten._to_copy.default:
            crosses, waits = args[0].device != result.device, not given.get("non_blocking")
        elif func is torch.ops.aten.copy_.default:
            crosses, waits = args[1].device != result.device, not (len(args) > 2 and args[2])
        else:
            return result
        if crosses and waits:
            self.found.append(str(func))
        return result


@contextmanager
def record_waiting_copies() -> Iterator[list[str]]:
    """Yield a list to which waiting copies are added."""
    with WaitingCopies() as mode:
        yield mode.found


def make_problem(model: str) -> tuple[nn.Module, Examples]:
    """Return a model and examples without numbers."""
    made = MODELS[model]()
    shape = (3, 16, 16) if model == "cnn" else SHAPE
    replace_dropout(made, torch.zeros((2, *shape)))
    data = make_ragged_data(SIZES, shape, CLASSES)
    pool = build_pooled_split({k: select_split(client, "train") for k, client in data.items()})
    return made, Examples(pool, META)


def list_round_copies(model: str, config: LocalSGDConfig, steps: int) -> list[str]:
    """Return the copies that wait in a round of ``steps`` local steps."""
    network, examples = make_problem(model)
    config = LocalSGDConfig(**{**vars(config), "local_steps": steps})
    arrays = copy_arrays(network)
    setup = TrainingSetup(network.to(META), examples, config, CrossEntropy(WEIGHTS), seed=1)
    training = BatchedTrainer(setup, memory_bytes=2**27)
    clients = range(len(SIZES))
    with record_waiting_copies() as found:
        training.train_chunk(arrays, clients, clients, 0)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("config", HOW)
@pytest.mark.parametrize("model", MODELS)
def test_batched_training_does_not_wait(model: str, config: str) -> None:
    """What a round waits for, it waits for before its first step."""
    few, many = (list_round_copies(model, HOW[config], steps) for steps in (1, 9))
    assert few == many


@pytest.mark.parametrize("config", HOW)
@pytest.mark.parametrize("model", MODELS)
def test_sequential_training_does_not_wait(model: str, config: str) -> None:
    """The steps of one client wait for nothing at all."""
    network, examples = make_problem(model)
    local = LocalModel(network.to(META), CrossEntropy(WEIGHTS), closed_form=False)
    x, y = examples.select_clients([1])
    with record_waiting_copies() as found:
        local.train(x, y, HOW[config], partial(make_generator, 1, round_number=1, client=1))
    assert found == []


def test_waiting_copies_are_detected() -> None:
    """The tests above can fail."""
    here = torch.ones(3)
    with record_waiting_copies() as found:
        here.to(META)
        torch.empty(3, device=META).copy_(here)
    assert found == ["aten._to_copy.default", "aten.copy_.default"]
    available = torch.ones(3, device=META)
    for asks in (lambda: available.sum().item(), lambda: available[available > 0], available.cpu):
        with pytest.raises((RuntimeError, NotImplementedError)):
            asks()


def test_copies_to_the_device_do_not_wait() -> None:
    """And what is there already stays what it is."""
    here = torch.ones(3)
    with record_waiting_copies() as found:
        assert to_device(here, META).device == META
    assert found == []
    assert to_device(here, CPU) is here
