"""Image data sets by torchvision."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torchvision.datasets import CIFAR10, EMNIST, FashionMNIST

from client_app.data.base import one_line
from client_app.data.sources.base import LabelledArrays
from conf.errors import DataError
from conf.schema import TorchvisionSettings


@dataclass(frozen=True)
class _Dataset:
    """A class of torchvision, with ``train`` and ``download``, and what it reads below its root."""

    create: Callable[..., Any]
    files: str
    num_classes: int
    transposed: bool = False

    def read(self, root: Path, *, download: bool) -> LabelledArrays:
        parts = [self.create(root, train=train, download=download) for train in (True, False)]
        images = [np.asarray(part.data) for part in parts]
        if self.transposed:
            images = [x.swapaxes(1, 2) for x in images]
        labels = [np.asarray(part.targets, dtype=np.int64) for part in parts]
        return LabelledArrays(images[0], labels[0], images[1], labels[1], self.num_classes)


_DATASETS = {
    "fmnist": _Dataset(FashionMNIST, "the four files of Fashion-MNIST in FashionMNIST/raw", 10),
    "emnist": _Dataset(
        partial(EMNIST, split="balanced"),
        "the four files of EMNIST Balanced in EMNIST/raw",
        47,
        transposed=True,
    ),
    "cifar10": _Dataset(CIFAR10, "the seven files of CIFAR-10 in cifar-10-batches-py", 10),
}


def torchvision_arrays(settings: TorchvisionSettings) -> LabelledArrays:
    """Return all images, upright, uint8: grey (n, 28, 28) or in colour (n, 32, 32, 3).

    ``fmnist``: Fashion-MNIST, 10 kinds of clothing, 60,000 and 10,000 grey images. ``emnist``:
    EMNIST Balanced, 47 digits and letters, 112,800 and 18,800 grey images. ``cifar10``:
    CIFAR-10, 10 kinds of things, 50,000 and 10,000 colour images.

    ``data.root`` is torchvision's root. Where the files are missing there they are downloaded,
    unless ``data.download`` is false.

    Raises
    ------
    DataError
        If the files are neither there nor to be had.
    """
    dataset = _DATASETS[settings.name]
    root = Path(settings.root).expanduser().resolve()
    try:
        return dataset.read(root, download=False)
    except Exception as error:  # for a damaged file torchvision raises what it pleases
        if not settings.download:
            raise DataError(
                f"data.root must be a folder with {dataset.files} (data.download is false), "
                f"got {root}: {one_line(error)}"
            ) from None
    try:
        return dataset.read(root, download=True)
    except Exception as error:
        raise DataError(
            f"data.root must be a folder with {dataset.files}, or they must be downloadable to it, "
            f"got {root}: {one_line(error)}"
        ) from None
