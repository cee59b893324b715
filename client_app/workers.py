"""Lasting worker threads, among which a process divides work on independent items, and its memory.

Threads of torch that share one product have to meet after each, and a client's steps are small:
two clients side by side on one thread each are faster than two threads on one client. The rounding
of a product also depends on the number of its threads, so that number is fixed here.
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
"""Operations between two meetings of the threads from which on they share the work.

Threads that meet after every small product cost more than they save, many times more where other
processes want the cores too.
"""

# Parameters of glibc's mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MAX_MMAP_THRESHOLD = 32 * 2**20  # bytes; glibc takes no higher threshold for mmap
TRIM_THRESHOLD = 512 * 2**20  # bytes of free memory at the end of the heap

_INITIAL_THREADS = torch.get_num_threads()
_THREAD_LOCAL = threading.local()


def count_process_cores() -> int:
    """Return how many cores the system lets this process use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return os.cpu_count() or 1 if affinity is None else len(affinity(0))


def count_available_cores() -> int:
    """Return how many cores this process may use, at most as many as torch was given threads."""
    return max(1, min(count_process_cores(), _INITIAL_THREADS))


@contextmanager
def use_torch_threads(number: int) -> Iterator[None]:
    """Compute with this number of torch threads in the calling thread, then with as many as before.

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
    """Threads that last as long as the process, each with a fixed number of torch threads.

    With one worker, and inside a worker, everything runs in the calling thread. Objects of the
    same size share their threads.

    Parameters
    ----------
    count : int
        Number of workers.
    threads : int
        Number of torch threads of each.
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
            What to work on.
        prefetch : int
            How many items, at least 1, are begun and not consumed. A result counts until the next
            one is asked for. When the iterator is closed early, those begun end first.
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
    """Return the result of work on an item, or the exception that it raises."""
    try:
        return work(item)
    except Exception as error:
        return error


@cache
def retain_freed_memory() -> bool:
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
        library.mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD),
        library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD),
    ]
    return all(done)


@lru_cache
def _get_pool(count: int, threads: int) -> ThreadPoolExecutor:
    """Return an executor whose threads have all started."""
    ready = threading.Barrier(count + 1)

    def start() -> None:
        _THREAD_LOCAL.is_worker = True
        # A thread takes the number of the process at its first look, so it looks before it sets.
        torch.get_num_threads()
        torch.set_num_threads(threads)

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "fedquorum-worker", initializer=start)
    for _ in range(count):
        pool.submit(ready.wait)
    ready.wait()
    torch.set_num_threads(before)  # what threads that start later take
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has the executors without their threads
    os.register_at_fork(after_in_child=_get_pool.cache_clear)
