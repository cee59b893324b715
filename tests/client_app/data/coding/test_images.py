"""Test the coding of images: by path, by folder and as arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import DataError
from PIL import Image

from client_app.data.base import PixelNormalization
from client_app.data.coding.images import ImageCoding
from client_app.data.coding.read import infer_coding, read_coding

NORMALIZATION = PixelNormalization((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def save(path: Path, pixels: np.ndarray) -> Path:
    """Write an image."""
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def pixels() -> np.ndarray:
    """Return two images in color."""
    return np.random.default_rng(0).integers(256, size=(2, 4, 6, 3), dtype=np.uint8)


def test_paths_folders_and_arrays_are_the_same(tmp_path: Path, pixels: np.ndarray) -> None:
    """A folder's images in the order of their names; hidden files are passed over."""
    paths = [save(tmp_path / f"{i}.png", image) for i, image in enumerate(pixels)]
    (tmp_path / ".hidden.png").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    coding = ImageCoding((4, 6), "RGB")
    expected = np.moveaxis(pixels, -1, 1).astype(np.float32) / np.float32(255)
    for rows in (paths, [str(path) for path in paths], tmp_path, str(tmp_path), pixels):
        np.testing.assert_array_equal(coding.encode(rows).inputs, expected)
    assert list(coding.encode(tmp_path).labels) == [str(path) for path in paths]
    np.testing.assert_array_equal(coding.encode(paths[1]).inputs, expected[1:])


def test_normalization_and_json(pixels: np.ndarray) -> None:
    """(x / 255 - mean) / deviation, from a card as well."""
    coding = ImageCoding((4, 6), "RGB", "exact", NORMALIZATION)
    read = read_coding(json.loads(json.dumps(coding.to_json())))
    assert read == coding
    plain = ImageCoding((4, 6), "RGB").encode(pixels).inputs
    np.testing.assert_allclose(read.encode(pixels).inputs, (plain - 0.5) / 0.25, rtol=1e-6)
    assert coding.to_json()["channels"] == 3


def test_gray_images(tmp_path: Path, pixels: np.ndarray) -> None:
    """One channel."""
    coding = ImageCoding((4, 6), "L")
    path = save(tmp_path / "gray.png", pixels[0, :, :, 0])
    assert coding.encode(path).inputs.shape == (1, 1, 4, 6)
    assert coding.to_json()["channels"] == 1
    assert infer_coding(pixels[..., 0]) == coding


def test_other_sizes(tmp_path: Path, pixels: np.ndarray) -> None:
    """Scaled if the training images were, and otherwise refused."""
    path = save(tmp_path / "a.png", pixels[0])
    assert ImageCoding((8, 8), "RGB", "stretch").encode(path).inputs.shape == (1, 3, 8, 8)
    with pytest.raises(DataError, match=r"rows must lead to images of 8 x 8, got .* of 4 x 6"):
        ImageCoding((8, 8), "RGB").encode(path)


def test_what_is_no_image_is_one_line(tmp_path: Path) -> None:
    """It is named."""
    (tmp_path / "a.png").write_bytes(b"no image")
    coding = ImageCoding((4, 6), "RGB")
    with pytest.raises(
        DataError, match=r"rows must lead to images, got .*a\.png, which is damaged"
    ):
        coding.encode(tmp_path)
    with pytest.raises(DataError, match=r"rows must lead to images, got .*b\.png"):
        coding.encode(tmp_path / "b.png")
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match="which has none"):
        coding.encode(tmp_path)


def test_a_card_with_another_mode_is_damaged() -> None:
    """It is refused where it is read."""
    given = ImageCoding((4, 6), "RGB").to_json() | {"mode": "CMYK"}
    with pytest.raises(ValueError, match="mode must be L or RGB"):
        read_coding(given)


def test_images_with_other_channels_are_arrays() -> None:
    """Two channels have no mode; they are normalized all the same."""
    samples = np.zeros((2, 4, 6, 2), dtype=np.uint8)
    coding = infer_coding(samples, None, PixelNormalization((0.5, 0.5), (0.5, 0.5)))
    assert coding.kind == "array"
    assert read_coding(coding.to_json()) == coding
    np.testing.assert_array_equal(coding.encode(samples).inputs, np.full((2, 2, 4, 6), -1.0))
