"""Memory that the C library keeps in the process instead of giving it back after every step."""

import ctypes
import sys
from functools import cache

# Parameters of glibc's mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST = 32 * 2**20  # bytes; glibc takes no higher threshold for mmap
KEPT = 512 * 2**20  # bytes of free memory at the end of the heap


@cache
def keep_memory() -> bool:
    """Let freed memory stay in this process, for good, and return whether that was possible.

    glibc maps each tensor of more than 128 KB (a threshold that moves) anew and unmaps it when it
    is freed, and gives the end of the heap back to the system. The next step of training then
    takes the same memory page by page, each a fault of some 0.25 microseconds or, on a virtual
    machine, several times as much. No result depends on it; the process holds up to 512 MiB more
    than it uses. Other C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    done = [
        library.mallopt(M_MMAP_THRESHOLD, LARGEST),
        library.mallopt(M_TRIM_THRESHOLD, KEPT),
    ]
    return all(done)
