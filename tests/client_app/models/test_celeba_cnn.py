"""LEAF's network for CelebA, and that of AAggFF's authors."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app.models import CelebaCNN, build_model
from conf import SettingsError, compose_settings


def test_celeba_cnn_has_leaf_s_layers() -> None:
    """Counted by hand: 84 x 84 becomes 6 x 6 of 32 channels."""
    model = CelebaCNN((3, 84, 84), 2)
    first, others, normalized = 32 * (3 * 9 + 1), 32 * (32 * 9 + 1), 2 * 32
    logits = 2 * (32 * 6 * 6 + 1)
    numbers = first + 3 * others + 4 * normalized + logits
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


def convolve(x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 3x3 convolution of x (n, c, h, w), padded by 1."""
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3)
    )
    result: NDArray[np.float64] = np.einsum("nchwij,ocij->nohw", windows, weight)
    return result


def pool_maxima(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the maxima of 2x2 blocks of x, with an edge of nothing around it."""
    _, _, h, w = x.shape
    edge = ((0, 0), (0, 0), (1, 1 + h % 2), (1, 1 + w % 2))
    padded = np.pad(x, edge, constant_values=-np.inf)
    blocks = padded[:, :, : h // 2 * 2 + 2, : w // 2 * 2 + 2]
    n, c, h, w = blocks.shape
    result: NDArray[np.float64] = blocks.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
    return result


def average_windows(x: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return the means of overlapping windows: from floor(i h / size) to ceil((i + 1) h / size)."""
    h, w = x.shape[2:]
    rows = [slice(i * h // size, -(-(i + 1) * h // size)) for i in range(size)]
    columns = [slice(i * w // size, -(-(i + 1) * w // size)) for i in range(size)]
    return np.array([[x[:, :, r, c].mean(axis=(2, 3)) for c in columns] for r in rows]).transpose(
        2, 3, 0, 1
    )


def test_aaggff_s_network_by_hand() -> None:
    """Convolutions without bias, groups of one image, maxima, ReLU, 5 x 5 means, logits."""
    rng = np.random.default_rng(0)
    model = CelebaCNN((2, 84, 70), 3, "aaggff").double()
    state = model.state_dict()
    for tensor in state.values():
        tensor.copy_(torch.from_numpy(rng.uniform(-0.5, 1.0, tuple(tensor.shape))))
    tensors = [tensor.numpy() for tensor in state.values()]
    x = rng.normal(size=(2, 2, 84, 70))
    h = x
    for block, groups in enumerate((32, 16, 8, 4)):
        weight, scale, shift = tensors[3 * block : 3 * block + 3]
        h = convolve(h, weight)
        of_groups = h.reshape(len(h), groups, -1)
        mean = of_groups.mean(axis=2, keepdims=True)
        variance = of_groups.var(axis=2, keepdims=True)
        h = ((of_groups - mean) / np.sqrt(variance + 1e-5)).reshape(h.shape)
        h = np.maximum(pool_maxima(h * scale[:, None, None] + shift[:, None, None]), 0)
    assert h.shape[2:] == (7, 6)
    expected = average_windows(h, 5).reshape(2, -1) @ tensors[12].T + tensors[13]
    with torch.no_grad():
        np.testing.assert_allclose(model(torch.from_numpy(x)).numpy(), expected, rtol=1e-9)
    assert not list(model.buffers())


def test_aaggff_s_preset_has_its_network() -> None:
    """29,569 numbers with its one logit; images need two rows, and variants a name."""
    settings = compose_settings("aaggff/celeba").settings.model
    model = build_model(settings, (3, 84, 84), 1, seed=1)
    numbers = 9 * 32 * (3 + 3 * 32) + 4 * 2 * 32 + (25 * 32 + 1)
    assert sum(p.numel() for p in model.parameters()) == numbers == 29_569
    assert build_model(settings, (1, 2, 2), 1, seed=1)(torch.rand(1, 1, 2, 2)).shape == (1, 1)
    with pytest.raises(SettingsError, match="needs images of at least 2 x 2, got inputs of shape"):
        build_model(settings, (1, 2, 1), 1, seed=1)
    with pytest.raises(SettingsError, match=r"model\.variant must be one of leaf, aaggff, got 'x'"):
        compose_settings("custom", "model=celeba_cnn model.variant=x")
