"""Test Flower's log while the ServerApp runs in a process of Flower."""

import logging
from logging import ERROR, INFO, WARNING
from typing import Any, cast

import pytest
from fedquorum.errors import DataError
from flwr.app import Context, RecordDict, UserConfig
from flwr.common.logger import log
from flwr.serverapp import Grid

from server_app import app

STEPS = ("configure_train: Sampled 2 nodes (out of 2)", "aggregate_train: Received 2 results")
OTHERS = ("Waiting for 20 clients before round 1", "20 of 20 clients found on 2 nodes")


def run_app() -> None:
    config: UserConfig = {
        "experiment": "fedalign/synth_low",
        "overrides": "",
        "output-dir": "",
    }
    app.main(cast("Grid", object()), Context(0, 0, {}, RecordDict(), config))


def test_flower_logs_no_line_for_a_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower logs no step during the run or after it, but warnings and other messages stay."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(INFO, "flwr")

    def run(*_: Any, **__: Any) -> None:
        for text in (*STEPS, *OTHERS):
            log(INFO, text)
        log(WARNING, STEPS[1])

    monkeypatch.setattr(app, "run_rounds", run)
    run_app()
    assert caplog.messages == [*OTHERS, STEPS[1]]
    log(INFO, STEPS[0])  # from another run in this process
    assert caplog.messages[-1] == STEPS[0]


@pytest.mark.parametrize("error", [DataError("data.path must be a file"), ValueError("a bug")])
def test_an_error_of_a_user_is_one_line(
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Flower logs neither its trace nor the exit code; of any other error it logs both."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    handlers: list[Any] = []
    monkeypatch.setattr(app, "add_exit_handler", handlers.append)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(app, "run_rounds", fail)
    with pytest.raises(type(error)) as caught:
        run_app()
    # As Flower does in its process of the app.
    log(ERROR, "%s raised an exception", "Simulation", exc_info=caught.value)
    log(ERROR, "Another exception", exc_info=KeyError())
    log(ERROR, "Exit Code: 700\n\nAn unhandled exception occurred")
    for handler in handlers:
        handler()
    shown = [text.split()[0] for text in caplog.messages]
    if isinstance(error, DataError):
        assert shown == ["Another"]
        assert capsys.readouterr().err == "fedquorum: data.path must be a file\n"
    else:
        assert shown == ["Simulation", "Another", "Exit"]
    log(ERROR, "Exit Code: 1")  # of another run in this process
    assert caplog.messages[-1] == "Exit Code: 1"
