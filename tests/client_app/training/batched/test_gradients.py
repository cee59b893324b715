"""Gradients of many clients at once, against autograd of one after the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from client_app.losses import BinaryCrossEntropy, CrossEntropy, SequenceCrossEntropy, SquaredError
from client_app.losses import Task as AnyTask
from client_app.models import CNN, MLP, LogisticRegression, SmallCNN
from client_app.training.batched.gradients import (
    Batches,
    FunctionalGradients,
    Gradients,
    StackedTensors,
    build_dense_gradients,
)
from client_app.training.dropout import find_dropouts, replace_dropout
from tests.cases import limit_examples

CLASSES, FEATURES = 4, 6
SIZES = [5, 2, 5, 1, 3]
WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.5], dtype=torch.float64)
DENSE = {
    "logistic_regression": LogisticRegression((FEATURES,), CLASSES).double(),
    "mlp": MLP((2, 3), CLASSES, 5).double(),
}


def stack_models(model: nn.Module, clients: int) -> tuple[StackedTensors, StackedTensors]:
    """Return parameters, another for each client, and buffers."""
    generator = torch.Generator().manual_seed(1)
    parameters = {
        name: torch.randn((clients, *p.shape), generator=generator, dtype=torch.float64)
        for name, p in model.named_parameters()
    }
    masked = {name for name, _ in find_dropouts(model)}
    buffers = {
        name: torch.stack([b.clone() for _ in range(clients)])
        for name, b in model.named_buffers()
        if name not in masked
    }
    return parameters, buffers


def make_batches(sizes: list[int], shape: tuple[int, ...], classes: int = CLASSES) -> Batches:
    """Return batches of these sizes, padded with copies of the first sample."""
    generator = torch.Generator().manual_seed(2)
    m, b = len(sizes), max(sizes)
    x = torch.randn((m, b, *shape), generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (m, b), generator=generator)
    for client, size in enumerate(sizes):
        x[client, size:], y[client, size:] = x[client, 0], y[client, 0]
    return Batches(x, y, np.array(sizes), {}, torch.ones((m, b), dtype=torch.float64))


def scale_batches(gradients: Gradients, batches: Batches, scale: torch.Tensor) -> Batches:
    """Return the same batches as ``gradients`` wants them, times ``scale`` (m,)."""
    sizes = torch.from_numpy(batches.sizes)
    counts = torch.arange(batches.y.shape[1]) < sizes[:, None]
    coefficients = gradients.compute_coefficients(batches.y, counts, sizes.to(scale), scale)
    return replace(batches, coefficients=coefficients)


def compute_by_autograd(
    model: nn.Module,
    task: AnyTask,
    start: tuple[StackedTensors, StackedTensors],
    batches: Batches,
    scale: torch.Tensor,
) -> tuple[StackedTensors, StackedTensors]:
    """Return scale_k times each client's gradient, and its buffers after the pass."""
    parameters, buffers = start
    gradients = {name: torch.zeros_like(p) for name, p in parameters.items()}
    after = {name: b.clone() for name, b in buffers.items()}
    model.train()
    layers = dict(find_dropouts(model))
    for k, size in enumerate(batches.sizes.tolist()):
        state = {name: tensor[k] for name, tensor in {**parameters, **buffers}.items()}
        model.load_state_dict(state)
        for name, mask in batches.masks.items():
            layers[name].mask = mask[k, :size]
        model.zero_grad()
        task.compute_mean_loss(model(batches.x[k, :size]), batches.y[k, :size]).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradients[name][k] = scale[k] * parameter.grad
        for name, buffer in after.items():
            buffer[k] = model.state_dict()[name]
    return gradients, after


def check(gradients: Gradients, model: nn.Module, task: AnyTask, batches: Batches) -> None:
    """Compare with autograd, for factors of both signs, added to existing gradients."""
    m = len(batches.sizes)
    parameters, buffers = stack_models(model, m)
    scale = torch.linspace(-1.5, 2.0, m, dtype=torch.float64)
    expected, after = compute_by_autograd(model, task, (parameters, buffers), batches, scale)
    given_parameters = {name: p.clone() for name, p in parameters.items()}
    into = {name: torch.ones_like(p) for name, p in parameters.items()}
    inputs = batches.x.clone()
    gradients.accumulate(parameters, buffers, into, scale_batches(gradients, batches, scale))
    for name, gradient in expected.items():
        torch.testing.assert_close(into[name] - 1, gradient, rtol=1e-11, atol=1e-12)
        assert torch.equal(parameters[name], given_parameters[name])
    for name, buffer in after.items():
        torch.testing.assert_close(buffers[name], buffer, rtol=1e-11, atol=1e-12)
    assert torch.equal(batches.x, inputs)


