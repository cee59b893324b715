"""Random changes of training images."""

from dataclasses import astuple, replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from fedquorum.rng import make_generator
from fedquorum.rules.parameters import AUGMENTATION
from hypothesis import given
from hypothesis import strategies as st

from client_app.data.base import PixelNormalization
from client_app.training.augmentation import (
    Augmentation,
    ColorJitter,
    adjust_hue,
    build_augmentation,
    check_augmentation,
    color_jitter,
    crop,
    flip,
    jitter_colors,
)
from client_app.training.local_sgd import LocalSGDConfig, train_model
from conf import SettingsError, compose_settings
from tests.cases import limit_examples

CHANGES = [name for name in AUGMENTATION.choices if name != "none"]
MOVES = [name for name in CHANGES if name != "cifar100"]


def make_distinct_images(n: int, c: int, h: int, w: int) -> torch.Tensor:
    """Return images in which no two pixels are equal and none is 0."""
    return torch.arange(1.0, n * c * h * w + 1).reshape(n, c, h, w)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(2, 9), st.integers(2, 9)),
    st.integers(0, 2**32),
)
@limit_examples(30)
def test_pixels_stay_in_their_image_and_channel(
    name: str, precision: torch.dtype, shape: tuple[int, int, int, int], seed: int
) -> None:
    """Shape and type stay, each value is 0 or from the same image and channel; inputs stay too."""
    images = make_distinct_images(*shape).to(precision)
    changed = build_augmentation(name, partial(make_generator, seed))(images)
    assert (changed.shape, changed.dtype, changed.device) == (shape, precision, images.device)
    for before, after in zip(images.flatten(0, 1), changed.flatten(0, 1), strict=True):
        assert set(after.flatten().tolist()) <= {0.0, *before.flatten().tolist()}
    assert torch.equal(images, make_distinct_images(*shape).to(precision))


@pytest.mark.parametrize("name", MOVES)
def test_windows_and_mirroring_by_hand(name: str) -> None:
    """Each result is a window of the padded image, mirrored or not; all are as frequent."""
    image = make_distinct_images(1, 2, 5, 6)
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)))
    found: dict[bytes, tuple[int, int, int]] = {}
    for top in range(9):
        for left in range(9):
            window = padded[:, top : top + 5, left : left + 6]
            for mirrored, result in enumerate((window, window[:, :, ::-1])):
                found[np.ascontiguousarray(result).tobytes()] = (top, left, mirrored)
    assert len(found) == 162
    kinds = 162 if name == "crop_flip" else 81
    n = 100 * kinds
    changed = build_augmentation(name, partial(make_generator, 0))(image.expand(n, -1, -1, -1))
    counts = np.zeros((9, 9, 2))
    for one in changed.numpy():
        counts[found[one.tobytes()]] += 1
    if name == "crop":
        assert counts[:, :, 1].sum() == 0
        counts = counts[:, :, :1]
    assert counts.size == kinds
    assert counts.min() > 0
    # Chi-squared with f degrees of freedom: mean f, variance 2 f.
    freedom = kinds - 1
    assert ((counts - 100) ** 2 / 100).sum() < freedom + 4 * (2 * freedom) ** 0.5


