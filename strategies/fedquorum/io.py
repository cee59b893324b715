"""Write files that are complete or absent even after an interruption."""

import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout, lock_descriptor

from .errors import RunError


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to ``path`` on success.

    Parameters
    ----------
    path : Path
        The file to create or replace.
    durable : bool
        Whether to sync the content before the rename, so that the file survives a power cut.

    Raises
    ------
    RunError
        If the file cannot be written, as on a full disk; ``path`` is then unchanged.
    """
    # Readers of a folder of Parquet files skip names that begin with a dot.
    partial = path.with_name(f".{path.name}.part")
    try:
        yield partial
        if durable:
            fsync(partial)
        partial.replace(path)
        if durable:
            fsync(path.parent)
    except OSError as error:
        raise cannot_write_error(path, error) from None
    finally:
        partial.unlink(missing_ok=True)


def cannot_write_error(path: Path, error: Exception) -> RunError:
    """Return the error of a file that cannot be written, in one line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(f"{path} cannot be written: {reason}")


def fsync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to the disk."""
    if not hasattr(os, "O_DIRECTORY") and path.is_dir():
        return  # Windows cannot sync a folder
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_parents(path: Path) -> None:
    """Sync the names of a folder and of all folders above it, up to its mount point."""
    for folder in path.parents:
        with suppress(OSError):  # another user's folder, or the file system syncs no folders
            fsync(folder)
        if os.path.ismount(folder):
            return


_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
DEFERRED_SIGNALS = tuple(signal.Signals[name] for name in _SIGNAL_NAMES if hasattr(signal, name))


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay signals, so that related records are written together.

    An exception in between could also leave a library's lock held forever. Signals reach the main
    thread only; in other threads there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in DEFERRED_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in arrived[:1]:
            handler = before[signal.Signals(first)]
            if callable(handler):  # the signal itself would wait if it is blocked
                handler(first, None)
            else:
                signal.raise_signal(first)


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
