"""Read a user's images from folders."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import DataError, to_one_line

from client_app.data.base import Labels
from client_app.data.coding.images import ImageCoding
from client_app.data.coding.media import ImageFiles, read_image_size
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.sources.prepared import is_hidden
from conf.schema.data import ImageFolderSettings

SPLIT_FOLDERS = ("train", "test")


def load_image_folder_arrays(settings: ImageFolderSettings) -> LabeledArrays:
    """Return the images of ``data.path``, uint8 (n, height, width, 3), read on demand.

    Images are ``client/class/name.png`` with ``data.partition=natural`` and ``class/name.png``
    otherwise, of any file type that torchvision reads. If the folder has only the folders ``train``
    and ``test``, these are the training and the test set, with such paths in each; otherwise there
    is no test set. Clients and classes are the names of folders, ascending; the classes are those
    of all clients, or ``data.classes``. Hidden files and folders are ignored, files of other
    types are passed over and counted, and an image beside folders is refused.

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
    """The images of one split, the class and the client of each, and the files passed over."""

    paths: list[Path] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Content:
    """The images and folders directly in a folder, ascending, and its other files by ending."""

    images: list[Path]
    folders: list[Path]
    others: Counter[str]


def _read(path: Path, settings: ImageFolderSettings, *, natural: bool) -> LabeledArrays:
    if not path.is_dir():
        raise ValueError("there is no such folder")
    content = _list_content(path)
    has_splits = [folder.name for folder in content.folders] == sorted(SPLIT_FOLDERS)
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
    passed_over = sum(
        (split.passed_over for split in splits), content.others if has_splits else Counter()
    )
    others: dict[str, Any] = {
        "client_train": clients[0],
        "client_names": tuple(names),
        "class_names": tuple(classes),
        "files_passed_over": dict(_sort_counts(passed_over)),
        "coding": ImageCoding((int(height), int(width)), "RGB", fit),
    }
    if not has_splits:
        return build_pooled_arrays(samples[0], labels[0], len(classes), **others)
    return LabeledArrays(
        samples[0],
        labels[0],
        samples[1],
        labels[1],
        len(classes),
        client_test=clients[1],
        **others,
    )


def _read_split(folder: Path, *, natural: bool) -> _Split:
    split, content = _Split(), _list_content(folder)
    for client in content.folders if natural else [folder]:
        _add_client(split, client)
    if not split.paths:
        raise ValueError(f"{folder} has no folders")
    _check_no_images(content)
    if natural:
        split.passed_over.update(content.others)
    return split


def _add_client(split: _Split, folder: Path) -> None:
    """Add the images ``class/name.png`` of a folder, with the class of each.

    Raises
    ------
    ValueError
        If it has no folders of images, or images or folders elsewhere.
    """
    content = _list_content(folder)
    split.passed_over.update(content.others)
    for class_folder in content.folders:
        inner = _list_content(class_folder)
        if inner.folders:
            raise ValueError(f"{class_folder} has the folder {inner.folders[0].name}")
        if not inner.images:
            raise ValueError(f"{class_folder} has no images{_describe_others(inner.others)}")
        split.paths.extend(inner.images)
        split.classes.extend([class_folder.name] * len(inner.images))
        split.clients.extend([folder.name] * len(inner.images))
        split.passed_over.update(inner.others)
    if not content.folders:
        raise ValueError(f"{folder} has no folders of classes")
    _check_no_images(content)


def _sort_counts(others: Counter[str]) -> list[tuple[str, int]]:
    """Return the endings of files with their numbers, the most frequent first."""
    return sorted(others.items(), key=lambda item: (-item[1], item[0]))


def _describe_others(others: Counter[str]) -> str:
    """Return the files that are no images in words, "" for none."""
    counts = ", ".join(f"{count} {ending}" for ending, count in _sort_counts(others)[:3])
    return f" but {counts}" if counts else ""


def _check_no_images(content: _Content) -> None:
    for path in content.images:
        raise ValueError(f"{path} is in no folder of a class")


def _list_content(folder: Path) -> _Content:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    content = _Content([], [], Counter())
    for path in sorted(folder.iterdir()):
        ending = path.suffix.lower()
        if is_hidden(path):
            continue
        if ending in IMG_EXTENSIONS:
            content.images.append(path)
        elif path.is_dir():
            content.folders.append(path)
        else:
            content.others[ending or "without an ending"] += 1
    return content


def find_name_indices(values: Sequence[str], names: Sequence[str]) -> Labels:
    """Return the index in ``names`` of each value, int64 (n,)."""
    position = {name: i for i, name in enumerate(names)}
    return np.array([position[value] for value in values], dtype=np.int64)
