"""A file without a name, in which arrays lie that memory has no room for.

Nothing of it is left however the process ends.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from .capacity import allocate

ALIGNED = 64
"""Bytes of a cache line, where arrays begin."""


def room(array: NDArray[Any]) -> int:
    """Return how many bytes an array takes in a file, so that the next one begins aligned."""
    return array.nbytes + -array.nbytes % ALIGNED


class UnnamedFile:
    """A file without a name that is mapped into memory and filled piece by piece.

    Parameters
    ----------
    size : int
        Its size in bytes, of which only what is written takes space.
    folder : Path, optional
        Where it is made; by default below TMPDIR.

    Raises
    ------
    OSError
        If there is no space, also when arrays are moved into it.
    """

    def __init__(self, size: int, folder: Path | None = None) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            self._descriptor = os.dup(file.fileno())
        finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, size)
        self._view = memoryview(mmap.mmap(self._descriptor, size))
        self._used = 0

    @property
    def left(self) -> int:
        """The free space in bytes."""
        return len(self._view) - self._used

    def moved(self, arrays: Mapping[str, NDArray[Any]], size: int) -> dict[str, NDArray[Any]]:
        """Return arrays as views of the file."""
        allocate(self._descriptor, self._used, max(size, 1))
        return {name: self._written(array) for name, array in arrays.items()}

    def _written(self, array: NDArray[Any]) -> NDArray[Any]:
        place = self._view[self._used : self._used + array.nbytes]
        self._used += room(array)
        view = np.frombuffer(place, array.dtype).reshape(array.shape)
        view[...] = array
        view.flags.writeable = False
        return view
