"""Store arrays that grow with the model and the clients: in memory, then in scratch files.

The files have no names, so that the system removes them however the process ends.
"""

import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError

CONTAINER_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
MIN_MEMORY = 4 * 2**30
"""The assumed memory in bytes of a machine whose system does not report it, such as Windows.

It is little for a machine that trains: with less in memory, replies go to files and still fit.
"""

FILE_ALIGNMENT = 64
"""The bytes of a cache line; arrays start at its multiples."""

FILE_BYTES = 2**32
"""The size of a sparse file for many replies; one file per reply could be too many."""

_ZEROS = memoryview(bytes(2**20))
"""What allocates a file piece by piece: 1 MiB takes few calls, and little memory."""


def get_total_memory() -> int:
    """Return the memory of this machine, or of its container if that has less, in bytes."""
    if not hasattr(os, "sysconf"):
        return MIN_MEMORY
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_read_limit, CONTAINER_LIMIT_FILES))])


def _read_limit(path: Path) -> int | None:
    """Return a container's memory limit in bytes, None without a limit."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def get_free_disk(folder: Path) -> int:
    """Return the free space in bytes on the disk of a folder, which need not exist yet."""
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    return shutil.disk_usage(existing).free


def format_bytes(size: int) -> str:
    """Return a size in GB as text."""
    return f"{size / 1e9:.3g} GB"


def preallocate(descriptor: int, start: int, size: int) -> None:
    """Allocate disk space for a part of a file, which is empty or holds zeros.

    Without it, a write to a hole on a full disk would kill a process that has mapped the file.

    Raises
    ------
    OSError
        If the disk has too little space.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    with open(descriptor, "r+b", closefd=False) as file:  # macOS and Windows
        file.seek(start)
        file.writelines(_ZEROS[: size - low] for low in range(0, size, len(_ZEROS)))


def compute_aligned_size(array: NDArray[Any]) -> int:
    """Return the bytes of an array in a file, padded so that the next array is aligned."""
    return array.nbytes + -array.nbytes % FILE_ALIGNMENT


class ScratchFile:
    """A file without a name that is mapped into memory and filled piece by piece.

    Parameters
    ----------
    size : int
        The size in bytes; only written parts take space.
    folder : Path, optional
        The directory of the file; by default TMPDIR.

    Raises
    ------
    OSError
        If there is no space, also in ``store``.
    """

    def __init__(self, size: int, folder: Path | None = None) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            self._descriptor = os.dup(file.fileno())
        finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, size)
        self._view = memoryview(mmap.mmap(self._descriptor, size))
        self._used = 0

    @property
    def free_bytes(self) -> int:
        """The free space in bytes."""
        return len(self._view) - self._used

    def store(self, arrays: Mapping[str, NDArray[Any]], size: int) -> dict[str, NDArray[Any]]:
        """Write arrays of ``size`` bytes in all, and return them as read-only views of the file."""
        preallocate(self._descriptor, self._used, max(size, 1))
        return {name: self._write(array) for name, array in arrays.items()}

    def _write(self, array: NDArray[Any]) -> NDArray[Any]:
        buffer = self._view[self._used : self._used + array.nbytes]
        self._used += compute_aligned_size(array)
        view = np.frombuffer(buffer, array.dtype).reshape(array.shape)
        view[...] = array
        view.flags.writeable = False
        return view


class ReplyStore:
    """The updates of one round that the server needs together: in memory, then in files.

    Parameters
    ----------
    reply_memory : int, optional
        The bytes of arrays to store in memory; by default half of the machine's memory.
    """

    def __init__(self, reply_memory: int | None) -> None:
        self._left = get_memory_limit(reply_memory)
        self._file: ScratchFile | None = None

    def store(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Store arrays and return them, as read-only views of a file if no memory is left.

        Raises
        ------
        RunError
            If there is no space for the file.
        """
        size = sum(map(compute_aligned_size, arrays.values()))
        if size <= self._left:
            self._left -= size
            return arrays
        try:
            if self._file is None or self._file.free_bytes < size:
                self._file = ScratchFile(max(size, FILE_BYTES))
            return self._file.store(arrays, size)
        except OSError as error:
            raise _build_space_error(size, error.strerror or repr(error)) from None


def check_space(reply_memory: int | None, replies: int, model: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a round whose replies exceed the allowed memory and the space for files.

    Parameters
    ----------
    reply_memory : int, optional
        As for ``ReplyStore``.
    replies : int
        The number of models that the server needs together.
    model : mapping
        One of these models.

    Raises
    ------
    RunError
        If they exceed both, with the figures.
    """
    size = replies * sum(array.nbytes for array in model.values())
    beyond = size - get_memory_limit(reply_memory)
    if beyond > get_free_disk(Path(tempfile.gettempdir())):
        sizes = f"{replies} models of {format_bytes(size // replies)}"
        raise _build_space_error(beyond, f"the weights of a round need all replies, {sizes}")


def get_memory_limit(reply_memory: int | None) -> int:
    """Return the bytes of replies that may stay in memory."""
    # The other half is for messages in transit, the models and their sum.
    return get_total_memory() // 2 if reply_memory is None else reply_memory


def _build_space_error(size: int, reason: str) -> RunError:
    folder = tempfile.gettempdir()
    free = format_bytes(get_free_disk(Path(folder)))
    return RunError(
        f"reply_memory must leave no more to files than {folder} (TMPDIR) has space for, {free}: "
        f"{format_bytes(size)} are needed ({reason})"
    )
