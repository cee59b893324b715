"""CelebA: photographs of faces, a person a client."""

from pathlib import Path

import numpy as np
from fedquorum.errors import DataError, one_line
from torchvision.datasets import CelebA

from client_app.data.sources.base import LabelledArrays, pooled_arrays
from client_app.data.sources.files import ImageFiles
from client_app.data.sources.torchvision import without_download
from conf.schema.data import CelebASettings

FOLDER = "celeba"
IMAGES = "img_align_celeba"
WANTED = f"the text files of CelebA and {IMAGES} in {FOLDER}"


def celeba_arrays(settings: CelebASettings) -> LabelledArrays:
    """Return all 202,599 images of 10,177 people, whether or not one has ``data.target``.

    Images are uint8 (n, height, width, 3) of ``data.image_size``, both sides scaled, and are read
    when they are asked for. The published parts do not share people, so they are pooled, and a
    person's test part is of the person's own images. ``data.min_samples`` 5 leaves LEAF's 9,343
    people.

    ``data.root`` is torchvision's root. Where files are missing there they are downloaded, unless
    ``data.download`` is false; that needs the package gdown. torchvision compares the text files
    with their MD5 sums.

    Raises
    ------
    DataError
        If the files are neither there nor to be had, or there is no such attribute.
    """
    root = Path(settings.root).expanduser().resolve()
    try:
        celeba = _celeba(root, download=False)
    except Exception as error:  # for a damaged file torchvision raises what it pleases
        if not settings.download:
            raise DataError(
                f"data.root must be a folder with {WANTED} (data.download is false), got {root}: "
                f"{without_download(error)}"
            ) from None
        try:
            celeba = _celeba(root, download=True)
        except Exception as failed:
            raise DataError(
                f"data.root must be a folder with {WANTED}, or they must be downloadable to it "
                "with the package gdown (else unpack img_align_celeba.zip and the text files from "
                f"https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html), got {root}: "
                f"{one_line(failed)}"
            ) from None
    names = [name for name in celeba.attr_names if name]
    if settings.target not in names:
        raise DataError(f"data.target must be one of {', '.join(names)}, got {settings.target!r}")
    height, width = settings.image_size
    folder = root / FOLDER / IMAGES
    return pooled_arrays(
        ImageFiles(
            "data.root", [folder / name for name in celeba.filename], (height, width), fit="stretch"
        ),
        celeba.attr[:, names.index(settings.target)].numpy().astype(np.int64),
        2,
        client_train=celeba.identity[:, 0].numpy().astype(np.int64),
    )


def _celeba(root: Path, *, download: bool) -> CelebA:
    celeba = CelebA(root, split="all", target_type=["attr", "identity"], download=download)
    there = {path.name for path in (root / FOLDER / IMAGES).iterdir()}
    missing = [name for name in celeba.filename if name not in there]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(celeba.filename)} images are missing, such as {missing[0]}"
        )
    if not len(celeba.attr) == len(celeba.identity) == len(celeba.filename):
        raise ValueError(
            f"the text files must have equally many lines, got {len(celeba.filename)}, "
            f"{len(celeba.attr)} and {len(celeba.identity)}"
        )
    return celeba
