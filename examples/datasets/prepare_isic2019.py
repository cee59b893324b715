"""Write ISIC 2019 into one file, which data=isic2019 reads, with one client for each center.

It has FLamby's 23,247 images of 8 kinds of lesions, with its training and test sets. An image is
scaled to cover the size and cut to its middle.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from preparation import Rows, Size, add_size, build_parser, prepare, read_images, write_npz
from pyarrow import csv

IMAGES = "ISIC_2019_Training_Input_preprocessed"
TABLES = ("train_test_split", "train_test_folds.csv")
COLUMNS = ("image", "target", "center", "fold")
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
IMAGE_COUNT = 23_247
WANTED = (
    f"{TABLES[0]} and {IMAGES} (accept the license and run FLamby's scripts, "
    "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_isic2019)"
)


def crop(image: Image.Image, size: Size) -> Image.Image:
    """Scale an image so that it covers the size, and crop its middle."""
    return ImageOps.fit(image, size, Image.Resampling.BILINEAR)


def write(options: argparse.Namespace, path: Path) -> str:
    """Write the images in the order of FLamby's table, and return a description."""
    table = read_table(options.folder)
    arrays: dict[str, Any] = {}
    for fold in ("train", "test"):
        rows = [row for row in table if row["fold"] == fold]
        paths = [options.folder / IMAGES / f"{row['image']}.jpg" for row in rows]
        pixels: Rows = read_images(paths, options.size, crop)
        arrays[f"x_{fold}"] = pixels
        arrays[f"y_{fold}"] = np.array([row["target"] for row in rows], dtype=np.int64)
        arrays[f"client_{fold}"] = np.array([row["center"] for row in rows], dtype=np.int64)
    write_npz(path, arrays)
    train, test = len(arrays["y_train"]), len(arrays["y_test"])
    return f"{train:,} images for training and {test:,} for testing"


def read_table(folder: Path) -> list[dict[str, Any]]:
    """Return FLamby's table, a dict for each row; raise ValueError if images are missing."""
    paths = [folder / name for name in TABLES if (folder / name).is_file()]
    if not paths:
        raise ValueError(f"there is no {TABLES[0]}")
    table = csv.read_csv(paths[0])
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(f"{paths[0].name} lacks {', '.join(missing)}")
    rows: list[dict[str, Any]] = table.select(COLUMNS).to_pylist()
    if len(rows) != IMAGE_COUNT:
        raise ValueError(f"{paths[0].name} must name {IMAGE_COUNT} images, got {len(rows)}")
    for row in rows:
        if row["fold"] not in {"train", "test"}:
            raise ValueError(f"fold must be train or test in {paths[0].name}, got {row['fold']}")
        if row["target"] not in range(len(CLASSES)):
            raise ValueError(
                f"target must be 0 to {len(CLASSES) - 1} in {paths[0].name}, got {row['target']}"
            )
    existing = {path.name for path in (folder / IMAGES).iterdir()}
    absent = [f"{row['image']}.jpg" for row in rows if f"{row['image']}.jpg" not in existing]
    if absent:
        raise ValueError(f"{len(absent)} of {len(rows)} images are missing, such as {absent[0]}")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the file."""
    parser = build_parser(__doc__, "the folder that FLamby's scripts wrote", "isic2019.npz")
    add_size(parser, (224, 224))
    prepare(parser.parse_args(arguments), WANTED, write)


if __name__ == "__main__":
    main()
