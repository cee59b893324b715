"""Models from settings."""

import pytest
import torch

from client_app.models import LogisticRegression, build_model
from conf.schema import LogisticRegressionSettings, ModelSettings

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
