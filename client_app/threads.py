"""How many threads a computation is worth.

Threads that meet after every small product cost more than they save, many times more where other
processes want the cores too.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
