"""Ctrl-C and kill, as the end of a job: alone or in a process of a sweep."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_busy = False
_of_a_sweep = False
_told_to_stop = False  # in a process of a sweep: no further job begins in it


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a polite kill end a job as Ctrl-C does; it is also how a sweep ends its processes.

    Slurm kills politely what it preempts, and there submitit answers. Signals reach the main thread
    alone, so a job in another one is not interruptible.
    """
    global _busy  # noqa: PLW0603 - of the process, like the handlers
    in_main_thread = threading.current_thread() is threading.main_thread()
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" or not in_main_thread:
        yield
        return
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    _busy = True
    try:
        yield
    finally:
        _busy = False
        if not in_worker():
            signal.signal(signal.SIGTERM, before)


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    global _told_to_stop  # noqa: PLW0603
    _told_to_stop = in_worker()
    if _busy:
        raise KeyboardInterrupt


def told_to_stop() -> bool:
    """Say whether this process of a sweep is to begin no further job."""
    return _told_to_stop


def become_worker() -> None:
    """Make this a process of a sweep; those of joblib are known by their names."""
    global _of_a_sweep  # noqa: PLW0603
    _of_a_sweep = True


def in_worker() -> bool:
    """Say whether this is a process of a sweep."""
    return _of_a_sweep or multiprocessing.current_process().name != "MainProcess"
