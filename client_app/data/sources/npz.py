"""A data set of the user's own, in one NumPy file."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.data.base import Labels, Samples, one_line
from client_app.data.sources.base import LabelledArrays
from conf.errors import DataError
from conf.schema import NpzSettings

KEYS = ("x_train", "y_train", "x_test", "y_test")
IMAGES = "uint8 images (n, height, width) or (n, height, width, channels)"
KINDS = f"{IMAGES}, int16 sound (n, length) or floats (n, ...)"
SOUND_AXES = ("n", "length")


def npz_arrays(settings: NpzSettings) -> LabelledArrays:
    """Return the arrays of ``data.path``, with 1 + the highest label as the number of classes.

    The file has ``x_train``, ``y_train``, ``x_test`` and ``y_test``; others are not read.
    Inputs are uint8 images (n, height, width) or (n, height, width, channels), int16 sound
    (n, length), or floats (n, ...), which are kept as they are, in float32. Labels are whole
    numbers (n,) from 0.

    With ``data.partition`` natural the file also has ``client_train``, and perhaps
    ``client_test``, whole numbers (n,): whose each row is.

    Raises
    ------
    DataError
        If there is no such file, or its arrays are not like that.
    """
    path = Path(settings.path).expanduser().resolve()
    natural = settings.partition == "natural"
    wanted = (*KEYS, "client_train") if natural else KEYS
    try:
        return _read(path, wanted)
    except Exception as error:  # for a damaged file NumPy raises what it pleases
        raise DataError(
            f"data.path must be an .npz file with {', '.join(wanted)}, got {path}: "
            f"{one_line(error)}"
        ) from None


def _read(path: Path, wanted: Sequence[str]) -> LabelledArrays:
    if not path.is_file():
        raise ValueError("there is no such file")
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz file")
    with np.load(path, allow_pickle=False) as archive:
        missing = [key for key in wanted if key not in archive.files]
        if missing:
            raise ValueError(
                f"it lacks {', '.join(missing)} and has {', '.join(archive.files) or 'none'}"
            )
        x_train, y_train, x_test, y_test = (np.asarray(archive[key]) for key in KEYS)
        clients: dict[str, Any] = {
            key: _whole_numbers(key, np.asarray(archive[key]))
            for key in ("client_train", "client_test")
            if "client_train" in wanted and key in archive.files
        }
    labels = _labels("y_train", y_train), _labels("y_test", y_test)
    num_classes = 1 + max(int(y.max(initial=0)) for y in labels)
    samples = _samples("x_train", x_train), _samples("x_test", x_test)
    return LabelledArrays(samples[0], labels[0], samples[1], labels[1], num_classes, **clients)


def _samples(key: str, x: NDArray[Any]) -> Samples:
    if x.dtype == np.uint8 and x.ndim in {3, 4}:
        return x
    if x.dtype == np.int16 and x.ndim == len(SOUND_AXES):
        return x
    if not np.issubdtype(x.dtype, np.floating) or x.ndim in {0, 1}:
        raise ValueError(f"{key} must be {KINDS}, got {x.dtype} {x.shape}")
    with np.errstate(over="ignore"):  # what overflows is refused below
        inputs = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(inputs).all():
        raise ValueError(f"{key} must be finite in float32, got NaN, Inf or a larger number")
    return inputs


def _labels(key: str, y: NDArray[Any]) -> Labels:
    labels = _whole_numbers(key, y)
    if labels.min(initial=0) < 0:
        raise ValueError(f"{key} must be whole numbers >= 0, got {labels.min()}")
    return labels


def _whole_numbers(key: str, numbers: NDArray[Any]) -> Labels:
    if not np.issubdtype(numbers.dtype, np.integer) or numbers.ndim != 1:
        raise ValueError(f"{key} must be whole numbers (n,), got {numbers.dtype} {numbers.shape}")
    return numbers.astype(np.int64)
