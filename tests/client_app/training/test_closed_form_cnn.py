"""The gradients of chains of layers in closed form, and which models have one."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from client_app.losses import BinaryCrossEntropy, CrossEntropy, SequenceCrossEntropy
from client_app.models import CNN, LSTM, M5, MLP, CelebaCNN, SmallCNN
from client_app.training.closed_form_cnn import build_closed_form_cnn
from client_app.training.dropout import find_dropouts, replace_dropout
from client_app.training.local_sgd import LocalModel

SHAPE, CLASSES = (3, 16, 18), 5


def small_cnn(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(2)
    return replace_dropout(SmallCNN(SHAPE, CLASSES, (8, 6), dropout), torch.zeros(2, *SHAPE))


def m5(channels: int, padding: int) -> nn.Module:
    return M5((channels, 1800), CLASSES, 3, 4, padding)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small_cnn": (small_cnn, SHAPE),
    "small_cnn, dropout": (lambda: small_cnn(0.4), SHAPE),
    "cnn": (lambda: CNN(SHAPE, CLASSES), SHAPE),
    "celeba_cnn": (lambda: CelebaCNN(SHAPE, CLASSES), SHAPE),
    "m5": (lambda: m5(1, 1), (1, 1800)),
    "m5, two channels": (lambda: m5(2, 0), (2, 1800)),
}


def frozen() -> nn.Module:
    model = small_cnn()
    next(model.parameters()).requires_grad_(False)
    return model


class Changed(SmallCNN):
    """Another forward pass than its parent's."""


@pytest.mark.parametrize(
    "make",
    [
        frozen,
        lambda: SmallCNN(SHAPE, CLASSES, (8,), 0.3),
        lambda: Changed(SHAPE, CLASSES, (8,)),
        lambda: MLP(SHAPE, CLASSES, 7),
        lambda: CelebaCNN(SHAPE, CLASSES, "aaggff"),
        lambda: LSTM(9, CLASSES, 5, 6, 1, every_position=False),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 2)),
    ],
    ids=["frozen", "torch's dropout", "subclass", "mlp", "groups", "lstm", "another model"],
)
def test_models_without_a_closed_form(make: Callable[[], nn.Module]) -> None:
    """A part that does not train, numbers from torch's generators, or no chain known here."""
    assert build_closed_form_cnn(make(), CrossEntropy()) is None
    assert not LocalModel(make()).closed_form


@pytest.mark.parametrize("task", [BinaryCrossEntropy(), SequenceCrossEntropy()])
def test_tasks_without_a_closed_form(task: Any) -> None:
    """Only cross entropy has one."""
    assert build_closed_form_cnn(small_cnn(), task) is None


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 3.0, 0.5, 2.0], [0.0] * CLASSES])
@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "into the weights"])
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_autograd(
    name: str, in_place: bool, weights: list[float] | None
) -> None:
    """Gradients equal autograd's times a factor, also in place; buffers change equally."""
    task = CrossEntropy(None if weights is None else torch.tensor(weights))
    make, shape = MODELS[name]
    model, other = (make().double().train() for _ in range(2))
    other.load_state_dict(model.state_dict())
    x = torch.rand(7, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(7) % CLASSES
    for (_, one), (_, twin) in zip(find_dropouts(model), find_dropouts(other), strict=True):
        one.mask = twin.mask = torch.rand(7, *one.shape, dtype=torch.float64).round() * 2
    expected = torch.autograd.grad(task.compute_mean_loss(other(x), y), list(other.parameters()))
    chain = build_closed_form_cnn(model, task)
    assert chain is not None
    parameters = [p.detach() for p in model.parameters()]
    into = parameters if in_place else [torch.ones_like(p) for p in parameters]
    before = [tensor.clone() for tensor in into]
    images = x.clone()
    chain.accumulate(images, y, parameters, into, -0.3)
    assert torch.equal(images, x)
    for found, start, gradient in zip(into, before, expected, strict=True):
        torch.testing.assert_close(found, start - 0.3 * gradient, rtol=0, atol=1e-12)
    for found, buffer in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(found, buffer, rtol=0, atol=1e-12)
    assert any(gradient.abs().max() > 0 for gradient in expected) is (weights != [0.0] * CLASSES)


def test_declined_rounds_do_not_add_up_to_errors() -> None:
    """Half silent recordings in float32: running statistics and gradients are those of float64.

    The terms of some gradients nearly cancel. Their float32 sums are as far off with PyTorch's own
    gradients, how far depends on the processor.
    """
    torch.manual_seed(3)
    double = M5((1, 8000), CLASSES, 16).double().train()
    single = M5((1, 8000), CLASSES, 16).train()
    single.load_state_dict(double.state_dict())
    single_x = 0.1 * torch.randn(20, 1, 8000)
    single_x[..., 4000:] = 0
    y = torch.arange(20) % CLASSES
    found: list[list[torch.Tensor]] = []
    for model, x in ((double, single_x.double()), (single, single_x)):
        chain = build_closed_form_cnn(model, CrossEntropy())
        assert chain is not None
        parameters = [p.detach() for p in model.parameters()]
        into = [torch.zeros_like(p) for p in parameters]
        chain.accumulate(x, y, parameters, into, 1.0)
        found.append([*into, *(b for b in model.buffers() if b.is_floating_point())])
    other = copy.deepcopy(single)  # a pass changes the running statistics
    loss = torch.nn.functional.cross_entropy(other(single_x), y)
    torchs = [g.double() for g in torch.autograd.grad(loss, [*other.parameters()])]
    sizes = [tensor.norm() for tensor in found[0]]
    for index, (exact, tensor, size) in enumerate(zip(*found, sizes, strict=True)):
        if size > 1e-9:  # biases before a normalization have no gradient
            allowed = 2e-5 * size
            if index < len(torchs):
                allowed = max(allowed, 1.5 * (torchs[index] * len(y) - exact).norm())
            assert (tensor.double() - exact).norm() < allowed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["small_cnn", "m5"])
def test_a_gradient_repeats_its_bits(name: str, threads: int) -> None:
    """In float32, in another memory and whatever was computed before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        sums = []
        for junk in range(3):
            torch.manual_seed(2)
            make, shape = MODELS[name]
            model = make()
            chain = build_closed_form_cnn(model, CrossEntropy())
            assert chain is not None
            parameters = [p.detach() for p in model.parameters()]
            into = [torch.zeros_like(p) for p in parameters]
            torch.rand(junk * 1000 + 1).sum()
            x = torch.linspace(0, 1, 7 * math.prod(shape)).reshape(7, *shape)
            chain.accumulate(x, torch.arange(7) % CLASSES, parameters, into, 1.0)
            sums.append(into)
    finally:
        torch.set_num_threads(before)
    for other in sums[1:]:
        assert all(map(torch.equal, sums[0], other))