def make_colors(n: int, h: int = 32, w: int = 32, seed: int = 0) -> torch.Tensor:
    """Return uint8 images with smooth regions, edges and a gray corner."""
    from torchvision.transforms.v2 import functional as torchvision

    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.integers(256, size=(n, 3, 4, 4), dtype=np.uint8))
    images: torch.Tensor = torchvision.resize(coarse, [h, w], antialias=True)
    images[:, :, : h // 4, : w // 4] = images[:, :1, : h // 4, : w // 4]
    images[:, :, -h // 4 :] = torch.from_numpy(
        rng.integers(256, size=(n, 3, h - (h - h // 4), w), dtype=np.uint8)
    )
    return images


def scale_pixels(pixels: torch.Tensor, precision: torch.dtype = torch.float32) -> torch.Tensor:
    """Return uint8 images as clients hold them."""
    return torch.from_numpy(pixels.numpy().astype(np.float32) / np.float32(255)).to(precision)


def apply_torchvision(pixels: torch.Tensor, what: ColorJitter) -> torch.Tensor:
    """Return uint8 images, changed one by one with torchvision."""
    from torchvision.transforms.v2 import functional as torchvision

    results = []
    for one, sharpened, brightness, hue, hue_first, posterized, equalized in zip(
        pixels, *(values.tolist() for values in astuple(what)), strict=True
    ):
        image = one
        if sharpened:
            image = torchvision.adjust_sharpness(image, 2)
        if hue_first:
            image = torchvision.adjust_brightness(torchvision.adjust_hue(image, hue), brightness)
        else:
            image = torchvision.adjust_hue(torchvision.adjust_brightness(image, brightness), hue)
        if posterized:
            image = torchvision.posterize(image, 2)
        if equalized:
            image = torchvision.equalize(image)
        results.append(image)
    return torch.stack(results)


def make_all_decisions(seed: int) -> ColorJitter:
    """Return the changes of 16 images, with each combination of flags once."""
    decisions = np.array(list(product((False, True), repeat=4)))
    rng = np.random.default_rng(seed)
    return ColorJitter(
        sharpened=decisions[:, 0],
        brightness=rng.uniform(0.95, 1.05, 16).astype(np.float32),
        hue=rng.uniform(-0.05, 0.05, 16).astype(np.float32),
        hue_first=decisions[:, 1],
        posterized=decisions[:, 2],
        equalized=decisions[:, 3],
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_colors_are_torchvisions(seed: int, turned: bool, precision: torch.dtype) -> None:
    """Each image changes by its own numbers as in torchvision, alone or in a batch."""
    what = make_all_decisions(seed)
    if not turned:
        what = replace(what, hue=np.zeros(16, np.float32))
    pixels = make_colors(16, seed=seed)
    expected = scale_pixels(apply_torchvision(pixels, what), precision)
    images = scale_pixels(pixels, precision)
    result = jitter_colors(images, what)
    assert torch.equal(images, scale_pixels(pixels, precision))
    differs = (result - expected).abs() > 1e-6
    # Where float32 rounds the hue otherwise a byte is one off, and more once posterized.
    assert float(differs.double().mean()) < (0.0005 if turned else 1e-12)


@pytest.mark.parametrize("turn", [-0.05, -0.02, 0.0, 0.001, 0.05])
def test_hue_is_torchvisions(turn: float) -> None:
    """On every color of a fine grid bytes differ by at most one, and hardly ever; 0 is none."""
    from torchvision.transforms.v2 import functional as torchvision

    grid = torch.arange(0, 256, 5, dtype=torch.uint8)
    pixels = torch.cartesian_prod(grid, grid, grid).T.reshape(1, 3, len(grid), -1)
    turn = float(np.float32(turn))
    result = adjust_hue(pixels, np.array([turn], np.float32))
    off = (result.int() - torchvision.adjust_hue(pixels, turn).int()).abs()
    assert int(off.max()) <= 1
    assert float(off.double().mean()) < 0.0002
    assert turn != 0 or torch.equal(result, pixels)


def test_color_changes_are_independent() -> None:
    """Every flag is set for half of the images; all random numbers are independent."""
    n = 20_000
    what = ColorJitter.sample(n, np.random.default_rng(0))
    for done in (what.sharpened, what.hue_first, what.posterized, what.equalized):
        assert done.shape == (n,)
        assert done.dtype == np.bool_
        assert done.mean() == pytest.approx(0.5, abs=4 * 0.5 / n**0.5)
    for values, center in ((what.brightness, 1.0), (what.hue, 0.0)):
        assert values.shape == (n,)
        assert values.dtype == np.float32
        uniform = center + np.linspace(-0.05, 0.05, n)
        np.testing.assert_allclose(np.sort(values), uniform, atol=0.002)
        assert abs(values - np.float32(center)).max() < 0.05 + 1e-6
    correlations = np.corrcoef(np.stack([values.astype(float) for values in astuple(what)]))
    np.testing.assert_allclose(correlations, np.eye(6), atol=4 / n**0.5)


@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0, None])
)
@limit_examples(50)
def test_colors_stay_in_range(n: int, h: int, w: int, level: float | None) -> None:
    """For any size and pixels, results are multiples of 1 / 255 from 0 to 1."""
    images = torch.rand(n, 3, h, w) if level is None else torch.full((n, 3, h, w), level)
    before = images.clone()
    changed = build_augmentation("cifar100", partial(make_generator, n))(images)
    assert (changed.shape, changed.dtype) == (images.shape, images.dtype)
    assert 0 <= float(changed.min()) <= float(changed.max()) <= 1
    torch.testing.assert_close(255 * changed, (255 * changed).round())
    assert torch.equal(images, before)


def test_colors_change_before_crop_and_flip() -> None:
    """CIFAR-100's images change colors, are cropped, and mirrored, with one stream for all."""
    images, rng = scale_pixels(make_colors(8)), make_generator(3, "augmentation")
    expected = flip(crop(color_jitter(images, rng), rng), rng)
    assert torch.equal(build_augmentation("cifar100", partial(make_generator, 3))(images), expected)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 1)), min_size=3, max_size=3))
def test_the_pixels_of_normalized_images(numbers: list[tuple[float, float]]) -> None:
    """All 256 bytes of each channel are restored, for any mean and standard deviation."""
    from torchvision.transforms.v2 import functional as torchvision

    mean, spread = np.array(numbers, np.float32).T.tolist()
    scale = PixelNormalization(tuple(mean), tuple(spread))
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(2, 3, 16, 16)
    found = scale.denormalize(scale.normalize(scale_pixels(pixels)))
    assert torch.equal(torchvision.to_dtype(found, torch.uint8, scale=True), pixels)


