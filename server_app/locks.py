"""Files that one process holds at a time, and who it is."""

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock."""

    process: int
    host: str


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a file, with this process's id in it, and remove it in the end.

    The kernel lets go of it when the process dies, however that comes about; the file then stays.

    Raises
    ------
    BlockingIOError
        If another process holds it, unless told to wait.
    """
    with _locked(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)) as file:
        file.truncate(0)
        file.write(f"{os.getpid()} {platform.node()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path, operation: int) -> TextIO:
    """Return the file, locked; never one that its last holder has removed meanwhile."""
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, operation)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def holder(path: Path) -> Holder | None:
    """Return who holds the file of ``lock``, None if nobody does."""
    with suppress(FileNotFoundError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            process, _, host = file.read().partition(" ")
            return Holder(int(process or 0), host)
    return None