def check_step(gradients: Gradients, model: nn.Module, task: AnyTask, batches: Batches) -> None:
    """Compare a step of gradient descent in place."""
    m = len(batches.sizes)
    parameters, buffers = stack_models(model, m)
    rates = torch.linspace(0.1, 0.9, m, dtype=torch.float64)
    gradient, _ = compute_by_autograd(model, task, (parameters, buffers), batches, -rates)
    expected = {name: p + gradient[name] for name, p in parameters.items()}
    gradients.accumulate(parameters, buffers, parameters, scale_batches(gradients, batches, -rates))
    for name, p in expected.items():
        torch.testing.assert_close(parameters[name], p, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "class weights"])
@pytest.mark.parametrize("sizes", [SIZES, [4, 4, 4], [1], [3]], ids=str)
def test_the_closed_form_is_the_gradient(
    name: str, weights: torch.Tensor | None, sizes: list[int]
) -> None:
    """Of equal and of ragged batches, added to another tensor or as a step in place."""
    model, task = DENSE[name], CrossEntropy(weights)
    dense = build_dense_gradients(model, task)
    assert dense is not None
    shape = (2, 3) if name == "mlp" else (FEATURES,)
    for use in (check, check_step):
        use(dense, model, task, make_batches(sizes, shape))
        use(FunctionalGradients(model, task), model, task, make_batches(sizes, shape))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.sampled_from(sorted(DENSE)))
@limit_examples(25)
def test_the_closed_form_of_any_sizes(sizes: list[int], name: str) -> None:
    """The closed form is correct for batches of any sizes."""
    model, task = DENSE[name], CrossEntropy(WEIGHTS)
    dense = build_dense_gradients(model, task)
    assert dense is not None
    check(dense, model, task, make_batches(sizes, (FEATURES,)))


@pytest.mark.parametrize("weights", [None, WEIGHTS[2:]], ids=["plain", "class weights"])
@pytest.mark.parametrize("hidden", [None, 5], ids=["logistic_regression", "mlp"])
def test_the_closed_form_of_one_logit(weights: torch.Tensor | None, hidden: int | None) -> None:
    """Two classes with the sigmoid, one client or several, and each with the bits it has alone."""
    model = LogisticRegression((FEATURES,), 1) if hidden is None else MLP((FEATURES,), 1, hidden)
    task = BinaryCrossEntropy(weights)
    dense = build_dense_gradients(model.double(), task)
    assert dense is not None
    for sizes in (SIZES, [3]):
        for use in (check, check_step):
            use(dense, model, task, make_batches(sizes, (FEATURES,), classes=2))
    whole = make_batches([37] * 4, (FEATURES,), classes=2)
    parameters, buffers = stack_models(model, 4)
    rates = torch.linspace(0.1, 0.9, 4, dtype=torch.float64)
    batched = {name: p.clone() for name, p in parameters.items()}
    dense.accumulate(batched, buffers, batched, scale_batches(dense, whole, rates))
    for k in range(4):
        one = slice(k, k + 1)
        batches = replace(
            whole, x=whole.x[one], y=whole.y[one], sizes=whole.sizes[one], workspaces={}
        )
        separate = {name: p[one].clone() for name, p in parameters.items()}
        dense.accumulate(separate, buffers, separate, scale_batches(dense, batches, rates[one]))
        assert all(torch.equal(separate[name], batched[name][one]) for name in parameters)


def test_a_batch_without_weight_has_no_gradient() -> None:
    """If all classes of a batch have weight 0, the model does not change, as with autograd."""
    for name, model in DENSE.items():
        task = CrossEntropy(WEIGHTS)
        dense = build_dense_gradients(model, task)
        assert dense is not None, name
        batches = make_batches([3, 3], (FEATURES,))
        batches = replace(batches, y=torch.tensor([[1, 1, 1], [1, 2, 1]]))
        parameters, buffers = stack_models(model, 2)
        into = {n: torch.zeros_like(p) for n, p in parameters.items()}
        ones = torch.ones(2, dtype=torch.float64)
        dense.accumulate(parameters, buffers, into, scale_batches(dense, batches, ones))
        assert all(bool((gradient[0] == 0).all()) for gradient in into.values())
        assert all(bool((gradient[1] != 0).any()) for gradient in into.values())


