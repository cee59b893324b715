"""Arrays as Flower's records, and what a message weighs."""

import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...errors import ProtocolError

NamedArrays = dict[str, NDArray[Any]]


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the record of named arrays."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def decode_arrays(record: ArrayRecord) -> NamedArrays:
    """Return the arrays of a record; the caller owns the copies."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (ValueError, TypeError, EOFError) as error:
        raise ProtocolError(f"arrays cannot be read: {error}") from error


def view_arrays(record: ArrayRecord) -> NamedArrays:
    """Return the arrays of a record without copying them, read-only.

    The server reads the updates of all clients in place: beyond the replies themselves it needs
    no memory that grows with their number.
    """
    return {name: _view(name, array) for name, array in record.items()}


def _view(name: str, array: Array) -> NDArray[Any]:
    if array.stype != "numpy.ndarray":
        raise ProtocolError(f"array '{name}' is serialised as {array.stype!r}, not numpy.ndarray")
    try:
        return _read(array.data)
    except Exception as error:  # NumPy's reader of headers raises many things
        raise ProtocolError(f"array '{name}' cannot be read: {error}") from error


def _read(data: bytes) -> NDArray[Any]:
    head = BytesIO(data)
    version = npy.read_magic(head)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = read_header(head)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(data) - head.tell() != count * dtype.itemsize:
        raise ValueError(f"it is not as long as its shape {shape} says")
    flat = np.frombuffer(data, dtype=dtype, count=count, offset=head.tell())
    return flat.reshape(shape, order="F" if fortran_order else "C")


def count_bytes(content: RecordDict) -> int:
    """Return the payload of a message in bytes: arrays, metrics and config."""
    return sum(
        _config_bytes(record) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in content.values()
    )


def _config_bytes(record: ConfigRecord) -> int:
    """Count as Flower does, whose own count raises for empty lists and empty texts."""

    def scalar(value: object) -> int:
        if isinstance(value, str | bytes):
            return len(value)
        return 1 if isinstance(value, bool) else 8

    return sum(
        len(key) + sum(map(scalar, value if isinstance(value, list) else [value]))
        for key, value in record.items()
    )
