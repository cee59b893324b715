"""Updates that are needed all at once: in memory up to a bound, beyond it in files.

The files have no names, so that nothing of them is left however the run ends.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..capacity import free_disk, gigabytes, machine_memory
from ..errors import RunError
from ..unnamed_file import UnnamedFile, room

FILE_BYTES = 2**32
"""Of a file, of which only what is written takes space: a file for each reply could be too many."""


class ReplyStore:
    """The updates of one round.

    Parameters
    ----------
    reply_memory : int, optional
        How many bytes of arrays stay in memory; by default half of what the machine has.
    """

    def __init__(self, reply_memory: int | None) -> None:
        self._left = allowed(reply_memory)
        self._file: UnnamedFile | None = None

    def kept(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return arrays to be kept, as read-only views of a file if there is no memory left.

        Raises
        ------
        RunError
            If there is no space for the file.
        """
        size = sum(map(room, arrays.values()))
        if size <= self._left:
            self._left -= size
            return arrays
        try:
            if self._file is None or self._file.left < size:
                self._file = UnnamedFile(max(size, FILE_BYTES))
            return self._file.moved(arrays, size)
        except OSError as error:
            raise _no_space(size, error.strerror or repr(error)) from None


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
    beyond = size - allowed(reply_memory)
    if beyond > free_disk(Path(tempfile.gettempdir())):
        told = f"{replies} models of {gigabytes(size // replies)}"
        raise _no_space(beyond, f"the weights of a round need all replies, {told}")


def allowed(reply_memory: int | None) -> int:
    """Return how many bytes of replies may be in memory."""
    return machine_memory() // 2 if reply_memory is None else reply_memory


def _no_space(size: int, reason: str) -> RunError:
    folder = tempfile.gettempdir()
    free = gigabytes(free_disk(Path(folder)))
    return RunError(
        f"reply_memory must leave no more to files than {folder} (TMPDIR) has space for, {free}: "
        f"{gigabytes(size)} are needed ({reason})"
    )
