"""Read images from files, each on demand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import DataError, to_one_line
from numpy.typing import NDArray
from PIL import Image

NUM_RGB_CHANNELS = 3
WIDE_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
"""Pillow's modes in which a conversion to 8 bits would clip numbers at 255."""


class ImageFiles:
    """Images as uint8 (n, height, width, 3), or (n, height, width) if gray.

    Parameters
    ----------
    paths : sequence of Path
        One for each image.
    size : tuple of int
        Height and width.
    fit : str
        ``exact`` refuses images of another size, ``stretch`` scales both sides.
    mode : str
        Pillow's mode to which images are converted, ``RGB`` or ``L``.
    setting : str
        What names the images, for messages.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        paths: Sequence[Path],
        size: tuple[int, int],
        *,
        fit: str = "exact",
        mode: str = "RGB",
        setting: str = "data.path",
    ) -> None:
        self._paths = paths
        self._size = size
        self._fit = fit
        self._mode = mode
        self._setting = setting
        self.shape = (len(paths), *size, *((NUM_RGB_CHANNELS,) if mode == "RGB" else ()))

    def __len__(self) -> int:
        """Return n, the number of images."""
        return len(self._paths)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        """Return the images of a slice or of an array of rows; see ``LazyArray``."""
        selected = np.arange(len(self))[rows]
        pixels = np.empty((len(selected), *self.shape[1:]), dtype=np.uint8)
        for index, row in enumerate(selected):
            pixels[index] = self._read(self._paths[row])
        return pixels

    def _read(self, path: Path) -> NDArray[np.uint8]:
        try:
            with Image.open(path) as file:
                mode, image = file.mode, file.convert(self._mode)
        except Exception as error:  # PIL raises any exception for a damaged file
            raise DataError(
                f"{self._setting} must lead to images, got {path}, which is no image: "
                f"{to_one_line(error)}"
            ) from None
        return to_pixels(
            image, mode, self._size, self._fit, setting=self._setting, location=str(path)
        )


def to_pixels(
    image: Image.Image, mode: str, size: tuple[int, int], fit: str, *, setting: str, location: str
) -> NDArray[np.uint8]:
    """Return the pixels of an image that was converted to 8 bits a channel.

    Parameters
    ----------
    image : Image
        The converted image.
    mode : str
        Pillow's mode before the conversion.
    size : tuple of int
        Height and width.
    fit : str
        See ``ImageFiles``.
    setting, location : str
        The setting and the location of the image, for messages.

    Raises
    ------
    DataError
        If it had more than 8 bits, or has another size and ``fit`` is ``exact``.
    """
    height, width = size
    if mode in WIDE_MODES:
        raise DataError(
            f"{setting} must lead to images of 8 bits a channel, got {location} of Pillow's mode "
            f"{mode}"
        )
    if image.size != (width, height):
        if fit == "exact":
            raise DataError(
                f"{setting} must lead to images of {height} x {width}, got {location} of "
                f"{image.size[1]} x {image.size[0]}"
            )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def read_image_size(path: Path) -> tuple[int, int]:
    """Return height and width of an image from its header.

    Raises
    ------
    ValueError
        If the file is no image.
    """
    try:
        with Image.open(path) as file:
            return file.height, file.width
    except Exception as error:
        raise ValueError(f"{path} is no image: {to_one_line(error)}") from None
