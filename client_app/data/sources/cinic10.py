"""CINIC-10, from its folders of images."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torchvision.datasets import ImageFolder

from client_app.data.base import Labels
from client_app.data.sources.base import LabelledArrays
from conf.errors import DataError, one_line
from conf.schema import Cinic10Settings

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SHAPE = (32, 32, 3)


def cinic10_arrays(settings: Cinic10Settings) -> LabelledArrays:
    """Return the images of CINIC-10's train and test folders, uint8 (n, 32, 32, 3).

    There are 90,000 and 90,000, equally many of each class; the 90,000 of its valid folder are
    not read. Grey ones among them become coloured. They are read anew in each process, which
    takes some 15 seconds.

    Raises
    ------
    DataError
        If the folders below ``data.root`` do not hold that.
    """
    root = Path(settings.root).expanduser().resolve()
    try:
        parts = [_part(root / "CINIC-10" / part) for part in ("train", "test")]
        return LabelledArrays(*parts[0], *parts[1], len(CLASSES))
    except Exception as error:  # for a damaged file PIL raises what it pleases
        raise DataError(
            "data.root must be a folder with CINIC-10/train and CINIC-10/test, in each a folder of "
            "images for every class (there is no download: unpack CINIC-10.tar.gz from "
            "https://datashare.ed.ac.uk/handle/10283/3192 into CINIC-10), "
            f"got {root}: {one_line(error)}"
        ) from None


def _part(folder: Path) -> tuple[NDArray[np.uint8], Labels]:
    images = ImageFolder(folder)
    if tuple(images.classes) != CLASSES:
        raise ValueError(
            f"{folder} must have {', '.join(CLASSES)}, got {', '.join(images.classes)}"
        )
    labels = np.asarray(images.targets, dtype=np.int64)
    counts = np.bincount(labels)
    if counts.min() < counts.max():
        fewest, most = CLASSES[counts.argmin()], CLASSES[counts.argmax()]
        raise ValueError(
            f"{folder} must have equally many images of each class, got {counts.min()} of {fewest} "
            f"and {counts.max()} of {most}"
        )
    pixels = np.empty((len(labels), *SHAPE), dtype=np.uint8)
    for row, (path, _) in enumerate(images.samples):
        pixels[row] = _pixels(images, path)
    return pixels, labels


def _pixels(images: ImageFolder, path: str) -> NDArray[np.uint8]:
    try:
        pixels = np.asarray(images.loader(path))  # in colour, whatever the file holds
    except Exception as error:
        raise ValueError(f"{path} is no image: {one_line(error)}") from None
    if pixels.shape != SHAPE:
        raise ValueError(f"{path} must be an image {SHAPE}, got {pixels.shape}")
    return pixels
