"""How many threads a computation is worth.

Threads that meet after every small product cost more than they save, many times more where other
processes want the cores too.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

SHARED_FLOPS = 10**7
"""Operations between two meetings of the threads from which on they share the work."""


@contextmanager
def threads_for(flops: int) -> Iterator[None]:
    """Use one thread for steps of fewer than ``SHARED_FLOPS`` operations, else as before."""
    before = torch.get_num_threads()
    if flops >= SHARED_FLOPS or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(
    work: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int
) -> Iterator[ResultT]:
    """Yield ``work`` of each item, in order, ``workers`` at a time, each on one of torch's threads.

    The products of one small step gain little from a second thread; two steps side by side do.
    """
    if workers == 1:
        yield from map(work, items)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, items)
    finally:
        torch.set_num_threads(before)  # also that of threads to come
