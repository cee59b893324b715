"""What the scripts beside it share: the command line, and files that are larger than memory."""

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
        Of the whole array, (n, ...).
    dtype : str
        Such as ``uint8``.
    rows : iterable of array
        The n rows.
    """

    shape: tuple[int, ...]
    dtype: str
    rows: Iterable[NDArray[Any]]


def command_line(description: str | None, folder: str, output: str) -> argparse.ArgumentParser:
    """Return a parser of ``FOLDER [--output FILE]``; the file is by default in the data folder."""
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
    """Add ``--size HEIGHT WIDTH``."""
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
    """Write a file that exists only when it is whole; leave with one line if it cannot be.

    Parameters
    ----------
    options : Namespace
        What ``command_line`` parsed.
    wanted : str
        What the folder must have, and where to get it.
    write : callable
        Given the options, writes the file of the path and returns what is in it.
    """
    output: Path = options.output
    if output.exists():
        sys.exit(f"--output must be a new file, got {output}, which exists")
    part = output.with_name(f".{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        content = write(options, part)
        part.replace(output)
    except Exception as error:  # for a damaged file a library raises what it pleases
        reason = " ".join(str(error).split())
        sys.exit(f"FOLDER must be a folder with {wanted}, got {options.folder}: {reason}")
    finally:
        part.unlink(missing_ok=True)
    print(f"{output}: {content}")


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any] | Rows]) -> None:
    """Write what ``numpy.savez`` writes, one row of a large array after the other."""
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


def images(
    paths: Sequence[Path], size: Size, fit: Callable[[Image.Image, Size], Image.Image]
) -> Rows:
    """Return images in color, uint8 (n, height, width, 3).

    Parameters
    ----------
    paths : sequence of Path
        Their files.
    size : tuple of int
        Height and width.
    fit : callable
        Given an image and the width and height, returns an image of that size.
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
