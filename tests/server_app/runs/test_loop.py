"""Test the rounds of a run as a whole."""

import json
from pathlib import Path

import pytest
from fedquorum.errors import RunError

from tests.builders_runs import run_here

SMALL = ("data=synth", "data.num_clients=4", "data.num_priority=2", "rounds=2", "strategy=fedavg")


def test_a_run_without_any_update_fails(tmp_path: Path) -> None:
    """A learning rate at which all models diverge leaves the initial one, which is no result."""
    with pytest.raises(RunError, match=r"^no client trained with success in round 1, .*client"):
        run_here(tmp_path / "run", *SMALL, "client.lr=1e38")
    assert json.loads((tmp_path / "run/manifest.json").read_text())["status"] == "failed"
