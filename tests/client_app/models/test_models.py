"""Models from settings."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.rng import make_generator
from fedquorum.server.aggregation import Float64View, cast_like
from fedquorum.server.exact_sum import compute_weighted_sum
from numpy.typing import NDArray
from torch import nn

from client_app.losses import CrossEntropy, SequenceCrossEntropy, Task
from client_app.models import CNN, M5, MLP, LogisticRegression, SmallCNN, build_model
from client_app.training.local_sgd import LocalSGDConfig, train_model
from conf import SettingsError, compose_settings
from conf.compose import options
from conf.schema.model import (
    CnnSettings,
    LogisticRegressionSettings,
    M5Settings,
    ModelSettings,
    SmallCnnSettings,
)

LOGISTIC = LogisticRegressionSettings()


def test_same_seed_same_model() -> None:
    """The initial values depend on the seed, not on what torch's generator did before."""
    torch.manual_seed(1)
    first = build_model(LOGISTIC, (5,), 3, seed=4).state_dict()
    torch.manual_seed(2)
    second = build_model(LOGISTIC, (5,), 3, seed=4).state_dict()
    other = build_model(LOGISTIC, (5,), 3, seed=5).state_dict()
    assert list(first) == ["linear.weight", "linear.bias"]
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert not torch.equal(tensor, other[name])


