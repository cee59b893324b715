"""Read a user's data set from one NumPy file."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fedquorum.errors import DataError, to_one_line
from fedquorum.sanitize import abbreviate
from numpy.typing import NDArray

from client_app.data.sources.base import LabeledArrays, count_classes
from client_app.data.sources.prepared import describe_missing_file
from client_app.data.sources.validate import (
    CHUNK_BYTES,
    validate_inputs,
    validate_integers,
    validate_labels,
    validate_numbers,
)
from conf.schema.data import NpzSettings

NPZ_KEYS = ("x_train", "y_train")
NPZ_TEST_KEYS = ("x_test", "y_test")
LOCAL_HEADER_BYTES = 30
"""Size of a zip member's header before its name; it ends with the lengths of name and extras."""


def load_npz_arrays(settings: NpzSettings) -> LabeledArrays:
    """Return the arrays of ``data.path``.

    Inputs of a file that ``numpy.savez`` wrote are mapped: they are read when a client needs them,
    without a second copy in memory. Those of ``numpy.savez_compressed`` are read immediately, and
    floats of another size than float32 are converted immediately. Checksums are verified first.

    The file has ``x_train``, ``y_train`` and optionally ``x_test`` and ``y_test``; other arrays are
    ignored. Inputs are uint8 images (n, height, width) or (n, height, width, channels), int16 sound
    (n, length), or floats (n, ...), which become float32. Labels are whole numbers (n,) from 0 to
    ``data.num_classes`` - 1, without gaps if that is null; with ``data.regression`` they are finite
    numbers (n,).

    Without ``x_test`` and ``y_test`` test rows are taken from the training rows.

    With ``data.partition=natural`` the file also has ``client_train``, and optionally
    ``client_test``: the client of each row, whole numbers (n,). With ``auto`` it may have them.

    Raises
    ------
    DataError
        If the file is missing, or its arrays have another form.
    """
    path = Path(settings.path).expanduser().resolve()
    natural = settings.partition == "natural"
    required = (*NPZ_KEYS, "client_train") if natural else NPZ_KEYS
    try:
        return _read(path, required, settings)
    except Exception as error:  # NumPy raises any exception for a damaged file
        raise DataError(
            f"data.path must be an .npz file with {', '.join(required)}, perhaps x_test and "
            f"y_test, got {path}: {to_one_line(error)}"
        ) from None


def _read(path: Path, required: Sequence[str], settings: NpzSettings) -> LabeledArrays:
    if not path.is_file():
        raise ValueError(describe_missing_file(path))
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz file")
    with np.load(path, allow_pickle=False) as archive:
        pooled = not any(key in archive.files for key in NPZ_TEST_KEYS)
        missing = [
            key
            for key in (*required, *(() if pooled else NPZ_TEST_KEYS))
            if key not in archive.files
        ]
        if missing:
            raise ValueError(
                f"it lacks {', '.join(missing)} and has {abbreviate(archive.files) or 'none'}"
            )
        splits = ("train",) if pooled else ("train", "test")
        y = [np.asarray(archive[f"y_{split}"]) for split in splits]
        x = [_map_array(path, archive, f"x_{split}") for split in splits]
        clients: dict[str, Any] = {
            key: validate_integers(key, np.asarray(archive[key]))
            for key in (f"client_{split}" for split in splits)
            if settings.partition in {"natural", "auto"} and key in archive.files
        }
    validate = validate_numbers if settings.regression else validate_labels
    labels = [validate(f"y_{split}", array) for split, array in zip(splits, y, strict=True)]
    num_classes = 1 if settings.regression else count_classes(settings.num_classes, *labels)
    samples = [validate_inputs(f"x_{split}", array) for split, array in zip(splits, x, strict=True)]
    return LabeledArrays(
        samples[0], labels[0], samples[-1], labels[-1], num_classes, pooled=pooled, **clients
    )


def _map_array(path: Path, archive: Any, key: str) -> NDArray[Any]:
    """Return an array of an archive, memory-mapped if it is stored uncompressed."""
    if f"{key}.npy" not in archive.zip.namelist():
        return np.asarray(archive[key])
    member = archive.zip.getinfo(f"{key}.npy")
    if member.compress_type != zipfile.ZIP_STORED:
        return np.asarray(archive[key])
    with path.open("rb") as file:
        file.seek(member.header_offset)
        lengths = file.read(LOCAL_HEADER_BYTES)[-4:]
        start = file.tell() + sum(int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2))
        file.seek(start)
        crc, remaining = 0, member.file_size
        while remaining:
            content = file.read(min(remaining, CHUNK_BYTES))
            if not content:
                raise ValueError(f"{key} is cut short")
            crc, remaining = zlib.crc32(content, crc), remaining - len(content)
        if crc != member.CRC:
            raise ValueError(f"Bad CRC-32 for file {member.filename!r}")
        file.seek(start)
        if file.read(6) != b"\x93NUMPY" or file.read(2)[0] != 1:
            return np.asarray(archive[key])  # no array, or a rare format version
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject or not np.prod(shape):
            return np.asarray(archive[key])
        order: Literal["F", "C"] = "F" if fortran else "C"
        array = np.memmap(path, dtype, "r", offset=file.tell(), shape=shape, order=order)
    return array.view(np.ndarray)
