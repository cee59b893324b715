"""How many threads a computation is worth.

Threads that meet after every small product cost more than they save, many times more where other
processes want the cores too.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

SHARED_FLOPS = 10**7
"""Operations between two meetings of the threads from which on they share the work."""


def flops_of_sample(model: nn.Module, x: torch.Tensor) -> int:
    """Return how many operations one sample's forward pass takes; ``x`` (n, *input_shape)."""
    training = model.training
    model.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    model.train(training)
    return int(counter.get_total_flops()) // len(x)


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