def test_the_global_generator_does_not_change() -> None:
    """Building a model does not advance or seed torch's global generator."""
    before = torch.get_rng_state()
    build_model(LOGISTIC, (5,), 3, seed=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_gpu_generators_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a model does not seed the generators of the GPUs."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    build_model(LOGISTIC, (5,), 3, seed=4)
    assert seeded == []


@pytest.mark.parametrize("input_shape", [(60,), (1, 28, 28), (2, 3, 4)])
def test_logits(input_shape: tuple[int, ...]) -> None:
    """The logits (n, classes) are W x + b of the flattened input."""
    model = LogisticRegression(input_shape, 7).double()
    x = torch.rand((4, *input_shape), dtype=torch.float64)
    logits = model(x).detach().numpy()
    weight, bias = (tensor.numpy() for tensor in model.state_dict().values())
    assert logits.shape == (4, 7)
    assert logits == pytest.approx(x.numpy().reshape(4, -1) @ weight.T + bias, abs=1e-12)


def test_settings_of_no_model_are_refused() -> None:
    """Settings of no known model raise and name their type."""
    with pytest.raises(TypeError, match="no model for ModelSettings"):
        build_model(ModelSettings(name="x"), (5,), 3, seed=1)


def test_mlp_by_hand() -> None:
    """ReLU(ReLU(x A + a) B + b) C + c on the flattened input; EMNIST's has 206,847 numbers."""
    model = MLP((2, 3), 4, hidden=5).double()
    a, a0, b, b0, c, c0 = (t.numpy() for t in model.state_dict().values())
    x = torch.rand((7, 2, 3), dtype=torch.float64)
    first = np.maximum(x.numpy().reshape(7, 6) @ a.T + a0, 0)
    second = np.maximum(first @ b.T + b0, 0)
    np.testing.assert_allclose(model(x).detach().numpy(), second @ c.T + c0, atol=1e-12)
    emnist = MLP((1, 28, 28), 47)
    assert sum(p.numel() for p in emnist.parameters()) == 785 * 200 + 201 * 200 + 201 * 47


def test_cnn_has_the_papers_layers() -> None:
    """5x5x32, 5x5x64, 512, 128, 10 on 32 x 32 images, normalized in three places."""
    state = CNN((3, 32, 32), 10).state_dict()
    shapes = [tuple(t.shape) for name, t in state.items() if t.dim() > 1]
    assert shapes == [(32, 3, 5, 5), (64, 32, 5, 5), (512, 1600), (128, 512), (10, 128)]
    assert [tuple(t.shape) for n, t in state.items() if "running_mean" in n] == [
        (64,),
        (512,),
        (128,),
    ]
    weight = state["layers.8.weight"]
    # Kaiming: standard deviation sqrt(2 / fan_in); of 819,200 numbers it is known to 0.1 %.
    assert float(weight.std()) == pytest.approx((2 / 1600) ** 0.5, rel=0.01)
    assert CNN((1, 28, 28), 3)(torch.rand(2, 1, 28, 28)).shape == (2, 3)


SMALL_CNNS: dict[str, tuple[tuple[int, ...], int, list[int], list[int]]] = {
    # shape, classes, hidden -> numbers of each layer, weights and biases
    "CIFAR-10": (
        (3, 32, 32),
        10,
        [256, 64],
        [32 * 28, 32 * 289, 256 * 2049, 64 * 257, 10 * 65],  # 551,786
    ),
    "SVHN": ((3, 32, 32), 10, [128], [32 * 28, 32 * 289, 128 * 2049, 10 * 129]),
    "CIFAR-100": (
        (3, 32, 32),
        100,
        [512, 256],
        [32 * 28, 32 * 289, 512 * 2049, 256 * 513, 100 * 257],
    ),
    "Fashion-MNIST": ((1, 28, 28), 10, [128], [32 * 10, 32 * 289, 128 * 1569, 10 * 129]),
    "the smallest image": ((1, 4, 7), 2, [5], [32 * 10, 32 * 289, 5 * 33, 2 * 6]),
}


@pytest.mark.parametrize("name", SMALL_CNNS)
def test_small_cnn_has_the_papers_layers(name: str) -> None:
    """The numbers of every layer of FedAU's networks, counted by hand; dropout has none."""
    shape, classes, hidden, counts = SMALL_CNNS[name]
    model = SmallCNN(shape, classes, hidden, dropout=0.2)
    tensors = [tensor.numel() for tensor in model.state_dict().values()]
    assert [w + b for w, b in zip(tensors[::2], tensors[1::2], strict=True)] == counts
    assert model(torch.rand(2, *shape)).shape == (2, classes)


def convolve(x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n, out, h, w): the 3 x 3 correlation of x (n, in, h, w) with a margin of zeros."""
    h, w = x.shape[2:]
    margin = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    splits = [
        np.einsum("nihw,oi->nohw", margin[:, :, i : i + h, j : j + w], weight[:, :, i, j])
        for i in range(3)
        for j in range(3)
    ]
    result: NDArray[np.float64] = np.sum(splits, axis=0)
    return result


def pool_maxima(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the maxima of 2 x 2 blocks; an odd last row or column is left out."""
    n, c, h, w = x.shape
    blocks = x[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2)
    result: NDArray[np.float64] = blocks.max(axis=(3, 5))
    return result


def test_small_cnn_by_hand() -> None:
    """Convolution, ReLU and pooling twice, ReLU layers, logits, written with NumPy alone."""
    model = SmallCNN((2, 9, 6), 3, [7, 4], dropout=0.9).double().eval()
    tensors = [tensor.numpy() for tensor in model.state_dict().values()]
    (a, a0, b, b0), *dense = tensors[:4], *zip(tensors[4::2], tensors[5::2], strict=True)
    x = np.random.default_rng(1).standard_normal((5, 2, 9, 6))
    out = pool_maxima(np.maximum(convolve(x, a) + a0[:, None, None], 0))
    out = pool_maxima(np.maximum(convolve(out, b) + b0[:, None, None], 0)).reshape(5, 64)
    for weight, bias in dense[:-1]:
        out = np.maximum(out @ weight.T + bias, 0)
    out = out @ dense[-1][0].T + dense[-1][1]
    np.testing.assert_allclose(model(torch.from_numpy(x)).detach().numpy(), out, atol=1e-12)


def test_small_cnn_starts_as_the_authors_does() -> None:
    """Standard deviation sqrt(2 / fan-in) and biases 0, but torch's own values for the logits."""
    model = SmallCNN((3, 32, 32), 100, [512, 256])
    *features, logits = zip(*[iter(model.state_dict().values())] * 2, strict=True)
    for weight, bias in features:
        fan_in = math.prod(weight.shape[1:])
        tolerance = 4 / (2 * weight.numel()) ** 0.5
        assert float(weight.std()) == pytest.approx((2 / fan_in) ** 0.5, rel=tolerance)
        assert not bias.any()
    weight, bias = logits
    assert float(weight.abs().max()) <= 1 / 16
    assert float(weight.std()) == pytest.approx(1 / 16 / 3**0.5, rel=0.02)
    assert bias.any()


def test_dropout_comes_before_every_fully_connected_layer() -> None:
    """Three of them in the network for CIFAR-100, active in training and not in evaluation."""
    model = SmallCNN((1, 8, 8), 3, [6, 5], dropout=0.2)
    kinds = [type(layer).__name__ for layer in model.features][7:]
    assert kinds == ["Dropout", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout"]
    dropped = [layer.p for layer in model.features if isinstance(layer, torch.nn.Dropout)]
    assert dropped == [0.2] * 3
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(model.eval()(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_settings_of_the_small_cnn() -> None:
    """Hidden layers and dropout come from the settings; what is not allowed is refused."""
    overrides = "model=small_cnn 'model.hidden=[12, 7]' model.dropout=0.25"
    model = build_model(compose_settings("custom", overrides).settings.model, (1, 8, 8), 3, seed=1)
    assert isinstance(model, SmallCNN)
    layers = list(model.features)
    assert [layer.out_features for layer in layers if isinstance(layer, torch.nn.Linear)] == [12, 7]
    assert {layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)} == {0.25}
    hidden = "model.hidden must be a list of at least one value, each a whole number >= 1, got"
    for word, message in {
        "model.hidden=[]": hidden,
        "model.hidden=[64,0]": hidden,
        "model.hidden=[1.5]": "model.hidden.* must be a whole number",
        "model.dropout=1": "model.dropout must be a number >= 0 and < 1, got 1",
        "model.dropout=-0.1": "model.dropout must be a number >= 0 and < 1, got -0.1",
    }.items():
        with pytest.raises(SettingsError, match=message) as caught:
            compose_settings("custom", f"model=small_cnn {word}")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "input_shape"),
    [
        (CnnSettings(), (60,)),
        (CnnSettings(), (3, 15, 32)),
        (SmallCnnSettings(), (60,)),
        (SmallCnnSettings(), (28, 28)),
        (SmallCnnSettings(), (3, 3, 32)),
    ],
)
def test_convolutions_need_images(settings: ModelSettings, input_shape: tuple[int, ...]) -> None:
    """Inputs that the network cannot take are refused in one line."""
    with pytest.raises(SettingsError, match=f"model={settings.name} needs images of"):
        build_model(settings, input_shape, 10, seed=1)


@pytest.mark.parametrize(
    ("settings", "widths"),
    [
        ((), (32, 32, 64, 64)),
        ((5,), (5, 5, 10, 10)),
        ((64, 4, 1), (64, 64, 128, 256)),
        ((128, 4), (128, 128, 256, 512)),
    ],
    ids=["tutorial", "small", "AAggFF", "paper"],
)
def test_m5_has_the_published_layers(settings: tuple[int, ...], widths: tuple[int, ...]) -> None:
    """Kernels of 80, 3, 3 and 3, channels as published, and one linear layer."""
    state = M5((1, 8000), 10, *settings).state_dict()
    a, b, c, d = widths
    weights = [tuple(t.shape) for t in state.values() if t.dim() > 1]
    assert weights == [(a, 1, 80), (b, a, 3), (c, b, 3), (d, c, 3), (10, d)]
    normalized = [tuple(t.shape) for name, t in state.items() if "running_mean" in name]
    assert normalized == [(width,) for width in widths]


@pytest.mark.parametrize(("widening", "padding"), [(2, 0), (4, 1)])
def test_m5_by_hand(widening: int, padding: int) -> None:
    """Strides, padding, poolings of 4, normalization before the ReLU, and the mean over time."""
    rng = np.random.default_rng(0)
    model = M5((2, 4000), 3, 4, widening, padding).double().eval()
    state = model.state_dict()
    for tensor in state.values():
        if tensor.is_floating_point():
            tensor.copy_(torch.from_numpy(rng.uniform(0.2, 1.0, tuple(tensor.shape))))
        if tensor.dim() == 3:
            tensor.sub_(0.6)
    model.load_state_dict(state)
    numbers = [t.numpy() for name, t in state.items() if "num_batches" not in name]
    x = rng.normal(size=(2, 2, 4000))
    h = x
    for block, stride in enumerate((4, 1, 1, 1)):
        weight, bias, scale, shift, mean, variance = numbers[6 * block : 6 * block + 6]
        kernel = weight.shape[2]
        if block:
            h = np.pad(h, ((0, 0), (0, 0), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(h, kernel, axis=2)[:, :, ::stride]
        h = np.einsum("nctk,ock->not", windows, weight) + bias[:, None]
        h = (h - mean[:, None]) / np.sqrt(variance + 1e-5)[:, None] * scale[:, None]
        h = np.maximum(h + shift[:, None], 0)
        length = h.shape[2] // 4 * 4
        h = h[:, :, :length].reshape(*h.shape[:2], -1, 4).max(axis=3)
    expected = h.mean(axis=2) @ numbers[24].T + numbers[25]
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(x)).numpy(), expected, rtol=1e-9)
    assert h.shape[2] > 1


@pytest.mark.parametrize("channels", [1, 2])
def test_m5_has_its_channels_last_in_memory(channels: int) -> None:
    """All outputs of its convolutions when measured, however the sound lies: that is faster."""
    model = M5((channels, 4000), 3, 4).eval()
    strides = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv1d):
            layer.register_forward_hook(lambda *call: strides.append(call[2].stride(1)))
    one = torch.rand(6, channels, 4000)
    for sound in (one, one[::2], torch.rand(2, 4000, channels).transpose(1, 2)):
        model(sound)
    assert strides == 3 * 4 * [1]


