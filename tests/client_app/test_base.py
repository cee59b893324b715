"""Pixels to inputs."""

import numpy as np

from client_app.data.base import scaled_images, scaled_sound


def test_scaled_images() -> None:
    """uint8 images become float32 in [0, 1] with a channel axis, pixel by pixel v / 255."""
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    scaled = scaled_images(images)
    assert scaled.dtype == np.float32
    assert scaled.shape == (4, 1, 8, 8)
    expected = np.array([v / 255 for v in range(256)], dtype=np.float32)
    np.testing.assert_array_equal(scaled.reshape(-1), expected)
    assert (scaled.min(), scaled.max()) == (0.0, 1.0)


def test_scaled_colour_images() -> None:
    """Channels come first, in their order, each pixel where it was."""
    images = np.random.default_rng(0).integers(256, size=(2, 4, 5, 3), dtype=np.uint8)
    scaled = scaled_images(images)
    assert scaled.dtype == np.float32
    assert scaled.shape == (2, 3, 4, 5)
    assert scaled.flags.c_contiguous
    for channel in range(3):
        expected = images[..., channel].astype(np.float32) / np.float32(255)
        np.testing.assert_array_equal(scaled[:, channel], expected)


def test_scaled_sound() -> None:
    """int16 becomes float32 with a channel axis, v / 32768, exactly."""
    samples = np.array([[-32768, -1, 0], [1, 16384, 32767]], dtype=np.int16)
    scaled = scaled_sound(samples)
    assert scaled.dtype == np.float32
    expected = [[[-1, -(2**-15), 0]], [[2**-15, 0.5, 1 - 2**-15]]]
    np.testing.assert_array_equal(scaled, np.array(expected, dtype=np.float32), strict=True)
