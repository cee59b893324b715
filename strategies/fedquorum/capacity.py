"""How much memory and disk there is, for what grows with the model and the clients."""

import os
import shutil
from pathlib import Path

CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_memory() -> int:
    """Return the memory of this machine, or of its container if that has less, in bytes."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_limit, CONTAINER_LIMITS))])


def free_disk(folder: Path) -> int:
    """Return the space left where a folder is, or will be when it is made, in bytes."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def gigabytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 1e9:.3g} GB"


def _limit(path: Path) -> int | None:
    """Return a container's limit, None where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
