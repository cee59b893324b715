"""Convert arrays to and from Flower's records, and count the bytes of messages."""

import math
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...errors import ProtocolError
from ...sanitize import check_names

NamedArrays = dict[str, NDArray[Any]]


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the record of named arrays, in the bytes of ``Array(ndarray)``."""
    return ArrayRecord({name: _encode_array(np.asarray(a)) for name, a in arrays.items()})


def _encode_array(array: NDArray[Any]) -> Array:
    # Joining copies the numbers once; converting them to bytes first would be a second copy.
    data = b"".join((_build_header(array.dtype, array.shape), np.ascontiguousarray(array).data))
    return Array(str(array.dtype), array.shape, SType.NUMPY, data)


@lru_cache
def _build_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what precedes an array's numbers in NumPy's format."""
    head = BytesIO()
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(head, fields)
    return head.getvalue()


def decode_arrays(record: ArrayRecord) -> NamedArrays:
    """Return copies of the arrays in a record."""
    return {name: view.copy(order="K") for name, view in view_arrays(record).items()}


def view_arrays(record: ArrayRecord) -> NamedArrays:
    """Return the arrays of a record without copying them, read-only.

    The server reads all updates in place: beside the replies, its memory does not grow with their
    number.
    """
    check_names(record, "an array")
    return {name: _decode_array(name, array) for name, array in record.items()}


def _decode_array(name: str, array: Array) -> NDArray[Any]:
    if array.stype != SType.NUMPY:
        raise ProtocolError(f"array '{name}' is serialized as {array.stype!r}, not {SType.NUMPY}")
    try:
        return _parse_array(array.data)
    except Exception as error:  # NumPy's header parser raises many types of errors
        raise ProtocolError(f"array '{name}' cannot be read: {error}") from error


def _parse_array(data: bytes) -> NDArray[Any]:
    # From version 2.0 on, the header's length takes four bytes.
    start = npy.MAGIC_LEN + (2 if data[6:7] == b"\x01" else 4)
    end = start + int.from_bytes(data[npy.MAGIC_LEN : start], "little")
    # ``data`` may be a view of Ray's memory, which the cache must not hold.
    shape, fortran_order, dtype = _parse_header(bytes(data[:end]))
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(data) - end != count * dtype.itemsize:
        raise ValueError(f"it is not as long as its shape {shape} says")
    flat = np.frombuffer(data, dtype=dtype, count=count, offset=end)
    return flat.reshape(shape, order="F" if fortran_order else "C")


@lru_cache
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type, cached: a model's headers are the same in all rounds."""
    head = BytesIO(header)
    version = npy.read_magic(head)
    return (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(head)


def count_bytes(content: RecordDict) -> int:
    """Return the payload of a message in bytes: arrays, metrics and config."""
    return sum(
        _count_config_bytes(record) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in content.values()
    )


def _count_config_bytes(record: ConfigRecord) -> int:
    """Return the bytes by Flower's rule; Flower's own function raises for empty lists and texts."""
    return sum(
        len(key) + _count_value_bytes(value if isinstance(value, list) else [value])
        for key, value in record.items()
    )


def _count_value_bytes(values: list[Any]) -> int:
    """Return the bytes of a list of scalars, which all have one type."""
    if not values:
        return 0
    if isinstance(values[0], str | bytes):
        return sum(map(len, values))
    return len(values) * (1 if isinstance(values[0], bool) else 8)


RecordT = TypeVar("RecordT", ArrayRecord, MetricRecord, ConfigRecord)


def select_records(content: RecordDict, kind: type[RecordT]) -> dict[str, RecordT]:
    """Return the records of one kind, by name, in their order.

    Flower's views, such as ``content.array_records``, form a reference cycle with the message,
    which would keep its arrays in memory until Python collects cycles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}
