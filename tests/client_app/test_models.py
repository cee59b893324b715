"""Models from settings."""

import numpy as np
import pytest
import torch

from client_app.models import CNN, MLP, LogisticRegression, build_model
from client_app.training import LocalTraining, train
from conf.errors import SettingsError
from conf.schema import CnnSettings, LogisticRegressionSettings, ModelSettings
from strategies.aggregation import as_float64, combined_update, like

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


def test_global_generator_is_left_alone() -> None:
    """Building a model does not advance or seed torch's global generator."""
    before = torch.get_rng_state()
    build_model(LOGISTIC, (5,), 3, seed=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_gpu_generators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unknown_model_is_refused() -> None:
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
    """5x5x32, 5x5x64, 512, 128, 10 on 32 x 32 images, normalised in three places."""
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


@pytest.mark.parametrize("input_shape", [(60,), (3, 15, 32)])
def test_cnn_needs_images(input_shape: tuple[int, ...]) -> None:
    """Inputs that the network cannot take are refused in one line."""
    with pytest.raises(SettingsError, match="got cnn for inputs"):
        build_model(CnnSettings(), input_shape, 10, seed=1)


def test_batch_statistics_travel_and_are_averaged() -> None:
    """Running statistics are part of a client's arrays, and move as the weighted mean."""
    model = build_model(CnnSettings(), (1, 16, 16), 3, seed=1)
    start = {name: t.numpy().copy() for name, t in model.state_dict().items()}
    trained = []
    for k, scale in enumerate((1.0, 3.0)):
        model.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in start.items()})
        x = scale * torch.rand((12, 1, 16, 16), generator=torch.Generator().manual_seed(k))
        y = torch.arange(12) % 3
        train(model, x, y, LocalTraining(0.01, 4, 1 + k), np.random.default_rng(k))
        trained.append({name: t.numpy().copy() for name, t in model.state_dict().items()})
    update = combined_update(start, [(0.25, trained[0]), (0.75, trained[1])])
    combined = like({name: a + update[name] for name, a in as_float64(start).items()}, start)
    for name, one in trained[0].items():
        mean = 0.25 * one.astype(float) + 0.75 * trained[1][name].astype(float)
        if "num_batches" in name:
            assert combined[name] == round(float(mean)) == round(0.25 * 3 + 0.75 * 6)
        else:
            np.testing.assert_allclose(combined[name], mean, atol=1e-6)
            assert not np.array_equal(combined[name], start[name])
