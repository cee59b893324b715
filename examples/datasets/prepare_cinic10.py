"""Write CINIC-10 into one file, which data=cinic10 reads.

It has the 90,000 images of the train folder and the 90,000 of the test folder, not those of the
valid folder. Gray images become colored.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from preparation import Size, build_parser, prepare, read_images, write_npz

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
EACH_CLASS = 9_000
SIZE = (32, 32)
WANTED = (
    "train and test, in each a folder of images for every class (unpack CINIC-10.tar.gz from "
    "https://datashare.ed.ac.uk/handle/10283/3192)"
)


def keep_image(image: Image.Image, _: Size) -> Image.Image:
    """Return the image unchanged, so that another size is an error."""
    return image


def write(options: argparse.Namespace, path: Path) -> str:
    """Write the images class by class, in the order of their names, and return a description."""
    paths: dict[str, list[Path]] = {"train": [], "test": []}
    for split, split_paths in paths.items():
        folder = options.folder / split
        names = sorted(p.name for p in folder.iterdir() if p.is_dir())
        if tuple(names) != CLASSES:
            raise ValueError(f"{folder} must have {', '.join(CLASSES)}, got {', '.join(names)}")
        for name in CLASSES:
            class_paths = sorted((folder / name).glob("*.png"))
            if len(class_paths) != EACH_CLASS:
                raise ValueError(
                    f"{folder / name} must have {EACH_CLASS} images, got {len(class_paths)}"
                )
            split_paths.extend(class_paths)
    labels = np.repeat(np.arange(len(CLASSES)), EACH_CLASS)
    train, test = (read_images(split_paths, SIZE, keep_image) for split_paths in paths.values())
    write_npz(path, {"x_train": train, "y_train": labels, "x_test": test, "y_test": labels})
    return f"{len(labels):,} images for training and {len(labels):,} for testing"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the file."""
    parser = build_parser(__doc__, "the folder CINIC-10 of the archive", "cinic10.npz")
    prepare(parser.parse_args(arguments), WANTED, write)


if __name__ == "__main__":
    main()
