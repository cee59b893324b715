"""ISIC 2019: photographs of skin lesions, a center a client, as FLamby divides them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from fedquorum.errors import DataError, one_line
from pyarrow import csv

from client_app.data.base import Labels
from client_app.data.sources.base import LabelledArrays
from client_app.data.sources.files import ImageFiles
from conf.schema.data import Isic2019Settings

IMAGES = "ISIC_2019_Training_Input_preprocessed"
TABLES = ("train_test_split", "train_test_folds.csv")
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
FOLDS = ("train", "test")
IMAGE_COUNT = 23_247


def isic2019_arrays(settings: Isic2019Settings) -> LabelledArrays:
    """Return the images of 8 kinds of lesions from 6 centers, with FLamby's training and test sets.

    Images are uint8 (n, height, width, 3), scaled to cover ``data.image_size`` and cut to its
    middle, and are read when they are asked for.

    Raises
    ------
    DataError
        If ``data.root`` does not lead to FLamby's table and preprocessed images.
    """
    root = Path(settings.root).expanduser().resolve()
    try:
        return _read(root / "ISIC2019", settings.image_size)
    except Exception as error:  # for a damaged file Arrow raises what it pleases
        raise DataError(
            f"data.root must be a folder with ISIC2019/{TABLES[0]} and ISIC2019/{IMAGES} (there is "
            "no download: accept the licence and run FLamby's scripts, "
            "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_isic2019), got "
            f"{root}: {one_line(error)}"
        ) from None


def _read(folder: Path, size: list[int]) -> LabelledArrays:
    paths = [folder / name for name in TABLES if (folder / name).is_file()]
    if not paths:
        raise ValueError(f"there is no {TABLES[0]} in {folder}")
    table = csv.read_csv(paths[0])
    missing = [
        name for name in ("image", "target", "center", "fold") if name not in table.column_names
    ]
    if missing:
        raise ValueError(f"{paths[0]} lacks {', '.join(missing)}")
    if table.num_rows != IMAGE_COUNT:
        raise ValueError(f"{paths[0]} must name {IMAGE_COUNT} images, got {table.num_rows}")
    folds = set(table["fold"].to_pylist())
    if folds != set(FOLDS):
        found = ", ".join(sorted(map(str, folds)))
        raise ValueError(f"fold must be train and test in {paths[0]}, got {found}")
    there = {path.name for path in (folder / IMAGES).iterdir()}
    gone = [name for name in table["image"].to_pylist() if f"{name}.jpg" not in there]
    if gone:
        raise ValueError(
            f"{len(gone)} of {table.num_rows} images are missing in {folder / IMAGES}, such as "
            f"{gone[0]}.jpg"
        )
    train, test = (_part(table.filter(pc.equal(table["fold"], fold))) for fold in FOLDS)
    images = [
        ImageFiles(
            "data.root",
            [folder / IMAGES / f"{name}.jpg" for name in names],
            (size[0], size[1]),
            fit="crop",
        )
        for names in (train[0], test[0])
    ]
    return LabelledArrays(
        images[0],
        train[1],
        images[1],
        test[1],
        len(CLASSES),
        client_train=train[2],
        client_test=test[2],
    )


def _part(table: Any) -> tuple[list[str], Labels, Labels]:
    targets, centers = (
        np.array(table[name].to_pylist(), dtype=np.int64) for name in ("target", "center")
    )
    return table["image"].to_pylist(), targets, centers
