"""Load image data sets from torchvision."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import DataError, to_one_line
from torchvision.datasets import CIFAR10, CIFAR100, EMNIST, MNIST, SVHN, FashionMNIST

from client_app.data.sources.base import LabeledArrays
from conf.schema.data import TorchvisionSettings

GRAY, COLOR = (28, 28), (32, 32, 3)


def _load_svhn(root: Path, *, train: bool, download: bool) -> SVHN:
    return SVHN(root, split="train" if train else "test", download=download)


@dataclass(frozen=True)
class _Dataset:
    """A data set class of torchvision, and the files that it reads below its root.

    ``axes`` permutes its images to n, height, width and channels; ``labels`` is the name of the
    attribute with its labels.
    """

    create: Callable[..., Any]
    files: str
    num_classes: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    labels: str = "targets"

    def read(self, root: Path, *, download: bool) -> LabeledArrays:
        splits = [self.create(root, train=train, download=download) for train in (True, False)]
        images = [np.asarray(split.data).transpose(self.axes) for split in splits]
        labels = [np.asarray(getattr(split, self.labels), dtype=np.int64) for split in splits]
        for x in images:
            if x.shape[1:] != self.shape:
                raise ValueError(f"images must be {self.shape}, got {x.shape[1:]}")
        return LabeledArrays(
            images[0],
            labels[0],
            images[1],
            labels[1],
            self.num_classes,
            class_names=getattr(splits[0], "classes", None) and tuple(splits[0].classes),
        )


_DATASETS = {
    "mnist": _Dataset(MNIST, "the four files of MNIST in MNIST/raw", 10, GRAY, (0, 1, 2)),
    "fmnist": _Dataset(
        FashionMNIST, "the four files of Fashion-MNIST in FashionMNIST/raw", 10, GRAY, (0, 1, 2)
    ),
    "emnist": _Dataset(
        partial(EMNIST, split="balanced"),
        "the four files of EMNIST Balanced in EMNIST/raw",
        47,
        GRAY,
        (0, 2, 1),
    ),
    "cifar10": _Dataset(
        CIFAR10, "the seven files of CIFAR-10 in cifar-10-batches-py", 10, COLOR, (0, 1, 2, 3)
    ),
    "cifar100": _Dataset(
        CIFAR100, "the three files of CIFAR-100 in cifar-100-python", 100, COLOR, (0, 1, 2, 3)
    ),
    "svhn": _Dataset(
        _load_svhn,
        "train_32x32.mat and test_32x32.mat of SVHN",
        10,
        COLOR,
        (0, 2, 3, 1),
        labels="labels",
    ),
}


def format_download_error(error: Exception) -> str:
    """Return torchvision's error for missing files, naming our setting instead of its keyword."""
    hint = ": type data.download=true to download it"
    return to_one_line(error).replace(". You can use download=True to download it", hint)


def load_torchvision_arrays(settings: TorchvisionSettings) -> LabeledArrays:
    """Return all images, upright, uint8: gray (n, 28, 28) or in color (n, 32, 32, 3).

    ``mnist``: MNIST, 10 digits, 60,000 and 10,000 gray images. ``fmnist``: Fashion-MNIST, 10
    kinds of clothing, 60,000 and 10,000 gray images. ``emnist``: EMNIST Balanced, 47 digits and
    letters, 112,800 and 18,800 gray images. ``cifar10`` and ``cifar100``: 10 and 100 kinds of
    things, 50,000 and 10,000 color images each. ``svhn``: Street View House Numbers, 10 digits,
    73,257 and 26,032 color images, without the extra ones.

    ``data.root`` is torchvision's root. Missing files are downloaded, unless ``data.download`` is
    false.

    Raises
    ------
    DataError
        If the files are missing and cannot be downloaded.
    """
    dataset = _DATASETS[settings.name]
    root = Path(settings.root).expanduser().resolve()
    try:
        return dataset.read(root, download=False)
    except Exception as error:  # torchvision raises any exception for a damaged file
        if not settings.download:
            raise DataError(
                f"data.root must be a folder with {dataset.files} (data.download is false), "
                f"got {root}: {format_download_error(error)}"
            ) from None
    try:
        return dataset.read(root, download=True)
    except Exception as error:
        raise DataError(
            f"data.root must be a folder with {dataset.files}, or they must be downloadable to it, "
            f"got {root}: {to_one_line(error)}"
        ) from None
