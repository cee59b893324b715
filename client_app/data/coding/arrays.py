"""Code rows that are arrays already."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from fedquorum.errors import DataError, to_one_line
from numpy.typing import NDArray

from client_app.data.base import PixelNormalization, to_inputs
from client_app.data.coding.base import Coding, EncodedRows

ARRAY_TYPES = ("float32", "uint8", "int16", "int32")
"""The types of samples: numbers, images, sound and tokens."""


@dataclass(frozen=True)
class ArrayCoding(Coding):
    """Arrays as in training: numbers float32, images uint8, sound int16, tokens int32.

    ``encode`` takes an array (n, *shape), a single row (*shape), lists of numbers, or the path of
    an .npy file.

    Parameters
    ----------
    shape : tuple of int
        The shape of one sample, before it becomes an input.
    dtype : str
        The type of the samples.
    num_tokens : int, optional
        The size of the vocabulary if the samples are tokens.
    normalization : PixelNormalization, optional
        The normalization of the training images.
    """

    kind: ClassVar[str] = "array"
    shape: tuple[int, ...]
    dtype: str
    num_tokens: int | None = None
    normalization: PixelNormalization | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "type": self.dtype,
            "tokens": self.num_tokens,
            "normalization": normalization_to_json(self.normalization),
        }

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card."""
        dtype, tokens = given["type"], given["tokens"]
        if dtype not in ARRAY_TYPES:
            raise ValueError(f"type must be one of {', '.join(ARRAY_TYPES)}")
        return cls(
            tuple(map(int, given["shape"])),
            str(dtype),
            None if tokens is None else int(tokens),
            normalization_from_json(given["normalization"]),
        )

    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Return arrays as inputs."""
        samples = self.read(rows)
        return EncodedRows(to_normalized(samples, self.normalization), range(len(samples)))

    def read(self, rows: Any) -> NDArray[Any]:
        """Return arrays as samples (n, *shape) of the type in training."""
        wanted = f"{self.dtype} (n, {', '.join(map(str, self.shape))})"
        try:
            given = np.load(rows, allow_pickle=False) if isinstance(rows, str | Path) else rows
            array = np.asarray(given)
        except Exception as error:  # a file may raise anything, and lists may be ragged
            raise DataError(
                f"the rows must be arrays {wanted}, got none: {to_one_line(error)}"
            ) from None
        if array.shape == self.shape:
            array = array[None]
        if array.shape[1:] != self.shape or array.dtype.kind not in "fiub" or not array.ndim:
            raise DataError(f"the rows must be arrays {wanted}, got {array.dtype} {array.shape}")
        with np.errstate(all="ignore"):
            samples = array.astype(self.dtype)
        if self.dtype == "float32":
            _refuse_rows(~np.isfinite(samples), array, "finite in float32")
        else:
            _refuse_rows(samples != array, array, f"of type {self.dtype}, as in training")
        if self.num_tokens is not None:
            wrong = (samples < 0) | (samples >= self.num_tokens)
            _refuse_rows(wrong, array, f"tokens from 0 to {self.num_tokens - 1}")
        return samples


@dataclass(frozen=True)
class DeviceCoding(Coding):
    """A coding that only the clients' devices know: their files decide how rows become inputs.

    Parameters
    ----------
    shape : tuple of int
        The shape of an input.
    """

    kind: ClassVar[str] = "device"
    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the coding as JSON values."""
        return {"kind": self.kind, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Self:
        """Return the coding in a model card."""
        return cls(tuple(map(int, given["shape"])))

    def encode(self, rows: Any, client: int | str | None = None) -> EncodedRows:
        """Refuse rows: nobody here knows how they become inputs.

        Raises
        ------
        DataError
            Always.
        """
        raise DataError(
            "the devices alone know how rows become inputs: predict on a device, with its data as "
            "data=FILE (fedquorum predict DIR ROWS --client ID --data FILE)"
        )


def to_normalized(samples: NDArray[Any], normalization: PixelNormalization | None) -> NDArray[Any]:
    """Return samples as inputs, normalized as the training images were."""
    inputs = to_inputs(np.ascontiguousarray(samples))
    if normalization is None:
        return inputs
    normalized: NDArray[Any] = normalization.normalize(torch.from_numpy(inputs)).numpy()
    return normalized


def normalization_to_json(scale: PixelNormalization | None) -> dict[str, Any] | None:
    """Return a normalization as JSON values."""
    return None if scale is None else {"mean": list(scale.mean), "deviation": list(scale.std)}


def normalization_from_json(given: Mapping[str, Any] | None) -> PixelNormalization | None:
    """Return a normalization in a model card; see ``Coding.from_json``."""
    if given is None:
        return None
    return PixelNormalization(
        tuple(map(float, given["mean"])), tuple(map(float, given["deviation"]))
    )


def _refuse_rows(wrong: NDArray[np.bool_], array: NDArray[Any], wanted: str) -> None:
    """Raise DataError for the first number that is wrong."""
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise DataError(f"all numbers must be {wanted}, got {array[index]} in row {index[0] + 1}")
