"""LEAF's network for CelebA."""

import pytest
import torch

from client_app.models import CelebaCNN


def test_celeba_cnn_has_leaf_s_layers() -> None:
    """Counted by hand: 84 x 84 becomes 6 x 6 of 32 channels."""
    model = CelebaCNN((3, 84, 84), 2)
    first, others, normalised = 32 * (3 * 9 + 1), 32 * (32 * 9 + 1), 2 * 32
    logits = 2 * (32 * 6 * 6 + 1)
    numbers = first + 3 * others + 4 * normalised + logits
    assert sum(p.numel() for p in model.parameters()) == numbers == 31_202
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == ["Conv2d", "BatchNorm2d", "MaxPool2d", "ReLU"] * 4 + ["Flatten", "Linear"]


def test_pooling_keeps_an_odd_edge() -> None:
    """Of 5 x 3 the first pooling makes 3 x 2, with maxima of what is there."""
    model = CelebaCNN((1, 5, 3), 2)
    x = torch.rand(2, 1, 5, 3)
    pooled = model.layers[2](x)
    assert pooled.shape == (2, 1, 3, 2)
    assert torch.equal(pooled[:, 0, 2, 1], x[:, 0, 4, 2])


@pytest.mark.parametrize("shape", [(3, 84, 84), (1, 28, 28), (3, 1, 7)])
def test_any_image_fits(shape: tuple[int, ...]) -> None:
    """The logits follow from the size of the images."""
    assert CelebaCNN(shape, 5)(torch.rand(2, *shape)).shape == (2, 5)
