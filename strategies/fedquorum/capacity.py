"""Measure the memory and disk available for data that grows with the model and the clients."""

import os
import shutil
from pathlib import Path

CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
LEAST_MEMORY = 4 * 2**30
"""What a machine is taken to have whose system does not tell, as Windows."""

_ZEROS = memoryview(bytes(2**20))


def machine_memory() -> int:
    """Return the memory of this machine, or of its container if that has less, in bytes."""
    if not hasattr(os, "sysconf"):
        return LEAST_MEMORY
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_limit, CONTAINER_LIMITS))])


def free_disk(folder: Path) -> int:
    """Return the space left where a folder is, or will be when it is made, in bytes."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def allocate(descriptor: int, start: int, size: int) -> None:
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


def gigabytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 1e9:.3g} GB"


def _limit(path: Path) -> int | None:
    """Return a container's limit, None where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