@pytest.mark.parametrize(("padding", "length"), [(0, 1772), (1, 1100)])
def test_the_smallest_sound(padding: int, length: int) -> None:
    """That length is enough, one less is not."""
    model = build_model(M5Settings(padding=padding), (1, length), 10, seed=1)
    assert isinstance(model, M5)
    assert model(torch.rand(2, 1, length)).shape == (2, 10)
    with pytest.raises(RuntimeError):
        model(torch.rand(2, 1, length - 1))


@pytest.mark.parametrize(
    ("input_shape", "padding"),
    [((60,), 0), ((1, 1771), 0), ((1, 28, 28), 0), ((3, 2000, 2000), 0), ((1, 1099), 1)],
)
def test_m5_needs_sound(input_shape: tuple[int, ...], padding: int) -> None:
    """Inputs that are no waveforms, or too short, are refused before the layers are made."""
    least = (1772, 1100)[padding]
    message = f"model=m5 needs sound of .* at least {least}, got inputs of shape {input_shape};"
    with pytest.raises(SettingsError, match=message.replace("(", r"\(").replace(")", r"\)")):
        build_model(M5Settings(padding=padding), input_shape, 10, seed=1)


def test_settings_of_m5() -> None:
    """The tutorial's network by default; AAggFF's preset has its authors', of 158,183 numbers."""
    model = build_model(
        compose_settings("custom", "model=m5").settings.model, (1, 8000), 10, seed=1
    )
    assert sum(p.numel() for p in model.parameters()) == (
        32 * 81 + 32 * 97 + 64 * 97 + 64 * 193 + 2 * (32 + 32 + 64 + 64) + 10 * 65
    )
    model = build_model(compose_settings("aaggff/speech").settings.model, (1, 16000), 35, seed=1)
    assert sum(p.numel() for p in model.parameters()) == (
        64 * 81 + 64 * 193 + 128 * 193 + 256 * 385 + 2 * (64 + 64 + 128 + 256) + 35 * 257
    )
    paddings = {layer.padding for layer in model.modules() if isinstance(layer, nn.Conv1d)}
    assert paddings == {(0,), (1,)}
    for word, allowed in {
        "model.channels=0": r"a whole number >= 1, got 0",
        "model.widening=0": r"a whole number >= 1, got 0",
        "model.padding=2": r"one of 0, 1, got 2",
    }.items():
        with pytest.raises(SettingsError, match=rf"^{word[:-2]} must be {allowed}$"):
            compose_settings("custom", f"model=m5 {word}")


