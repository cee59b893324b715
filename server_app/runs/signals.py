"""Handle Ctrl-C and SIGTERM of a job, in a single run or in a worker process of a sweep."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_job_is_running = False
_marked_as_worker = False
_stop_requested = False  # in a worker process of a sweep: it starts no further job


@contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, by which a sweep also ends its worker processes.

    On Slurm, submitit handles the SIGTERM of a preemption. Only the main thread receives signals,
    so a job in another thread cannot be interrupted.
    """
    global _job_is_running  # noqa: PLW0603 - one state per process, like the handlers
    in_main_thread = threading.current_thread() is threading.main_thread()
    if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" or not in_main_thread:
        yield
        return
    previous = signal.signal(signal.SIGTERM, _handle_sigterm)
    _job_is_running = True
    try:
        yield
    finally:
        _job_is_running = False
        if not is_worker():
            signal.signal(signal.SIGTERM, previous)


def _handle_sigterm(_number: int, _frame: FrameType | None) -> None:
    global _stop_requested  # noqa: PLW0603
    _stop_requested = is_worker()
    if _job_is_running:
        raise KeyboardInterrupt


def should_stop() -> bool:
    """Say whether this worker process of a sweep must not start another job."""
    return _stop_requested


def mark_as_worker() -> None:
    """Mark this process as a worker of a sweep; joblib's workers are recognized by their names."""
    global _marked_as_worker  # noqa: PLW0603
    _marked_as_worker = True


def is_worker() -> bool:
    """Say whether this is a worker process of a sweep."""
    return _marked_as_worker or multiprocessing.current_process().name != "MainProcess"
