"""How many threads a computation gets, and work that is done side by side."""

import threading
from collections.abc import Iterator

import pytest
import torch

from client_app.threads import SHARED_FLOPS, side_by_side, threads_for


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


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_side_by_side_is_in_order(workers: int) -> None:
    """Results come in the order of the items, whoever is done first."""
    assert list(side_by_side(lambda n: n * n, range(20), workers)) == [n * n for n in range(20)]
    assert torch.get_num_threads() == 2


def test_side_by_side_is_at_the_same_time() -> None:
    """Each of two workers waits until the other one is there, with one of torch's threads."""
    meet = threading.Barrier(2, timeout=30)

    def work(_: int) -> int:
        meet.wait()
        return torch.get_num_threads()

    assert list(side_by_side(work, range(2), 2)) == [1, 1]
    assert torch.get_num_threads() == 2


def test_side_by_side_raises_what_the_work_raises() -> None:
    """A failure comes at its item's place, and the threads are given back."""

    def work(n: int) -> int:
        if n == 1:
            raise ValueError("inside")
        return n

    results = side_by_side(work, range(3), 2)
    assert next(results) == 0
    with pytest.raises(ValueError, match="inside"):
        next(results)
    assert torch.get_num_threads() == 2