# option -> further words, shape of an input, size of the vocabulary, whether positions have targets
KINDS: dict[str, tuple[str, tuple[int, ...], int | None, bool]] = {
    "m5": ("model.channels=4", (1, 2000), None, False),
    "small_cnn": ("model.dropout=0.2", (1, 16, 16), None, False),
    "efficientnet": ("", (3, 32, 32), None, False),
    "lstm": ("model.embedding=5 model.hidden=6", (7,), 11, True),
    "text": ("model.embedding=5 model.channels=6 model.dropout=0.2", (7,), 11, False),
    "distilbert": ("model.layers=1 model.width=8 model.heads=2", (7,), 11, False),
    "module": (
        "model.path=tests.client_app.models.test_module.Net 'model.args={features: 256}'",
        (1, 16, 16),
        None,
        False,
    ),
}


def make_example(option: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Task]:
    """Return a small model of a kind, with 20 inputs and labels, and its task."""
    overrides, shape, num_tokens, sequence = KINDS.get(option, ("", (1, 16, 16), None, False))
    settings = compose_settings("custom", f"model={option} {overrides}").settings.model
    model = build_model(settings, shape, 3, seed=1, num_tokens=num_tokens, sequence=sequence)
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(3, (20, *shape) if sequence else (20,), generator=draw)
    task = SequenceCrossEntropy() if sequence else CrossEntropy()
    if num_tokens:
        return model, torch.randint(num_tokens, (20, *shape), generator=draw), y, task
    return model, torch.rand(20, *shape, generator=draw), y, task


