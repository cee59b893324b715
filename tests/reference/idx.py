"""The idx format of the MNIST family, as http://yann.lecun.com/exdb/mnist describes it."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write the idx format: 0, 0, type (8: unsigned byte), rank, sizes big-endian, values."""
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.tobytes())
