"""Replies that are needed all at once: in memory up to a bound, beyond it in files.

The files have no names, so that nothing of them is left however the run ends.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from ..capacity import free_disk, gigabytes, machine_memory
from ..errors import RunError
from .codec import records_of

ALIGNED = 64
"""Bytes of a cache line, where arrays begin."""


class ReplyStore:
    """The replies of one round.

    Parameters
    ----------
    reply_memory : int, optional
        How many bytes of arrays stay in memory; by default half of what the machine has.
    """

    def __init__(self, reply_memory: int | None) -> None:
        self._left = allowed(reply_memory)

    def kept(self, content: RecordDict) -> RecordDict:
        """Return a reply to be kept, whose arrays are in a file if there is no memory left.

        Raises
        ------
        RunError
            If there is no space for the file.
        """
        size = sum(
            _room(array)
            for record in records_of(content, ArrayRecord).values()
            for array in record.values()
        )
        if size <= self._left or size == 0:
            self._left -= size
            return content
        try:
            return _in_file(content, size)
        except OSError as error:
            raise _no_space(size, error.strerror or repr(error)) from None


def check_space(reply_memory: int | None, replies: int, model: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a round whose replies are more than may be in memory and can be in files.

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
    beyond = size - allowed(reply_memory)
    if beyond > free_disk(Path(tempfile.gettempdir())):
        told = f"{replies} models of {gigabytes(size // replies)}"
        raise _no_space(beyond, f"the weights of a round need all replies, {told}")


def allowed(reply_memory: int | None) -> int:
    """Return how many bytes of replies may be in memory."""
    return machine_memory() // 2 if reply_memory is None else reply_memory


def _room(array: Array) -> int:
    """Return how many bytes an array takes in a file, so that the next one begins aligned."""
    return -len(array.data) % ALIGNED + len(array.data)


def _in_file(content: RecordDict, size: int) -> RecordDict:
    """Return the same records, with arrays that are views of a file without a name."""
    with tempfile.TemporaryFile(buffering=0) as file:
        # A write to a hole on a full disk would kill the process that reads it.
        os.posix_fallocate(file.fileno(), 0, size)
        view = memoryview(mmap.mmap(file.fileno(), size))
    records, begin = dict(content), 0
    for name, record in records_of(content, ArrayRecord).items():
        moved = ArrayRecord()
        for key, array in record.items():
            end = begin + len(array.data)
            view[begin:end] = array.data
            moved[key] = _of_view(array, view[begin:end].toreadonly())
            begin += _room(array)
        records[name] = moved
    return RecordDict(records)


def _of_view(array: Array, data: memoryview) -> Array:
    moved = Array(array.dtype, array.shape, array.stype, b"")
    vars(moved)["data"] = data  # Flower's constructor takes bytes alone: a copy
    return moved


def _no_space(size: int, reason: str) -> RunError:
    folder = tempfile.gettempdir()
    free = gigabytes(free_disk(Path(folder)))
    return RunError(
        f"reply_memory must leave no more to files than {folder} (TMPDIR) has space for, {free}: "
        f"{gigabytes(size)} are needed ({reason})"
    )
