"""Test that received data is never loaded as code."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from fedquorum.errors import ProtocolError
from fedquorum.flower.codec import NamedArrays, decode_arrays, view_arrays
from flwr.app import Array, ArrayRecord


class MaliciousObject:
    """Creates a file when it is unpickled, in place of an attacker's code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("decode", [view_arrays, decode_arrays])
def test_a_pickle_in_an_update_is_refused(
    tmp_path: Path, decode: Callable[[ArrayRecord], NamedArrays]
) -> None:
    """An array of objects is a protocol error, and no code runs."""
    malicious = np.array([MaliciousObject(tmp_path / "ran")], dtype=object)
    buffer = BytesIO()
    np.save(buffer, malicious, allow_pickle=True)
    array = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=buffer.getvalue())
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(ArrayRecord({"w": array}))
    assert not (tmp_path / "ran").exists()
    np.load(BytesIO(buffer.getvalue()), allow_pickle=True)
    assert (tmp_path / "ran").exists()  # so it would have run
