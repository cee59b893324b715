"""Divide independent work among persistent worker threads, and configure the process's memory.

torch threads that share a product synchronize after each one, and a client's steps are small: two
clients in parallel on one thread each are faster than two threads on one client. The rounding of a
product also depends on the number of its threads, so that number is fixed here.
"""

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

MIN_SHARED_FLOPS = 10**7
"""Minimum operations between two synchronizations for which threads share the work.

Threads that synchronize after every small product cost more than they save, many times more if
other processes compete for the cores.
"""

# Parameters of glibc's mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MAX_MMAP_THRESHOLD = 32 * 2**20  # bytes; glibc takes no higher threshold for mmap
TRIM_THRESHOLD = 512 * 2**20
"""Bytes of free memory at the end of the heap. A round of training had 242 page faults with both
thresholds and 7,008 with glibc's defaults; see docs/performance.md."""

_INITIAL_THREADS = torch.get_num_threads()
_THREAD_LOCAL = threading.local()


def count_process_cores() -> int:
    """Return the number of cores that the system lets this process use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def count_available_cores() -> int:
    """Return the number of cores this process may use, at most torch's initial thread count."""
    return max(1, min(count_process_cores(), _INITIAL_THREADS))


@contextmanager
def use_torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch threads of the calling thread, and restore it at the end.

    Parameters
    ----------
    number : int
        At least 1.
    """
    before = torch.get_num_threads()
    if number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class WorkerPool:
    """Threads that live as long as the process, each with a fixed number of torch threads.

    With one worker, and inside a worker, everything runs in the calling thread. Pools of the same
    size share their threads.

    Parameters
    ----------
    count : int
        Number of workers.
    threads : int
        Number of torch threads of each worker.
    """

    def __init__(self, count: int, threads: int = 1) -> None:
        self.count = count
        self.threads = threads

    def map(
        self, work: Callable[[Item], Result], items: Sequence[Item], *, prefetch: int
    ) -> Iterator[Result | Exception]:
        """Yield ``work(item)``, or the exception that it raised, in the order of the items.

        Parameters
        ----------
        work : callable
            Called from several threads at the same time.
        items : sequence
        prefetch : int
            Maximum number of items, at least 1, that are started and not consumed. A result counts
            until the next one is requested. If the iterator is closed early, started items finish
            first.
        """
        if min(self.count, prefetch, len(items)) <= 1 or getattr(_THREAD_LOCAL, "is_worker", False):
            for item in items:
                with use_torch_threads(self.threads):
                    result = run_or_return_error(work, item)
                yield result
            return
        pool = _get_pool(self.count, self.threads)
        pending: deque[Future[Result | Exception]] = deque()
        try:
            for item in items:
                if len(pending) == prefetch:
                    yield pending[0].result()
                    pending.popleft()
                pending.append(pool.submit(run_or_return_error, work, item))
            while pending:
                yield pending[0].result()
                pending.popleft()
        finally:
            wait(pending)


def run_or_return_error(work: Callable[[Item], Result], item: Item) -> Result | Exception:
    """Return the result of ``work`` on an item, or the exception that it raises."""
    try:
        return work(item)
    except Exception as error:
        return error


@cache
def retain_freed_memory() -> bool:
    """Retain freed memory in this process permanently; return whether that was possible.

    glibc maps each tensor of more than 128 KB (a dynamic threshold) separately, unmaps it when it
    is freed, and returns the end of the heap to the system. The next training step then gets the
    same memory page by page; each page fault takes about 0.25 microseconds or, on a virtual
    machine, several times as much. No result depends on this setting; the process holds up to
    512 MiB more than it uses. Other C libraries are not changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    results = [
        library.mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD),
        library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD),
    ]
    return all(results)


@lru_cache
def _get_pool(count: int, threads: int) -> ThreadPoolExecutor:
    """Return an executor whose threads have all started."""
    ready = threading.Barrier(count + 1)

    def start() -> None:
        _THREAD_LOCAL.is_worker = True
        # A thread's first read takes the process's number, so read before setting.
        torch.get_num_threads()
        torch.set_num_threads(threads)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "fedquorum-worker", initializer=start)
    for _ in range(count):
        pool.submit(ready.wait)
    ready.wait()
    torch.set_num_threads(before)  # threads that start later take this number
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has executors without their threads
    os.register_at_fork(after_in_child=_get_pool.cache_clear)
