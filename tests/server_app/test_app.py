"""Test Flower's log while the ServerApp runs in a process of Flower."""

import logging
from logging import INFO, WARNING
from typing import Any, cast

import pytest
from flwr.app import Context, RecordDict, UserConfig
from flwr.common.logger import log
from flwr.serverapp import Grid

from server_app import app

STEPS = ("configure_train: Sampled 2 nodes (out of 2)", "aggregate_train: Received 2 results")
OTHERS = ("Waiting for 20 clients before round 1", "20 of 20 clients found on 2 nodes")


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
    config: UserConfig = {
        "experiment": "fedalign/synth_low",
        "overrides": "",
        "output-dir": "",
    }
    app.main(cast("Grid", object()), Context(0, 0, {}, RecordDict(), config))
    assert caplog.messages == [*OTHERS, STEPS[1]]
    log(INFO, STEPS[0])  # from another run in this process
    assert caplog.messages[-1] == STEPS[0]
