"""Write CelebA into one file, which data=celeba reads, with one client for each person.

It has all 202,599 images of 10,177 people, both sides scaled, with one of the 40 attributes as
target. The published splits do not share people, so there is no test set: a person's test images
are taken from that person's images.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from preparation import Size, add_size, build_parser, prepare, read_images, write_npz
from torchvision.datasets import CelebA

WANTED = (
    "celeba, in it the five text files of CelebA and img_align_celeba (from "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, or by torchvision.datasets.CelebA(FOLDER, "
    "download=True))"
)


def resize_image(image: Image.Image, size: Size) -> Image.Image:
    """Scale both sides of an image."""
    return image.resize(size, Image.Resampling.BILINEAR)


def write(options: argparse.Namespace, path: Path) -> str:
    """Write all images in their published order, and return a description."""
    # CelebA verifies the MD5 sums of the text files.
    celeba = CelebA(options.folder, split="all", target_type=["attr", "identity"])
    folder = options.folder / "celeba" / "img_align_celeba"
    existing = {image.name for image in folder.iterdir()}
    missing = [name for name in celeba.filename if name not in existing]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(celeba.filename)} images are missing, such as {missing[0]}"
        )
    names = [name for name in celeba.attr_names if name]
    if options.attribute not in names:
        raise ValueError(
            f"--attribute must be one of {', '.join(names)}, got {options.attribute!r}"
        )
    people = celeba.identity[:, 0].numpy().astype(np.int64)
    arrays = {
        "x_train": read_images(
            [folder / name for name in celeba.filename], options.size, resize_image
        ),
        "y_train": celeba.attr[:, names.index(options.attribute)].numpy().astype(np.int64),
        "client_train": people,
    }
    write_npz(path, arrays)
    return f"{len(people):,} images of {len(np.unique(people)):,} people"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the file."""
    parser = build_parser(__doc__, "the folder with celeba in it", "celeba.npz")
    parser.add_argument("--attribute", default="Smiling", help="the target, by default %(default)s")
    add_size(parser, (84, 84))
    prepare(parser.parse_args(arguments), WANTED, write)


if __name__ == "__main__":
    main()
