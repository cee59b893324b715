"""Defer Ctrl-C, kill and a scheduler's signals while related records are written."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNAL_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2")
DEFERRED_SIGNALS = tuple(signal.Signals[name] for name in _SIGNAL_NAMES if hasattr(signal, name))


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay signals, so that related records are written together.

    An exception in between could also leave a library's lock held forever. Signals reach the main
    thread only; in other threads there is nothing to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in DEFERRED_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in arrived[:1]:
            handler = before[signal.Signals(first)]
            if callable(handler):  # the signal itself would wait if it is blocked
                handler(first, None)
            else:
                signal.raise_signal(first)
