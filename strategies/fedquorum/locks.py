"""Lock directories and files, each held by one process at a time."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

PROBE_SECONDS = 0.01  # much longer than another process needs to probe a lock


def lock_directory(directory: Path) -> int | None:
    """Lock a directory, unless this or another process has locked it already.

    The kernel releases the lock of a process that dies.

    Returns
    -------
    int or None
        A descriptor that holds the lock until it is closed; None if the directory is locked.

    Raises
    ------
    OSError
        If the directory cannot be opened.
    """
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    else:  # Windows opens no directories
        descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        locked = lock_descriptor(descriptor, blocking=False)
    except BaseException:
        os.close(descriptor)
        raise
    if locked:
        return descriptor
    os.close(descriptor)
    return None


@dataclass(frozen=True)
class LockHolder:
    """A process that holds a lock."""

    process_id: int
    host: str


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, with this process's id in it, and remove the file at the end.

    If the process dies, the kernel releases the lock and the file stays.

    Raises
    ------
    BlockingIOError
        If another process holds the file, unless ``wait`` is true.
    """
    held = FileLock(
        path, timeout=-1 if wait else 0, fallback_to_soft=False, on_acquired=_write_holder
    )
    try:
        held.acquire()
    except Timeout:
        raise BlockingIOError(f"another process holds {path}") from None
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows keeps an open file; its release removes it
            path.unlink(missing_ok=True)
        held.release()


def _write_holder(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()} {platform.node()}".encode())


def find_holder(path: Path) -> LockHolder | None:
    """Return the process that holds the file of ``lock``; None if no process does."""
    with suppress(FileNotFoundError), path.open("r+") as file:
        if not _is_free(file.fileno()):
            process, _, host = file.read().partition(" ")
            return LockHolder(int(process or 0), host)
    return None


def _is_free(descriptor: int) -> bool:
    """Say whether no process holds a file; the probe itself holds it for a moment."""
    if lock_descriptor(descriptor, blocking=False):
        return True
    time.sleep(PROBE_SECONDS)
    return lock_descriptor(descriptor, blocking=False)
