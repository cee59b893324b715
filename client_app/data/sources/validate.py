"""Check a user's arrays against the requirements of inputs and targets."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.data.base import Labels, Samples, Targets

IMAGE_KINDS = "uint8 images (n, height, width) or (n, height, width, channels)"
INPUT_KINDS = f"{IMAGE_KINDS}, int16 sound (n, length) or floats (n, ...)"
SOUND_AXES = ("n", "length")
CHUNK_BYTES = 2**22  # checked at once, so that memory holds no second copy of a mapped array


def validate_inputs(key: str, x: NDArray[Any]) -> Samples:
    """Return inputs unchanged, except floats, which become float32.

    Raises
    ------
    ValueError
        If they are not images, sound or finite floats; the message begins with ``key``.
    """
    if x.dtype == np.uint8 and x.ndim in {3, 4}:
        return x
    if x.dtype == np.int16 and x.ndim == len(SOUND_AXES):
        return x
    if not np.issubdtype(x.dtype, np.floating) or x.ndim in {0, 1}:
        raise ValueError(f"{key} must be {INPUT_KINDS}, got {x.dtype} {x.shape}")
    with np.errstate(over="ignore"):  # overflow is refused below
        inputs = np.ascontiguousarray(x, dtype=np.float32)
    rows = max(1, CHUNK_BYTES // max(1, inputs[:1].nbytes))
    for start in range(0, len(inputs), rows):
        if not np.isfinite(inputs[start : start + rows]).all():
            raise ValueError(f"{key} must be finite in float32, got NaN, Inf or a larger number")
    return inputs


def validate_numbers(key: str, y: NDArray[Any]) -> Targets:
    """Return numeric targets, float64 (n,); raise ValueError for any others."""
    kinds = np.issubdtype(y.dtype, np.floating) or np.issubdtype(y.dtype, np.integer)
    if not kinds or y.ndim != 1:
        raise ValueError(f"{key} must be numbers (n,), got {y.dtype} {y.shape}")
    targets = y.astype(np.float64)
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(targets.astype(np.float32))
    if not is_finite.all():
        raise ValueError(f"{key} must be finite in float32, got NaN, Inf or a larger number")
    return targets


def validate_labels(key: str, y: NDArray[Any]) -> Labels:
    """Return classes, int64 (n,); raise ValueError for others than whole numbers >= 0."""
    labels = validate_integers(key, y)
    if labels.min(initial=0) < 0:
        raise ValueError(f"{key} must be whole numbers >= 0, got {labels.min()}")
    return labels


def validate_integers(key: str, numbers: NDArray[Any]) -> Labels:
    """Return whole numbers, int64 (n,); raise ValueError for any others."""
    if not np.issubdtype(numbers.dtype, np.integer) or numbers.ndim != 1:
        raise ValueError(f"{key} must be whole numbers (n,), got {numbers.dtype} {numbers.shape}")
    return numbers.astype(np.int64)
