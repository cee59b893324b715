"""How many threads a computation gets."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from client_app.threads import SHARED_FLOPS, flops_of_sample, threads_for


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Give torch two threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("flops", "threads"), [(0, 1), (SHARED_FLOPS - 1, 1), (SHARED_FLOPS, 2), (10**12, 2)]
)
def test_small_steps_have_one_thread(flops: int, threads: int) -> None:
    """Below the limit one thread, from it on those there were; afterwards as before."""
    with threads_for(flops):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_a_failure_gives_the_threads_back() -> None:
    """What raises inside leaves the number of threads as it was."""
    with pytest.raises(ValueError, match="inside"), threads_for(1):
        raise ValueError("inside")
    assert torch.get_num_threads() == 2


def test_flops_of_a_sample() -> None:
    """Two for each weight and output position, counted by hand; the mode is as before."""
    linear = nn.Linear(7, 3)
    assert flops_of_sample(linear, torch.zeros(4, 7)) == 2 * 7 * 3
    convolution = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5)).train()
    assert flops_of_sample(convolution, torch.zeros(2, 2, 6, 8)) == 2 * (2 * 9) * 5 * (4 * 6)
    assert convolution.training
    assert int(convolution.state_dict()["1.num_batches_tracked"]) == 0
