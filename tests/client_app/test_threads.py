"""How many threads a computation gets."""

from collections.abc import Iterator

import pytest
import torch

from client_app.threads import SHARED_FLOPS, threads_for


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
