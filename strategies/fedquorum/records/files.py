"""Write files that are complete or absent even after an interruption."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from ..errors import RunError


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
    except (OSError, SafetensorError) as error:
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
