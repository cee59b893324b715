"""Keep arrays that grow with the model and the clients: in memory, and beyond it in scratch files.

The files have no names, so that nothing of them is left however the process ends.
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

from .errors import RunError

CONTAINER_LIMIT_FILES = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
MIN_MEMORY = 4 * 2**30
"""What a machine is taken to have whose system does not tell, as Windows."""

FILE_ALIGNMENT = 64
"""Bytes of a cache line, where arrays begin."""

FILE_BYTES = 2**32
"""Of a file, of which only what is written takes space: a file for each reply could be too many."""

_ZEROS = memoryview(bytes(2**20))


def get_total_memory() -> int:
    """Return the memory of this machine, or of its container if that has less, in bytes."""
    if not hasattr(os, "sysconf"):
        return MIN_MEMORY
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_read_limit, CONTAINER_LIMIT_FILES))])


def _read_limit(path: Path) -> int | None:
    """Return a container's limit, None where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def get_free_disk(folder: Path) -> int:
    """Return the space left where a folder is, or will be when it is made, in bytes."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def format_bytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 1e9:.3g} GB"


def preallocate(descriptor: int, start: int, size: int) -> None:
    """Take the space of a part of a file from the disk; the part is empty or holds zeros.

    A write to a hole on a full disk would kill a process that has mapped the file.

    Raises
    ------
    OSError
        If there is too little.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    with open(descriptor, "r+b", closefd=False) as file:  # macOS and Windows
        file.seek(start)
        file.writelines(_ZEROS[: size - low] for low in range(0, size, len(_ZEROS)))


def compute_aligned_size(array: NDArray[Any]) -> int:
    """Return how many bytes an array takes in a file, so that the next one begins aligned."""
    return array.nbytes + -array.nbytes % FILE_ALIGNMENT


class ScratchFile:
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
    def free_bytes(self) -> int:
        """The free space in bytes."""
        return len(self._view) - self._used

    def store(self, arrays: Mapping[str, NDArray[Any]], size: int) -> dict[str, NDArray[Any]]:
        """Return arrays as views of the file."""
        preallocate(self._descriptor, self._used, max(size, 1))
        return {name: self._write(array) for name, array in arrays.items()}

    def _write(self, array: NDArray[Any]) -> NDArray[Any]:
        place = self._view[self._used : self._used + array.nbytes]
        self._used += compute_aligned_size(array)
        view = np.frombuffer(place, array.dtype).reshape(array.shape)
        view[...] = array
        view.flags.writeable = False
        return view


class ReplyStore:
    """The updates of one round that are needed all at once: in memory up to a bound, then in files.

    Parameters
    ----------
    reply_memory : int, optional
        How many bytes of arrays stay in memory; by default half of what the machine has.
    """

    def __init__(self, reply_memory: int | None) -> None:
        self._left = get_memory_limit(reply_memory)
        self._file: ScratchFile | None = None

    def store(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return arrays to be kept, as read-only views of a file if there is no memory left.

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
        As of ``ReplyStore``.
    replies : int
        How many models are needed at once.
    model : mapping
        One of them.

    Raises
    ------
    RunError
        With the figures.
    """
    size = replies * sum(array.nbytes for array in model.values())
    beyond = size - get_memory_limit(reply_memory)
    if beyond > get_free_disk(Path(tempfile.gettempdir())):
        told = f"{replies} models of {format_bytes(size // replies)}"
        raise _build_space_error(beyond, f"the weights of a round need all replies, {told}")


def get_memory_limit(reply_memory: int | None) -> int:
    """Return how many bytes of replies may be in memory."""
    return get_total_memory() // 2 if reply_memory is None else reply_memory


def _build_space_error(size: int, reason: str) -> RunError:
    folder = tempfile.gettempdir()
    free = format_bytes(get_free_disk(Path(folder)))
    return RunError(
        f"reply_memory must leave no more to files than {folder} (TMPDIR) has space for, {free}: "
        f"{format_bytes(size)} are needed ({reason})"
    )
