"""Memory kept in the process."""

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest

from client_app import node
from client_app.allocator import keep_memory
from client_app.node import Node
from conf import compose

FAULTS = """
import resource, sys, torch
from client_app.allocator import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        [torch.zeros(2**20) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
before = faults()
assert keep_memory()
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
    assert keep_memory.__wrapped__() is False
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert keep_memory.__wrapped__() is False


@pytest.mark.parametrize("keeps", [True, False])
def test_the_setting(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node keeps memory unless client.keep_memory is false."""
    calls: list[Any] = []
    monkeypatch.setattr(node, "keep_memory", lambda: calls.append(1))
    words = "data=synth data.num_clients=2 data.num_priority=1 client.device=cpu"
    overrides = f"{words} client.keep_memory={str(keeps).lower()}"
    Node(compose("custom", overrides).settings)
    assert compose("custom", words).settings.client.keep_memory
    assert calls == [1] * keeps
