"""Start runs in this process, and read their directories."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fedquorum import NativeProtocol

from conf.compose import compose_overrides
from server_app.runs import build
from server_app.runs.job import run_in_process

COUNTING = (
    "strategy=fedau",
    "response_time=lognormal",
    "engine.late_replies=count",
    "engine.quorum=2",
    "engine.concurrency=6",
)
"""The overrides of a run in which late updates count."""

MASKS = (
    *("secure_aggregation=masks", "data=synth", "data.num_clients=5", "data.num_priority=2"),
    *("data.sizes=equal", "data.samples_per_client=30", "client.local_epochs=1"),
)
"""The overrides of a run with masks, beside its strategy."""

MASKED_STRATEGIES = ("fedau", "average_all", "known_statistics")
"""One strategy for each kind of weights: by what was counted, fixed, and by given rates."""


def sum_as_with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all nodes of runs without masks send sums, in bins that are fixed before training."""

    def build_protocol(*args: Any, **options: Any) -> NativeProtocol:
        return replace(NativeProtocol(*args, **options), requires_sums=True, fixed_bins=True)

    monkeypatch.setattr(build, "NativeProtocol", build_protocol)


def make_client_overrides(count: int, priority: int, samples: int = 30) -> tuple[str, ...]:
    """Return the overrides of ``count`` clients with little data, some of them with priority."""
    return (
        f"data.num_clients={count}",
        f"data.num_priority={priority}",
        "data.sizes=equal",
        f"data.samples_per_client={samples}",
        "client.local_epochs=1",
    )


def run_here(directory: Path, *overrides: str) -> Path:
    """Run a job in this process with the overrides of a command ``fedquorum``."""
    run_in_process(compose_overrides(overrides), str(directory))
    return directory


def read_rounds(run: Path) -> list[dict[str, Any]]:
    """Return the lines of rounds.jsonl without durations and traffic."""
    rounds = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for record in rounds:
        for key in ("duration_seconds", "bytes_down", "bytes_up"):
            assert record.pop(key) > 0
    return rounds


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of rounds.jsonl without the seconds."""
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "duration_seconds"} for line in lines]


def read_rows(run: Path, table: str = "clients") -> list[dict[str, Any]]:
    """Return the rows of a run's table, by default of its clients."""
    rows: list[dict[str, Any]] = pq.read_table(run / table).to_pylist()
    return rows


def assert_same_results(one: Path, other: Path) -> None:
    """Compare the rounds, the tables and the model of two runs, to the last bit."""
    assert read_lines(one) == read_lines(other)
    for table in ("clients", "evaluations", "population.parquet"):
        assert pq.read_table(one / table).equals(pq.read_table(other / table)), table
    models = [
        {path.name: path.read_bytes() for path in run.glob("*.safetensors")} for run in (one, other)
    ]
    assert "model.safetensors" in models[0]
    assert models[0] == models[1]
