"""Initial values by setting."""

import math

import pytest
import torch
from torch import nn

from client_app.models import build_model
from client_app.models.init import initialize_weights
from conf import SettingsError, compose_settings


def make_model(init: str, option: str = "mlp", shape: tuple[int, ...] = (1, 30, 30)) -> nn.Module:
    settings = compose_settings("custom", f"model={option} model.init={init}").settings.model
    return build_model(settings, shape, 10, seed=3)


@pytest.mark.parametrize(
    ("init", "variance"),
    [("kaiming", lambda out, into: 2 / into), ("xavier", lambda out, into: 2 / (out + into))],
)
@pytest.mark.parametrize(
    ("option", "shape"), [("mlp", (1, 30, 30)), ("small_cnn", (3, 16, 16)), ("m5", (1, 2000))]
)
def test_weights_have_the_variance_of_the_papers(
    init: str, variance: object, option: str, shape: tuple[int, ...]
) -> None:
    """Normal numbers of that variance in every layer, biases 0."""
    assert callable(variance)
    model = make_model(init, option, shape)
    count = 0
    for layer in model.modules():
        if not isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)):
            continue
        weight = layer.weight.detach()
        area = math.prod(weight.shape[2:])
        expected = variance(weight.shape[0] * area, weight.shape[1] * area)
        tolerance = 5 * (2 / weight.numel()) ** 0.5
        assert float(weight.var()) == pytest.approx(expected, rel=tolerance)
        assert layer.bias is not None
        assert not layer.bias.any()
        count += 1
    assert count >= 3


def test_recurrent_layers_and_embeddings_keep_torch_s_values() -> None:
    """As in AAggFF's authors' code: of the LSTM only the logits are drawn."""
    default, xavier = (
        build_model(
            compose_settings("custom", f"model=lstm model.init={init}").settings.model,
            (7,),
            11,
            seed=3,
            num_tokens=11,
            sequence=True,
        ).state_dict()
        for init in ("default", "xavier")
    )
    changed = {name for name, tensor in default.items() if not torch.equal(tensor, xavier[name])}
    assert changed == {"logits.weight", "logits.bias"}
    assert not xavier["logits.bias"].any()


def test_layers_without_bias() -> None:
    """Their weights are drawn, and normalizations stay at scale 1 and shift 0."""
    settings = compose_settings("aaggff/celeba").settings.model
    model = build_model(settings, (3, 20, 20), 1, seed=3)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is None
            expected = 2 / (9 * (layer.in_channels + 32))
            tolerance = 5 * (2 / layer.weight.numel()) ** 0.5
            assert float(layer.weight.detach().var()) == pytest.approx(expected, rel=tolerance)
        if isinstance(layer, nn.GroupNorm):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()


def test_the_default_does_not_change_the_model() -> None:
    """Nothing is changed, and nothing is drawn."""
    layer = nn.Linear(3, 2)
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    initialize_weights(layer, "default")
    assert all(torch.equal(t, before[name]) for name, t in layer.state_dict().items())


def test_zeros_are_for_one_layer() -> None:
    """Logistic regression starts at 0; a deeper model would never leave it, and is refused."""
    model = make_model("zeros", "logistic_regression")
    assert not any(t.any() for t in model.state_dict().values())
    message = "model.init=zeros needs a model of one layer, got 3 layers"
    with pytest.raises(SettingsError, match=message):
        make_model("zeros")


def test_an_invalid_initialization_is_refused() -> None:
    """One line with all that there are."""
    message = "model.init must be one of default, kaiming, xavier, zeros, got 'uniform'"
    with pytest.raises(SettingsError, match=message):
        compose_settings("custom", "model.init=uniform")
