"""Ctrl-C and kill, as the end of a job: alone or in a process of a sweep."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_job_is_running = False
_marked_as_worker = False
_stop_requested = False  # in a process of a sweep: no further job begins in it


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Let a polite kill end a job as Ctrl-C does; it is also how a sweep ends its processes.

    Slurm kills politely what it preempts, and there submitit answers. Signals reach the main thread
    alone, so a job in another one is not interruptible.
    """
    global _job_is_running  # noqa: PLW0603 - of the process, like the handlers
    in_main_thread = threading.current_thread() is threading.main_thread()
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" or not in_main_thread:
        yield
        return
    before = signal.signal(signal.SIGTERM, _handle_sigterm)
    _job_is_running = True
    try:
        yield
    finally:
        _job_is_running = False
        if not is_worker():
            signal.signal(signal.SIGTERM, before)


def _handle_sigterm(_number: int, _frame: FrameType | None) -> None:
    global _stop_requested  # noqa: PLW0603
    _stop_requested = is_worker()
    if _job_is_running:
        raise KeyboardInterrupt


def should_stop() -> bool:
    """Say whether this process of a sweep is to begin no further job."""
    return _stop_requested


def mark_as_worker() -> None:
    """Make this a process of a sweep; those of joblib are known by their names."""
    global _marked_as_worker  # noqa: PLW0603
    _marked_as_worker = True


def is_worker() -> bool:
    """Say whether this is a process of a sweep."""
    return _marked_as_worker or multiprocessing.current_process().name != "MainProcess"
