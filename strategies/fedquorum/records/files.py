"""Write files that are complete or absent, whatever interrupts the writing."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from ..errors import RunError


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield another name to write to; the file becomes ``path`` when that succeeded.

    Parameters
    ----------
    path : Path
        What to make or replace.
    durable : bool
        Whether the content is on the disk before the name is, for what must survive a power cut.

    Raises
    ------
    RunError
        If it cannot be written, as on a full disk; ``path`` is then as it was.
    """
    # Readers of a folder of Parquet files leave out names that begin with a dot.
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        if durable:
            fsync(part)
        part.replace(path)
        if durable:
            fsync(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write_error(path, error) from None
    finally:
        part.unlink(missing_ok=True)


def cannot_write_error(path: Path, error: Exception) -> RunError:
    """Return the one line that says so."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(f"{path} cannot be written: {reason}")


def fsync(path: Path) -> None:
    """Bring a file's content, or the names in a folder, to the disk."""
    if not hasattr(os, "O_DIRECTORY") and path.is_dir():
        return  # Windows has no such thing
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_parents(path: Path) -> None:
    """Bring the names of a folder and of all folders above it to the disk, up to its mount."""
    for folder in path.parents:
        with suppress(OSError):  # another user's, or of a file system that syncs no folders
            fsync(folder)
        if os.path.ismount(folder):
            return
