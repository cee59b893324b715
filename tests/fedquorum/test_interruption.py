"""Tests that Ctrl-C, kill and a scheduler's signals are deferred."""

import _thread
import signal
import threading

import pytest
from fedquorum.io import defer_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_is_deferred_to_the_end_of_the_block(number: signal.Signals) -> None:
    """The block completes; then the signal has its usual effect."""
    events: list[str] = []

    def raise_interrupt(_number: int, _frame: object) -> None:
        events.append("interrupted")
        raise KeyboardInterrupt

    def write() -> None:
        with defer_signals():
            signal.raise_signal(number)
            signal.raise_signal(number)
            events.append("written")
        events.append("not reached")

    before = signal.signal(number, raise_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert signal.getsignal(number) is raise_interrupt
    finally:
        signal.signal(number, before)
    assert events == ["written", "interrupted"]


def test_an_interrupt_is_deferred_even_if_its_signal_is_blocked() -> None:
    """In Ray's processes, Python raises an interrupt without the signal."""

    def send_interrupt() -> None:
        with defer_signals():
            _thread.interrupt_main()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            send_interrupt()
        assert signal.sigpending() == set()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_other_threads_defer_nothing() -> None:
    """Flower runs a ServerApp in another thread, where no signal arrives."""
    done: list[bool] = []

    def write() -> None:
        with defer_signals():
            done.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert done == [True]


def test_an_ignored_signal_stays_ignored() -> None:
    """Nothing happens after the block, as for a scheduler's signal without a handler."""
    done: list[bool] = []
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with defer_signals():
            signal.raise_signal(signal.SIGUSR1)
            done.append(True)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == [True]
