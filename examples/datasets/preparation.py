"""Share the command line, and the writing of large files, between the scripts of this folder."""

import argparse
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Size = tuple[int, int]


@dataclass(frozen=True)
class Rows:
    """An array that is read row by row while it is written.

    Attributes
    ----------
    shape : tuple of int
        The shape of the whole array, (n, ...).
    dtype : str
        For example ``uint8``.
    rows : iterable of array
        The n rows.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: Iterable[NDArray[Any]]


def build_parser(description: str | None, folder: str, output: str) -> argparse.ArgumentParser:
    """Return a parser of ``FOLDER [--output FILE]``; the default file is in the data folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=folder)
    default = Path(os.environ.get("FEDQUORUM_DATA", "data")) / output
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        default=default,
        help="a new file, by default %(default)s",
    )
    return parser


def add_size(parser: argparse.ArgumentParser, size: Size) -> None:
    """Add ``--size HEIGHT WIDTH`` to a parser."""
    parser.add_argument(
        "--size",
        type=int,
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        default=size,
        help="of the images written, by default %(default)s",
    )


def prepare(
    options: argparse.Namespace, wanted: str, write: Callable[[argparse.Namespace, Path], str]
) -> None:
    """Write a file atomically; exit with a one-line error if that fails.

    Parameters
    ----------
    options : Namespace
        The parsed options of ``build_parser``.
    wanted : str
        The required content of the folder, and its source.
    write : callable
        Takes the options and a path, writes the file, and returns a description of its content.
    """
    output: Path = options.output
    if output.exists():
        sys.exit(f"--output must be a new file, got {output}, which exists")
    partial = output.with_name(f".{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        content = write(options, partial)
        partial.replace(output)
    except Exception as error:  # libraries raise any exception for a damaged file
        reason = " ".join(str(error).split())
        sys.exit(f"FOLDER must be a folder with {wanted}, got {options.folder}: {reason}")
    finally:
        partial.unlink(missing_ok=True)
    print(f"{output}: {content}")


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any] | Rows]) -> None:
    """Write a file as ``numpy.savez`` does, large arrays row by row."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                if not isinstance(array, Rows):
                    np.lib.format.write_array(file, array, version=(1, 0))
                    continue
                header = {"descr": np.dtype(array.dtype).str, "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, header | {"shape": array.shape})
                for row in array.rows:
                    file.write(np.ascontiguousarray(row, dtype=array.dtype).tobytes())


def read_images(
    paths: Sequence[Path], size: Size, fit: Callable[[Image.Image, Size], Image.Image]
) -> Rows:
    """Return images in color, uint8 (n, height, width, 3), read on demand.

    Parameters
    ----------
    paths : sequence of Path
        The image files.
    size : tuple of int
        Height and width.
    fit : callable
        Takes an image and (width, height), and returns an image of that size.
    """
    height, width = size

    def read(path: Path) -> NDArray[np.uint8]:
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except Exception as error:
            raise ValueError(f"{path} is no image: {error}") from None
        fitted = image if image.size == (width, height) else fit(image, (width, height))
        if fitted.size != (width, height):
            raise ValueError(
                f"{path} must be {height} x {width}, got {image.height} x {image.width}"
            )
        return np.asarray(fitted)

    return Rows((len(paths), height, width, 3), "uint8", map(read, paths))
