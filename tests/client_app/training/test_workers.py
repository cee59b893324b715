"""Worker threads: order, exceptions, bounded look-ahead, the threads of torch, and kept memory."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from client_app.node import node
from client_app.node.node import Node
from client_app.training.workers import (
    WorkerPool,
    count_available_cores,
    retain_freed_memory,
    use_torch_threads,
)
from conf import compose_settings

COUNTS = (1, 2, 3)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Give torch two threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(count: int, ahead: int) -> None:
    """Items that take longer first do not change the order."""

    def work(item: int) -> int:
        time.sleep(0.002 * (7 - item))
        return item * item

    assert list(WorkerPool(count).map(work, range(8), prefetch=ahead)) == [i * i for i in range(8)]
    assert list(WorkerPool(count).map(work, [], prefetch=ahead)) == []


@pytest.mark.parametrize("count", COUNTS)
def test_an_exception_is_a_value(count: int) -> None:
    """The item that raises has its exception, all others have their results."""

    def work(item: int) -> int:
        if item % 3 == 1:
            raise ValueError(f"item {item}")
        return item

    results = list(WorkerPool(count).map(work, range(6), prefetch=3))
    assert [str(r) if isinstance(r, ValueError) else r for r in results] == [
        *(0, "item 1", 2, 3, "item 4", 5)
    ]


@pytest.mark.parametrize("count", COUNTS)
def test_look_ahead_is_bounded(count: int) -> None:
    """At most ``ahead`` items are started and not consumed."""
    ahead, most = 3, 0
    started: list[int] = []
    results = WorkerPool(count).map(started.append, range(20), prefetch=ahead)
    for consumed, _ in enumerate(results):
        time.sleep(0.001)
        most = max(most, len(started) - consumed)
    assert len(started) == 20
    assert most == (ahead if count > 1 else 1)


def test_workers_run_side_by_side_and_last() -> None:
    """Two items that wait for each other both end; a second call finds the same threads."""
    meeting = threading.Barrier(2, timeout=20)

    def start_at_barrier(_: int) -> str:
        meeting.wait()
        return threading.current_thread().name

    names = [{*WorkerPool(2).map(start_at_barrier, [0, 1], prefetch=2)} for _ in range(2)]
    assert len(names[0]) == 2
    assert names[0] == names[1]
    assert threading.current_thread().name not in names[0]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("threads", [1, 3])
def test_torch_threads_of_a_worker(count: int, threads: int) -> None:
    """A worker's thread count does not depend on the caller's, and the caller's does not change."""
    seen = []
    for number in WorkerPool(count, threads).map(
        lambda _: torch.get_num_threads(), range(6), prefetch=2
    ):
        seen.append(number)
        assert torch.get_num_threads() == 2
    assert seen == [threads] * 6
    fresh: list[int] = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [2]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_in_a_worker_takes_its_threads(count: int, threads: int) -> None:
    """With one torch thread the process spends only the CPU time that the workers' threads do."""
    a = torch.rand(700, 700)

    def work(_: int) -> float:
        start = time.thread_time()
        for _ in range(10):
            a @ a
        return time.thread_time() - start

    workers = WorkerPool(count, threads)
    list(workers.map(work, [0, 1], prefetch=2))
    start = time.process_time()
    spent = [s for s in workers.map(work, [0, 1], prefetch=2) if isinstance(s, float)]
    ratio = (time.process_time() - start) / sum(spent)
    assert (ratio > 1.5) is (threads > 1)


@pytest.mark.parametrize("count", COUNTS)
def test_closing_early_waits_for_started_tasks(count: int) -> None:
    """After closing, no task runs that could change the results."""
    running: list[int] = []

    def work(item: int) -> int:
        running.append(item)
        time.sleep(0.01)
        running.remove(item)
        return item

    results = WorkerPool(count).map(work, range(9), prefetch=4)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert running == []


def test_a_worker_inside_a_worker() -> None:
    """It works in the thread it is in, so that workers never wait for each other."""

    def outer(_: int) -> list[object]:
        inner = WorkerPool(2).map(lambda _: threading.current_thread().name, range(3), prefetch=2)
        return [threading.current_thread().name, *inner]

    for names in WorkerPool(2).map(outer, range(4), prefetch=4):
        assert isinstance(names, list)
        assert len(set(names)) == 1


def test_a_failure_gives_the_threads_back() -> None:
    """An exception restores the number of threads."""
    with pytest.raises(ValueError, match="inside"), use_torch_threads(1):
        raise ValueError("inside")
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_available_cores() -> None:
    """One worker where torch was given one thread; never more than cores."""
    assert 1 <= count_available_cores() <= len(os.sched_getaffinity(0))
    code = "from client_app.training import workers; print(workers.count_available_cores())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"


FORKED = """
import os, sys
from client_app.training.workers import WorkerPool
def names():
    return sorted(WorkerPool(2).map(lambda i: i + 1, range(4), prefetch=2))
assert names() == [1, 2, 3, 4]
pid = os.fork()
if pid == 0:
    assert names() == [1, 2, 3, 4]
    sys.stdout.write("child ")
    sys.stdout.flush()
    os._exit(0)
os.waitpid(pid, 0)
print("parent")
"""


@pytest.mark.slow
def test_fork_and_exit() -> None:
    """A forked process starts new threads, and idle workers let a process end."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "child parent\n"


FAULTS = """
import resource, sys, torch
from client_app.training.workers import retain_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        [torch.zeros(2**20) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
assert retain_freed_memory()
faults()
print(before, faults())
"""
glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="the C library is not glibc"
)


@glibc
@pytest.mark.slow
def test_pages_are_taken_once() -> None:
    """Tensors of 4 MB that come and go cost page faults each time before, and none afterwards."""
    # glibc's first threshold, which it would raise by itself, at times: with what the heap held.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True, env=env
    )
    before, after = map(int, done.stdout.split())
    assert before > 10_000
    assert after < before / 20


class Musl:
    """A C library without glibc's functions."""


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no glibc, or another system, nothing is called."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Musl())
    assert retain_freed_memory.__wrapped__() is False
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert retain_freed_memory.__wrapped__() is False


@pytest.mark.parametrize("keeps", [True, False])
def test_the_setting(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node retains freed memory unless client.retain_memory is false."""
    calls: list[Any] = []
    monkeypatch.setattr(node, "retain_freed_memory", lambda: calls.append(1))
    words = "data=synth data.num_clients=2 data.num_priority=1 client.device=cpu"
    overrides = f"{words} client.retain_memory={str(keeps).lower()}"
    Node(compose_settings("custom", overrides).settings)
    assert compose_settings("custom", words).settings.client.retain_memory
    assert calls == [1] * keeps