@pytest.mark.parametrize("option", options("model"))
def test_every_model_trains_from_its_streams_alone(option: str) -> None:
    """What torch's generator did before changes no trained model, and it stays as it was."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        model, x, y, task = make_example(option)
        train_model(model, x, y, LocalSGDConfig(0.01, 8, 1), partial(make_generator, 1), task=task)
        assert torch.equal(torch.get_rng_state(), before)
        results.append(model.state_dict())
    for name, tensor in results[0].items():
        assert torch.equal(tensor, results[1][name])


@pytest.mark.parametrize("option", options("model"))
def test_every_parameter_learns(option: str) -> None:
    """A step changes every tensor that is trained: no part of a model is cut off."""
    model, x, y, task = make_example(option)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    train_model(model, x, y, LocalSGDConfig(0.1, 20, 1), partial(make_generator, 1), task=task)
    idle = {name for name, p in model.named_parameters() if torch.equal(p, start[name])}
    # A bias that normalization subtracts again, or that a softmax does not see, has no slope.
    assert all(name.endswith("bias") for name in idle)


@pytest.mark.parametrize("option", sorted({*options("model")} - {"lstm", "distilbert"}))
def test_models_that_are_stacked(option: str) -> None:
    """Gradients of three clients' models in one pass are those of one after the other.

    Not of lstm, for which torch has no batching rule, and of distilbert, which looks at its mask.
    """
    model, x, y, task = make_example(option)
    for layer in model.modules():
        if hasattr(layer, "p"):  # what is dropped would differ
            layer.p = 0.0  # type: ignore[assignment]
    model.double().train()
    x = x.double() if x.is_floating_point() else x
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    parameters = [name for name, _ in model.named_parameters()]

    def compute_gradient(
        tensors: dict[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor
    ) -> Any:
        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            rest = {name: tensors[name].clone() for name in tensors if name not in weights}
            outputs = torch.func.functional_call(model, {**weights, **rest}, (inputs,))
            return task.compute_mean_loss(outputs, labels)

        return torch.func.grad(loss)({name: tensors[name] for name in parameters})

    scales = torch.tensor([0.9, 1.0, 1.1])
    many = {
        name: torch.stack([t * s for s in scales]) if name in parameters else torch.stack([t] * 3)
        for name, t in state.items()
    }
    labels = torch.stack([y, (y + 1) % 3, y.flip(0)])
    batched = torch.func.vmap(compute_gradient, in_dims=(0, None, 0), randomness="different")(
        many, x, labels
    )
    for k in range(3):
        apart = compute_gradient({name: t[k] for name, t in many.items()}, x, labels[k])
        for name, slope in apart.items():
            torch.testing.assert_close(batched[name][k], slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("option", options("model"))
def test_inputs_of_another_kind_are_refused(option: str) -> None:
    """Tokens are not for models of numbers, numbers not for models of tokens, in one line."""
    overrides, shape, num_tokens, _ = KINDS.get(option, ("", (1, 16, 16), None, False))
    settings = compose_settings("custom", f"model={option} {overrides}").settings.model
    if num_tokens:
        message = f"model={option} needs inputs of tokens, got data of numbers"
        with pytest.raises(SettingsError, match=message):
            build_model(settings, shape, 3, seed=1)
    elif option != "module":
        message = f"lstm, text, distilbert, module where inputs are tokens, got {option}"
        with pytest.raises(SettingsError, match=message):
            build_model(settings, shape, 3, seed=1, num_tokens=5)
    if option not in {"lstm", "module"}:
        message = f"must be lstm or module where each position has a target, got {option}"
        with pytest.raises(SettingsError, match=message):
            build_model(settings, shape, 3, seed=1, num_tokens=num_tokens, sequence=True)


def test_batch_statistics_travel_and_are_averaged() -> None:
    """Running statistics are part of a client's arrays, and move as the weighted mean."""
    model = build_model(CnnSettings(), (1, 16, 16), 3, seed=1)
    start = {name: t.numpy().copy() for name, t in model.state_dict().items()}
    trained = []
    for k, scale in enumerate((1.0, 3.0)):
        model.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in start.items()})
        x = scale * torch.rand((12, 1, 16, 16), generator=torch.Generator().manual_seed(k))
        y = torch.arange(12) % 3
        train_model(model, x, y, LocalSGDConfig(0.01, 4, 1 + k), partial(make_generator, k))
        trained.append({name: t.numpy().copy() for name, t in model.state_dict().items()})
    update = compute_weighted_sum(start, [(0.25, trained[0]), (0.75, trained[1])])
    combined = cast_like({name: a + update[name] for name, a in Float64View(start).items()}, start)
    for name, one in trained[0].items():
        mean = 0.25 * one.astype(float) + 0.75 * trained[1][name].astype(float)
        if "num_batches" in name:
            assert combined[name] == round(float(mean)) == round(0.25 * 3 + 0.75 * 6)
        else:
            np.testing.assert_allclose(combined[name], mean, atol=1e-6)
            assert not np.array_equal(combined[name], start[name])
