"""Dropout with given masks."""

import numpy as np
import pytest
import torch
from fedquorum.rng import make_generator
from torch import nn

from client_app.models import CNN, SmallCNN
from client_app.rng import has_random_layers
from client_app.training.dropout import MaskedDropout, find_dropouts, replace_dropout

IMAGES = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def small_cnn(dropout: float) -> nn.Module:
    return replace_dropout(SmallCNN((1, 8, 8), 3, (6, 5), dropout), IMAGES[:2])


def test_every_dropout_is_replaced() -> None:
    """Each layer knows its shape, the parameters stay, and the model draws nothing any more."""
    model = SmallCNN((1, 8, 8), 3, (6, 5), 0.2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert has_random_layers(model)
    assert replace_dropout(model, IMAGES[:2]) is model
    assert [layer.shape for _, layer in find_dropouts(model)] == [(128,), (6,), (5,)]
    assert [layer.p for _, layer in find_dropouts(model)] == [0.2] * 3
    assert not has_random_layers(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_names_are_those_of_the_masks() -> None:
    """By these names a mask is given to ``torch.func.functional_call``."""
    buffers = dict(small_cnn(0.2).named_buffers())
    assert [name for name, _ in find_dropouts(small_cnn(0.2))] == list(buffers)


def test_a_fraction_of_zero_drops_nothing() -> None:
    """Its layer is the identity, and no mask is drawn."""
    model = small_cnn(0.0)
    assert list(find_dropouts(model)) == []
    model.train()
    plain = SmallCNN((1, 8, 8), 3, (6, 5))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(IMAGES), plain(IMAGES))


def test_a_model_without_dropout_stays() -> None:
    """No layer changes, nor does what batch normalization has counted."""
    model = CNN((1, 16, 16), 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layers = list(model.modules())
    replace_dropout(model, torch.rand(2, 1, 16, 16))
    assert list(model.modules()) == layers
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_training_multiplies_by_the_mask_and_evaluation_does_not() -> None:
    """x * mask in training, x in evaluation."""
    layer = MaskedDropout(0.5)
    x = torch.arange(6.0).reshape(2, 3)
    layer.mask = torch.tensor([[0.0, 2.0, 2.0], [2.0, 0.0, 0.0]])
    assert torch.equal(layer(x), x * layer.mask)
    layer.eval()
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_masks_are_drawn_with_the_given_probability(p: float) -> None:
    """A share p is 0, the rest 1 / (1 - p); samples and numbers are independent."""
    layer = MaskedDropout(p)
    layer.shape = (50, 4)
    mask = layer.draw_mask(100, np.random.default_rng(0)).numpy()
    assert mask.shape == (100, 50, 4)
    assert mask.dtype == np.float32
    np.testing.assert_allclose(np.unique(mask), [0.0, 1 / (1 - p)], rtol=1e-6)
    dropped = (mask == 0).astype(float)
    assert dropped.mean() == pytest.approx(p, abs=4 * (p * (1 - p) / mask.size) ** 0.5)
    for axis, repeats in ((0, 200), (1, 400), (2, 5000)):
        others = tuple(i for i in range(3) if i != axis)
        spread = dropped.mean(axis=others).std()
        assert spread < 2 * (p * (1 - p) / repeats) ** 0.5


def test_the_stream_decides() -> None:
    """The same stream gives the same masks, batch after batch; torch's generator has no part."""
    layer = MaskedDropout(0.5)
    layer.shape = (7,)
    before = torch.get_rng_state()
    rng, same = make_generator(1, "dropout"), make_generator(1, "dropout")
    first, second = layer.draw_mask(4, rng), layer.draw_mask(4, rng)
    assert torch.equal(first, layer.draw_mask(4, same))
    assert torch.equal(second, layer.draw_mask(4, same))
    assert not torch.equal(first, second)
    assert not torch.equal(first, layer.draw_mask(4, make_generator(2, "dropout")))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_mask_is_not_in_the_state_dict() -> None:
    """It is not sent, not loaded, and not averaged."""
    model = small_cnn(0.2)
    for _, layer in find_dropouts(model):
        layer.mask = torch.ones(9, *layer.shape)
    assert not any("mask" in name for name in model.state_dict())
    model.load_state_dict(SmallCNN((1, 8, 8), 3, (6, 5)).state_dict())
