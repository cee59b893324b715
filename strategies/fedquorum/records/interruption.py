"""Ctrl-C and kill, put off where they would tear something."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and kill, so that what belongs together is written together.

    An exception in the midst of it could also leave a lock of a library held for ever. Signals
    reach the main thread only; in others there is nothing to put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in arrived[:1]:
            signal.raise_signal(first)
