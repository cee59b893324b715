"""Ctrl-C, kill and a scheduler's signals, put off where they would tear something."""

import _thread
import signal
import threading

import pytest
from fedquorum.records.interruption import defer_signals


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_an_interruption_is_put_off(how: signal.Signals) -> None:
    """What is inside is done to its end; then the signal has the effect that it has outside."""
    done: list[str] = []

    def interrupt(_number: int, _frame: object) -> None:
        done.append("interrupted")
        raise KeyboardInterrupt

    def work() -> None:
        with defer_signals():
            signal.raise_signal(how)
            signal.raise_signal(how)
            done.append("written")
        done.append("not reached")

    before = signal.signal(how, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(how) is interrupt
    finally:
        signal.signal(how, before)
    assert done == ["written", "interrupted"]


def test_an_interruption_is_put_off_where_its_signal_is_blocked() -> None:
    """As in processes of Ray, in which Python raises an interruption without the signal."""

    def work() -> None:
        with defer_signals():
            _thread.interrupt_main()

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.sigpending() == set()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_other_threads_have_nothing_to_put_off() -> None:
    """A ServerApp of Flower runs in another thread, where no signal arrives."""
    done: list[bool] = []

    def work() -> None:
        with defer_signals():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As one of a scheduler that the program does not know: nothing happens afterwards."""
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
