"""Code images: their size, their channels and their normalization."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from fedquorum.errors import DataError

from client_app.data.base import PixelNormalization
from client_app.data.coding.arrays import (
    ArrayCoding,
    normalization_from_json,
    normalization_to_json,
    to_normalized,
)
from client_app.data.coding.base import Coding, EncodedRows

CHANNELS = {"L": (), "RGB": (3,)}
"""The last axis of a gray image and of one in color, by Pillow's modes."""


@dataclass(frozen=True)
class ImageCoding(Coding):
    """Images of one size, gray (``L``) or in color (``RGB``), perhaps normalized.

    ``encode`` takes the path of an image or of a folder of images, a list of paths, or an array
    uint8 (n, height, width) or (n, height, width, 3).

    Parameters
    ----------
    size : tuple of int
        Height and width.
    mode : str
        ``L`` or ``RGB``.
    fit : str
        ``stretch`` scales other images to the size, ``exact`` refuses them.
    normalization : PixelNormalization, optional
        The normalization of the training images.
    """

    kind: ClassVar[str] = "image"
    size: tuple[int, int]
    mode: str
    fit: str = "exact"
    normalization: PixelNormalization | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        return {
            "kind": self.kind,
            "height": self.size[0],
            "width": self.size[1],
            "mode": self.mode,
            "channels": 3 if CHANNELS[self.mode] else 1,
            "fit": self.fit,
            "divisor": 255,
            "normalization": normalization_to_json(self.normalization),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card."""
        if given["mode"] not in CHANNELS or given["fit"] not in {"exact", "stretch"}:
            raise ValueError("mode must be L or RGB, and fit exact or stretch")
        size = int(given["height"]), int(given["width"])
        return cls(
            size,
            str(given["mode"]),
            str(given["fit"]),
            normalization_from_json(given["normalization"]),
        )

    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Return images as inputs."""
        paths = list_images(rows)
        labels: Sequence[Any]
        if paths is None:
            samples = ArrayCoding((*self.size, *CHANNELS[self.mode]), "uint8").read(rows)
            labels = range(len(samples))
        else:
            # Pillow is not among what a node imports before its first message.
            from client_app.data.coding.media import ImageFiles

            samples = ImageFiles(paths, self.size, fit=self.fit, mode=self.mode, setting="rows")[:]
            labels = [str(path) for path in paths]
        return EncodedRows(to_normalized(samples, self.normalization), labels)


def list_images(rows: Any) -> list[Path] | None:
    """Return the paths of images that ``rows`` names, or None if it holds no paths.

    Raises
    ------
    DataError
        If a folder has no images.
    """
    if isinstance(rows, str | Path):
        path = Path(rows).expanduser()
        if not path.is_dir():
            return [path]
        from torchvision.datasets.folder import IMG_EXTENSIONS

        found = sorted(
            p
            for p in path.iterdir()
            if p.suffix.lower() in IMG_EXTENSIONS and not p.name.startswith(".")
        )
        if not found:
            raise DataError(f"rows must be a folder with images, got {path}, which has none")
        return found
    if isinstance(rows, np.ndarray) and rows.dtype.kind not in "OU":
        return None
    listed = list(rows)
    if listed and all(isinstance(row, str | Path) for row in listed):
        return [Path(row).expanduser() for row in listed]
    return None
