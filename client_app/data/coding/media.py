"""Read images from files, each on demand."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import DataError, to_one_line
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

NUM_RGB_CHANNELS = 3
WIDE_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
"""Pillow's modes in which a conversion to 8 bits would clip numbers at 255."""
UPRIGHT = 1
LYING_ORIENTATIONS = (5, 6, 7, 8)
"""The values of EXIF's orientation with which height and width change places."""


class ImageFiles:
    """Images turned upright, uint8 (n, height, width, 3), or (n, height, width) if gray.

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

    def check(self, rows: NDArray[np.int64]) -> None:
        """Check the headers of images; see ``LazyArray``."""
        for row in rows.tolist():
            with self._open(self._paths[row]):
                pass

    @contextmanager
    def _open(self, path: Path) -> Iterator[Image.Image]:
        """Open an image whose header is as required; the pixels may still be damaged."""
        try:
            with Image.open(path) as file:
                found = get_upright_size(file)
                check_header(
                    file.mode, found, self._size, self._fit, str(path), setting=self._setting
                )
                yield file
        except DataError:
            raise
        except Exception as error:  # PIL raises any exception for a damaged file
            raise DataError(
                f"{self._setting} must lead to images, got {path}, which is damaged or no image: "
                f"{to_one_line(error)}"
            ) from None

    def _read(self, path: Path) -> NDArray[np.uint8]:
        with self._open(path) as file:
            return to_pixels(turn_upright(file).convert(self._mode), self._size)


def check_header(
    mode: str,
    found: tuple[int, int],
    size: tuple[int, int],
    fit: str,
    location: str,
    *,
    setting: str = "data.path",
) -> None:
    """Check what an image's header tells.

    Parameters
    ----------
    mode : str
        Pillow's mode.
    found : tuple of int
        Height and width of the upright image.
    size : tuple of int
        The height and width of all images.
    fit : str
        See ``ImageFiles``.
    location, setting : str
        The image, and what names it, for messages.

    Raises
    ------
    DataError
        If it has more than 8 bits, or another size and ``fit`` is ``exact``.
    """
    if mode in WIDE_MODES:
        raise DataError(
            f"{setting} must lead to images of 8 bits a channel, got {location} of Pillow's mode "
            f"{mode}"
        )
    if fit == "exact" and found != size:
        height, width = size
        if setting != "data.path":
            raise DataError(
                f"{setting} must lead to images of {height} x {width}, got {location} of "
                f"{found[0]} x {found[1]}"
            )
        raise DataError(
            f"data.image_size must be set where images differ in size (such as [{height},{width}], "
            f"the first one's, to scale all to it), got null and {location} of "
            f"{found[0]} x {found[1]}"
        )


def to_pixels(image: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the pixels of an image of 8 bits a channel, scaled to a height and a width."""
    height, width = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def get_upright_size(file: Image.Image) -> tuple[int, int]:
    """Return height and width of an open image as ``turn_upright`` returns it."""
    lies = _read_orientation(file) in LYING_ORIENTATIONS
    return (file.width, file.height) if lies else (file.height, file.width)


def turn_upright(file: Image.Image) -> Image.Image:
    """Return an image as the photographer saw it: turned or mirrored as its EXIF flag tells."""
    return file if _read_orientation(file) == UPRIGHT else ImageOps.exif_transpose(file)


def _read_orientation(file: Image.Image) -> int:
    """Return the orientation in the header, from 1 to 8; Pillow turns a TIFF itself."""
    if "exif" in file.info:
        with suppress(Exception):  # a camera's damaged notes do not make a picture unusable
            return int(file.getexif().get(ExifTags.Base.Orientation, UPRIGHT))
    return UPRIGHT


def read_image_size(path: Path) -> tuple[int, int]:
    """Return height and width of an upright image from its header.

    Raises
    ------
    ValueError
        If the file is no image.
    """
    try:
        with Image.open(path) as file:
            return get_upright_size(file)
    except Exception as error:
        raise ValueError(f"{path} is damaged or no image: {to_one_line(error)}") from None
