"""Images with mean 0 and standard deviation 1 in every channel."""

from dataclasses import replace

import numpy as np
import pytest
from fedquorum.errors import SettingsError

from client_app.data.normalize import normalize_images
from client_app.data.sources.base import LabeledArrays

RNG = np.random.default_rng(5)


def make_images(*shape: int) -> LabeledArrays:
    """Return 40 training and 10 test images of these axes."""
    x = RNG.integers(20, 90, (50, *shape), dtype=np.uint8)
    y = np.arange(50) % 3
    return LabeledArrays(x[:40], y[:40], x[40:], y[40:], 3)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_every_channel_has_mean_0_and_spread_1(shape: tuple[int, ...]) -> None:
    """Of the training images; test images go by the same numbers, channels come first."""
    given = make_images(*shape)
    found, scale = normalize_images(given, np.arange(3))
    channels = shape[2] if len(shape) > 2 else 1
    assert found.x_train.shape == (40, channels, 6, 5)
    for c in range(channels):
        assert found.x_train[:, c].mean() == pytest.approx(0.0, abs=1e-5)
        assert found.x_train[:, c].std() == pytest.approx(1.0, abs=1e-5)
        splits = (given.x_train[:], given.x_test[:])
        raw, test = (np.asarray(x).reshape(len(x), 6, 5, channels)[..., c] for x in splits)
        by_hand = (test - raw.mean()) / raw.std()
        assert scale.mean[c] == pytest.approx(raw.mean() / 255)
        assert scale.std[c] == pytest.approx(raw.std() / 255)
        np.testing.assert_allclose(found.x_test[:, c], by_hand, rtol=0, atol=1e-4)
    assert given.x_train.dtype == np.uint8


def test_test_images_of_the_same_array_do_not_count() -> None:
    """Where clients divide one set into training and test images, only the former decide."""
    whole = make_images(4, 4, 3)
    training = np.array([0, 7, 8, 30])
    found, scale = normalize_images(
        replace(whole, x_test=whole.x_train, y_test=whole.y_train), training
    )
    registered = whole.x_train[training] / 255
    assert scale.mean == pytest.approx(registered.mean(axis=(0, 1, 2)))
    assert scale.std == pytest.approx(registered.std(axis=(0, 1, 2)))
    np.testing.assert_array_equal(found.x_test, found.x_train)


def test_a_channel_without_spread_is_finite() -> None:
    """As of images that are all black."""
    black = replace(make_images(4, 4), x_train=np.zeros((40, 4, 4), np.uint8))
    found, scale = normalize_images(black, np.arange(40))
    assert np.isfinite(found.x_test[:]).all()
    assert not found.x_train[:].any()
    assert (scale.mean, scale.std) == ((0.0,), (1.0,))


def test_other_samples_than_images_are_refused() -> None:
    """Sound, floats and tokens, in one line."""
    floats = replace(
        make_images(4, 4),
        x_train=np.zeros((40, 4), np.float32),
        x_test=np.zeros((10, 4), np.float32),
    )
    with pytest.raises(SettingsError, match=r"data\.normalize must be false where samples are no"):
        normalize_images(floats, np.arange(40))
