"""Pixels to inputs."""

import numpy as np

from client_app.data.base import scaled_images


def test_scaled_images() -> None:
    """uint8 images become float32 in [0, 1] with a channel axis, pixel by pixel v / 255."""
    images = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    scaled = scaled_images(images)
    assert scaled.dtype == np.float32
    assert scaled.shape == (4, 1, 8, 8)
    expected = np.array([v / 255 for v in range(256)], dtype=np.float32)
    np.testing.assert_array_equal(scaled.reshape(-1), expected)
    assert (scaled.min(), scaled.max()) == (0.0, 1.0)
