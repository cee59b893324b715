"""Run one job of a sweep, or a single run."""

import io
from pathlib import Path

import pytest
from flwr.common.logger import console_handler

from tests.builders_runs import make_client_overrides, run_here


def test_a_run_needs_no_stream_of_flowers_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notebooks and tests close the standard error that Flower's handler found at its import."""
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(console_handler, "stream", closed)
    run_here(tmp_path / "run", "rounds=1", *make_client_overrides(3, 1, samples=20))
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert console_handler.stream is closed