def test_huge_logits_have_a_finite_gradient() -> None:
    """A confident wrong model is taken back, not made NaN."""
    model, task = DENSE["logistic_regression"], CrossEntropy()
    dense = build_dense_gradients(model, task)
    assert dense is not None
    parameters, buffers = stack_models(model, 2)
    parameters["linear.weight"] *= 1e6
    batches = make_batches([3, 2], (FEATURES,))
    scale = torch.ones(2, dtype=torch.float64)
    expected, _ = compute_by_autograd(model, task, (parameters, buffers), batches, scale)
    into = {name: torch.zeros_like(p) for name, p in parameters.items()}
    dense.accumulate(parameters, buffers, into, scale_batches(dense, batches, scale))
    for name, gradient in into.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-11, atol=1e-12)
        assert bool(gradient.isfinite().all())


class Own(LogisticRegression):
    """A kind of logistic regression that may compute something else."""


class Sum(CrossEntropy):
    """A kind of cross entropy that may compute something else."""


def make_frozen_mlp() -> nn.Module:
    model = MLP((FEATURES,), CLASSES, 5)
    model.layers[1].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "task"),
    [
        (SmallCNN((1, 8, 8), CLASSES, (6,)), CrossEntropy()),
        (DENSE["mlp"], SquaredError()),
        (DENSE["mlp"], SequenceCrossEntropy()),
        (Own((FEATURES,), CLASSES), CrossEntropy()),
        (DENSE["mlp"], Sum()),
        (make_frozen_mlp(), CrossEntropy()),
    ],
    ids=["cnn", "number", "sequence", "subclass", "other loss", "frozen layer"],
)
def test_other_models_have_no_closed_form(model: nn.Module, task: AnyTask) -> None:
    """Only exactly known models and losses with all layers trained have a closed form."""
    assert build_dense_gradients(model, task) is None


def test_batch_normalization() -> None:
    """Each client normalizes by its own batch, and its running statistics and counter advance.

    A batch is never padded: statistics over copies would be others.
    """
    torch.manual_seed(0)
    model = CNN((1, 16, 16), CLASSES).double()
    batches = make_batches([5, 3, 5, 4], (1, 16, 16))
    check(FunctionalGradients(model.train(), CrossEntropy()), model, CrossEntropy(), batches)


def test_dropout_masks() -> None:
    """Every client has a separate mask for each of its samples."""
    model = replace_dropout(
        SmallCNN((1, 8, 8), CLASSES, (6,), 0.4).double(), torch.zeros(2, 1, 8, 8).double()
    ).train()
    batches = make_batches(SIZES, (1, 8, 8))
    rng = np.random.default_rng(0)
    masks = {
        name: torch.stack([layer.draw_mask(5, rng) for _ in SIZES]).double()
        for name, layer in find_dropouts(model)
    }
    assert len(masks) == 2
    batches = replace(batches, masks=masks)
    check(FunctionalGradients(model, CrossEntropy()), model, CrossEntropy(), batches)


@pytest.mark.parametrize("task", [SquaredError(), BinaryCrossEntropy(WEIGHTS[1:3] + 1)], ids=repr)
def test_other_tasks(task: AnyTask) -> None:
    """Any loss that autograd can take."""
    model = MLP((FEATURES,), 1, 5).double()
    batches = make_batches(SIZES, (FEATURES,), classes=2)
    if isinstance(task, SquaredError):
        batches = replace(batches, y=batches.y.double() - 0.3)
    check(FunctionalGradients(model, task), model, task, batches)


def test_layers_with_torchs_generator_are_refused() -> None:
    """A layer that uses torch's generator is refused: batched clients would get other numbers."""
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.5)).double()
    parameters, buffers = stack_models(model, 2)
    into = {name: torch.zeros_like(p) for name, p in parameters.items()}
    functional = FunctionalGradients(model, CrossEntropy())
    with pytest.raises(RuntimeError, match="randomness"):
        functional.accumulate(parameters, buffers, into, make_batches([2, 2], (FEATURES,)))
