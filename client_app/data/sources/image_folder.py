"""Read a user's images from folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedquorum.errors import DataError, to_one_line

from client_app.data.base import Labels
from client_app.data.coding.images import ImageCoding
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.sources.media import ImageFiles, read_image_size
from conf.schema.data import ImageFolderSettings

SPLIT_FOLDERS = ("train", "test")


def load_image_folder_arrays(settings: ImageFolderSettings) -> LabeledArrays:
    """Return the images of ``data.path``, uint8 (n, height, width, 3), read on demand.

    Images are ``client/class/name.png`` with ``data.partition=natural`` and ``class/name.png``
    otherwise, of any file type that torchvision reads. If the folder has only the folders ``train``
    and ``test``, these are the training and the test set, with such paths in each; otherwise there
    is no test set. Clients and classes are the names of folders, ascending; the classes are those
    of all clients, or ``data.classes``. Names that begin with a dot, and files that are not images,
    are ignored; an image beside folders is refused.

    Raises
    ------
    DataError
        If the folder is missing, or has another structure.
    """
    path = Path(settings.path).expanduser().resolve()
    natural = settings.partition == "natural"
    wanted = "client/class/image" if natural else "class/image"
    try:
        return _read(path, settings, natural=natural)
    except (OSError, ValueError) as error:
        raise DataError(
            f"data.path must be a folder with images as {wanted}, or train/{wanted} and "
            f"test/{wanted}, got {path}: {to_one_line(error)}"
        ) from None


@dataclass(frozen=True)
class _Split:
    paths: list[Path]
    classes: list[str]
    clients: list[str]


def _read(path: Path, settings: ImageFolderSettings, *, natural: bool) -> LabeledArrays:
    if not path.is_dir():
        raise ValueError("there is no such folder")
    has_splits = [folder.name for folder in _list_folders(path)] == sorted(SPLIT_FOLDERS)
    splits = [
        _read_split(path / split if has_splits else path, natural=natural)
        for split in SPLIT_FOLDERS[: 1 + has_splits]
    ]
    classes = settings.classes or sorted({name for split in splits for name in split.classes})
    foreign = sorted({name for split in splits for name in split.classes} - set(classes))
    if foreign:
        raise ValueError(f"data.classes has no {foreign[0]}, but there is a folder of it")
    height, width = settings.image_size or read_image_size(splits[0].paths[0])
    fit = "exact" if settings.image_size is None else "stretch"
    names = sorted({name for split in splits for name in split.clients})
    samples = [ImageFiles(split.paths, (height, width), fit=fit) for split in splits]
    labels = [find_name_indices(split.classes, classes) for split in splits]
    clients = [find_name_indices(split.clients, names) if natural else None for split in splits]
    coding = ImageCoding((int(height), int(width)), "RGB", fit)
    if not has_splits:
        return build_pooled_arrays(
            samples[0],
            labels[0],
            len(classes),
            client_train=clients[0],
            client_names=tuple(names),
            class_names=tuple(classes),
            coding=coding,
        )
    return LabeledArrays(
        samples[0],
        labels[0],
        samples[1],
        labels[1],
        len(classes),
        client_train=clients[0],
        client_test=clients[1],
        client_names=tuple(names),
        class_names=tuple(classes),
        coding=coding,
    )


def _read_split(folder: Path, *, natural: bool) -> _Split:
    split = _Split([], [], [])
    for client in _list_folders(folder) if natural else [folder]:
        paths, classes = list_images_by_class(client)
        split.paths.extend(paths)
        split.classes.extend(classes)
        split.clients.extend([client.name] * len(paths))
    if not split.paths:
        raise ValueError(f"{folder} has no folders")
    _check_no_images(folder)
    return split


def list_images_by_class(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the images ``class/name.png`` of a folder, ascending, and the class of each.

    Raises
    ------
    ValueError
        If it has no folders of images, or images or folders elsewhere.
    """
    paths: list[Path] = []
    classes: list[str] = []
    for class_folder in _list_folders(folder):
        images, inner = _list_images(class_folder), _list_folders(class_folder)
        if inner or not images:
            kind = f"has the folder {inner[0].name}" if inner else "has no images"
            raise ValueError(f"{class_folder} {kind}")
        paths.extend(images)
        classes.extend([class_folder.name] * len(images))
    if not paths:
        raise ValueError(f"{folder} has no folders of classes")
    _check_no_images(folder)
    return paths, classes


def _check_no_images(folder: Path) -> None:
    for path in _list_images(folder):
        raise ValueError(f"{path} is in no folder of a class")


def _list_images(folder: Path) -> list[Path]:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return sorted(p for p in folder.iterdir() if p.suffix.lower() in IMG_EXTENSIONS)


def _list_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def find_name_indices(values: Sequence[str], names: Sequence[str]) -> Labels:
    """Return the index in ``names`` of each value, int64 (n,)."""
    position = {name: i for i, name in enumerate(names)}
    return np.array([position[value] for value in values], dtype=np.int64)
