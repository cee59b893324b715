"""Log each distinct failure once."""

import logging

import pytest
from fedquorum.errors import DataError

from client_app.training.failure_log import FailureLog


@pytest.fixture(autouse=True)
def flower_log_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass Flower's log on to ``caplog``."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)


def test_a_failure_is_logged_once_regardless_of_its_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every client of a broken model fails, each with its own id and perhaps its own shape."""
    log = FailureLog()
    for client in range(3):
        text, error = f"Client {client} failed", RuntimeError(f"shape {client}")
        log.log(logging.ERROR, text, error)
    log.log(logging.ERROR, "Client 0 failed", KeyError("x"))
    log.log(logging.ERROR, "The message failed", RuntimeError("shape 0"))
    assert caplog.messages == ["Client 0 failed", "Client 0 failed", "The message failed"]
    assert all(entry.exc_info for entry in caplog.records)


def test_only_an_unexpected_error_has_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    """A user can correct an error of ours; what a warning is about is tried again."""
    log = FailureLog()
    log.log(logging.ERROR, "Client 1 failed", DataError("data.path must be a file"))
    log.log(logging.WARNING, "Clients train one after the other", RuntimeError("two\nlines"))
    assert caplog.messages == [
        "Client 1 failed: data.path must be a file",
        "Clients train one after the other: RuntimeError: two lines",
    ]
    assert not any(entry.exc_info for entry in caplog.records)


def test_another_run_logs_it_again(caplog: pytest.LogCaptureFixture) -> None:
    """The process of a node may serve several runs, and a notebook may start several."""
    log, error = FailureLog(), RuntimeError("x")
    for run_id in (7, 7, 8):
        log.run_id = run_id
        log.log(logging.ERROR, "Client 0 failed", error)
    log.clear()
    log.log(logging.ERROR, "Client 0 failed", error)
    assert len(caplog.messages) == 3