def test_normalized_images_change_colors_as_their_pixels_do() -> None:
    """They are those images, recolored and normalized anew; the margins of a window are zero."""
    scale = PixelNormalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))  # CIFAR-100's
    images, rng = scale_pixels(make_colors(8)), make_generator(3, "augmentation")
    expected = flip(crop(scale.normalize(color_jitter(images, rng)), rng), rng)
    found = build_augmentation("cifar100", partial(make_generator, 3), scale)(
        scale.normalize(images)
    )
    assert torch.equal(found, expected)
    check_augmentation("cifar100", scale.normalize(images), scale)


@pytest.mark.parametrize("name", CHANGES)
def test_the_stream_decides(name: str) -> None:
    """The same stream gives the same images, batch after batch; another one gives others."""
    images = scale_pixels(make_colors(8, 16, 16))
    one, same, other = (
        build_augmentation(name, partial(make_generator, seed)) for seed in (1, 1, 2)
    )
    first, second = one(images), one(images)
    assert torch.equal(first, same(images))
    assert torch.equal(second, same(images))
    assert not torch.equal(first, second)
    assert not torch.equal(first, other(images))


@pytest.mark.parametrize("name", CHANGES)
def test_torchs_generator_is_not_used(name: str) -> None:
    """Changing images neither uses nor advances torch's global generator."""
    before = torch.get_rng_state()
    build_augmentation(name, partial(make_generator, 1))(scale_pixels(make_colors(4, 8, 8)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CHANGES)
def test_several_clients_in_one_batch(name: str) -> None:
    """Each client's images change as in a separate batch, batch after batch."""
    draws = [partial(make_generator, 1, client=k) for k in range(3)]
    joint, separate = Augmentation(name, draws), [build_augmentation(name, draw) for draw in draws]
    for counts in ([3, 1, 4], [2, 5], [1]):
        images = scale_pixels(make_colors(sum(counts), 16, 16, seed=sum(counts)))
        pairs = zip(separate, images.split(counts), strict=False)
        expected = torch.cat([augment(batch) for augment, batch in pairs])
        assert torch.equal(joint(images, counts), expected)


def test_none_is_the_identity() -> None:
    """Without augmentation a client draws only the order of its batches."""
    purposes = []

    def note_purpose(purpose: str) -> np.random.Generator:
        purposes.append(purpose)
        return np.random.default_rng(0)

    x, y = torch.rand(3, 4), torch.tensor([0, 1, 0])
    train_model(torch.nn.Linear(4, 2), x, y, LocalSGDConfig(0.1, 2, 1), note_purpose)
    assert purposes == ["batches"]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("input_shape", [(60,), (28, 28), (1, 3, 32, 32)])
def test_only_images_can_be_augmented(name: str, input_shape: tuple[int, ...]) -> None:
    """Inputs that are not images with channels are refused in one line, except with ``none``."""
    inputs = np.zeros((2, *input_shape), np.float32)
    with pytest.raises(SettingsError, match=f"client.augmentation must be none .* got {name} for"):
        check_augmentation(name, inputs)
    check_augmentation("none", inputs)
    check_augmentation(name, np.ones((2, 3, 32, 32), np.float32))
    check_augmentation(name, np.ones((0, 3, 32, 32), np.float32))


@pytest.mark.parametrize("channels", [1, 4])
def test_only_color_images_change_colors(channels: int) -> None:
    """Gray images can be cropped and mirrored, not recolored."""
    images = np.zeros((2, channels, 8, 8), np.float32)
    for name in MOVES:
        check_augmentation(name, images)
    message = r"client.augmentation must be none, crop or crop_flip .*3 .*got cifar100 for .*8, 8\)"
    with pytest.raises(SettingsError, match=message):
        check_augmentation("cifar100", images)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (0.0, 255.0), (-2.0, 2.0)])
def test_only_pixels_from_0_to_1_change_colors(low: float, high: float) -> None:
    """Others would wrap around as bytes, and are refused; the text has no value of a pixel."""
    images = np.full((2, 3, 8, 8), low, np.float32)
    images[1, 2, 3, 4] = high
    for name in MOVES:
        check_augmentation(name, images)
    message = r"must be none, crop or crop_flip where pixels are not in \[0, 1\], got cifar100$"
    with pytest.raises(SettingsError, match=message):
        check_augmentation("cifar100", images)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("fmnist", "none"),
        ("svhn", "crop"),
        ("cifar10", "crop_flip"),
        ("cinic10", "crop_flip"),
        ("cifar100", "cifar100"),
    ],
)
def test_augmentation_of_fedaus_experiments(data: str, name: str) -> None:
    """Each of FedAU's experiments augments as its published code does."""
    assert compose_settings(f"fedau/{data}").settings.client.augmentation == name
