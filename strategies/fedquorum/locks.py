"""A directory that one process holds at a time."""

import os
from pathlib import Path

from filelock import lock_descriptor


def lock_directory(directory: Path) -> int | None:
    """Lock a directory, unless it is locked already, by another process or by this one.

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
