"""CINIC-10, from its folders of images."""

from pathlib import Path

import numpy as np
from fedquorum.errors import DataError, one_line

from client_app.data.base import Labels
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.files import ImageFiles
from client_app.data.sources.image_folder import images_by_class, positions
from conf.schema.data import Cinic10Settings

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
EACH_CLASS = 9_000
SIZE = (32, 32)


def cinic10_arrays(settings: Cinic10Settings) -> LabelledArrays:
    """Return the images of CINIC-10's train and test folders, uint8 (n, 32, 32, 3).

    There are 90,000 and 90,000, equally many of each class; the 90,000 of its valid folder are
    not used. Grey ones among them become coloured. They are read when they are asked for.

    Raises
    ------
    DataError
        If the folders below ``data.root`` do not hold that.
    """
    root = Path(settings.root).expanduser().resolve()
    try:
        parts = [_part(root / "CINIC-10" / part) for part in ("train", "test")]
        return LabelledArrays(*parts[0], *parts[1], len(CLASSES))
    except (OSError, ValueError) as error:
        raise DataError(
            "data.root must be a folder with CINIC-10/train and CINIC-10/test, in each a folder of "
            "images for every class (there is no download: unpack CINIC-10.tar.gz from "
            "https://datashare.ed.ac.uk/handle/10283/3192 into CINIC-10), "
            f"got {root}: {one_line(error)}"
        ) from None


def _part(folder: Path) -> tuple[ImageFiles, Labels]:
    paths, classes = images_by_class(folder)
    found = sorted(set(classes))
    if tuple(found) != CLASSES:
        raise ValueError(f"{folder} must have {', '.join(CLASSES)}, got {', '.join(found)}")
    labels = positions(classes, CLASSES)
    for name, count in zip(CLASSES, np.bincount(labels), strict=True):
        if count != EACH_CLASS:
            raise ValueError(f"{folder / name} must have {EACH_CLASS} images, got {count}")
    return ImageFiles("data.root", paths, SIZE), labels
