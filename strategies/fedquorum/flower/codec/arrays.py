"""Convert arrays to and from Flower's records, and count the bytes of messages."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...errors import ProtocolError
from ...sanitize import sanitize

NamedArrays = dict[str, NDArray[Any]]

MAX_NAME_LENGTH = 255

NUMBER_KINDS = "fiub"
"""NumPy's kinds of real numbers: floats, whole numbers without and with a sign, booleans."""


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the record of named arrays, in the bytes of ``Array(ndarray)``."""
    record = ArrayRecord()
    for name, given in arrays.items():
        array = np.asarray(given)
        # Joining copies the numbers once; converting them to bytes first would be a second copy.
        data = b"".join((_build_header(array.dtype, array.shape), np.ascontiguousarray(array).data))
        record[name] = Array(_get_name(array.dtype), array.shape, SType.NUMPY, data)
    return record


@lru_cache
def _get_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, which NumPy builds anew in each call."""
    return str(dtype)


@lru_cache
def _build_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what precedes an array's numbers in NumPy's format."""
    head = BytesIO()
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(head, fields)
    return head.getvalue()


def check_names(names: Iterable[str], kind: str) -> None:
    """Refuse names that records cannot show unchanged.

    Parameters
    ----------
    names : iterable of str
    kind : str
        The kind of named objects, such as "array".

    Raises
    ------
    ProtocolError
        If a name is empty, longer than 255 characters, or not printable.
    """
    for name in names:
        if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
            raise ProtocolError(
                f"the name of {kind} must have 1 to {MAX_NAME_LENGTH} printable characters, got "
                f"{len(name)}: '{sanitize(name, 40)}'"
            )


def decode_arrays(record: ArrayRecord) -> NamedArrays:
    """Return copies of the arrays in a record."""
    return {name: view.copy(order="K") for name, view in view_arrays(record).items()}


def view_arrays(record: ArrayRecord) -> NamedArrays:
    """Return the arrays of a record without copying them, read-only.

    The server reads all updates in place: beside the replies, its memory does not grow with their
    number.
    """
    check_names(record, "an array")
    arrays = {}
    for name, array in record.items():
        if array.stype != SType.NUMPY:
            kind = f"serialized as {array.stype!r}, not {SType.NUMPY}"
            raise ProtocolError(f"array '{name}' is {kind}")
        try:
            arrays[name] = _parse_array(array.data)
        except Exception as error:  # NumPy's header parser raises many types of errors
            raise ProtocolError(f"array '{name}' cannot be read: {error}") from error
        if arrays[name].dtype.kind not in NUMBER_KINDS:
            raise ProtocolError(
                f"array '{name}' has dtype {arrays[name].dtype}, not one of real numbers (bfloat16 "
                "must become float32, a complex number two floats)"
            )
    return arrays


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
    size = 0
    for record in content.values():
        if not isinstance(record, ConfigRecord):
            size += record.count_bytes()
            continue
        # By Flower's rule; Flower's own function raises for empty lists and texts.
        for key, value in record.items():
            values: list[Any] = value if isinstance(value, list) else [value]
            size += len(key)
            if values and isinstance(values[0], str | bytes):
                size += sum(map(len, values))
            elif values:  # all scalars of a list have one type
                size += len(values) * (1 if isinstance(values[0], bool) else 8)
    return size


RecordT = TypeVar("RecordT", ArrayRecord, MetricRecord, ConfigRecord)


def select_records(content: RecordDict, kind: type[RecordT]) -> dict[str, RecordT]:
    """Return the records of one kind, by name, in their order.

    Flower's views, such as ``content.array_records``, form a reference cycle with the message,
    which would keep its arrays in memory until Python collects cycles.
    """
    return {name: record for name, record in content.items() if isinstance(record, kind)}


def drop_arrays(content: RecordDict) -> RecordDict:
    """Return a reply without its arrays."""
    return RecordDict({k: v for k, v in content.items() if not isinstance(v, ArrayRecord)})
