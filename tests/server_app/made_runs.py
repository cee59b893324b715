"""Directories as runs leave them: written by hand for the report, or by short real runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conf.compose import compose_words
from server_app.job import run_in_process
from server_app.records.tables import CLIENTS_SCHEMA, EVALUATIONS_SCHEMA, POPULATION_SCHEMA
from server_app.report.runs import Run, load_run, read_runs

SMALL = (
    "rounds=5",
    "data.num_clients=8",
    "data.num_priority=4",
    "data.samples_per_client=30",
    "data.sizes=equal",
    "client.local_epochs=1",
)


def line(number: int, **changes: Any) -> dict[str, Any]:
    """Return a line of rounds.jsonl, as it is read by ``json``."""
    fields = {
        "round": number,
        "epsilon": 0.2,
        "global_loss": 1.0,
        "global_accuracy": 0.5,
        "asked": 4,
        "trained": 3,
        "silent": 1,
        "unavailable": 0,
        "rejected": 0,
        "failed": 0,
        "admitted": 3,
        "bytes_down": 10,
        "bytes_up": 20,
        "seconds": 0.1,
        "inclusion_mass": 0.25,
        "theta": 0.8,
        "test": accuracy(0.5),
    }
    return fields | changes


def accuracy(priority: float | None, everyone: float | None = 0.25) -> dict[str, Any]:
    """Return the field ``test``; the worst client is half as accurate as all together."""
    return {
        group: None if value is None else {"loss": 1.0, "accuracy": value, "worst": value / 2}
        for group, value in (
            ("priority", priority),
            ("non_priority", everyone),
            ("all", everyone),
        )
    }


def make_run(
    directory: Path,
    lines: Sequence[Mapping[str, Any]],
    *,
    seed: int = 1,
    settings: str = "client:\n  lr: 0.1\n",
    **manifest: Any,
) -> Path:
    """Write a run without tables."""
    directory.mkdir(parents=True)
    fields = {
        "status": "completed",
        "experiment": "fedalign/synth_low",
        "strategy": "fedalign",
        "started": "2026-01-01T00:00:00+00:00",
        "overrides": [],
    }
    (directory / "manifest.json").write_text(json.dumps({**fields, **manifest, "seed": seed}))
    (directory / "config.yaml").write_text(f"{settings}seed: {seed}\n")
    (directory / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return directory


def load_all(directory: Path) -> list[Run]:
    """Return all runs below a folder; none may be damaged."""
    runs, problems = read_runs([directory])
    assert problems == ()
    return list(runs)


def real_run(directory: Path, *words: str) -> Run:
    """Train for a moment, in this process."""
    run_in_process(compose_words((*SMALL, *words)), str(directory))
    return load_run(directory)


SCHEMAS = {"clients": CLIENTS_SCHEMA, "evaluations": EVALUATIONS_SCHEMA}


def write_table(run: Path, folder: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a run's table with these rows and no others; columns not given are null."""
    schema = SCHEMAS[folder]
    (run / folder).mkdir(exist_ok=True)
    for part in (run / folder).glob("*.parquet"):
        part.unlink()
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    pq.write_table(pa.Table.from_pylist(full, schema=schema), run / folder / "part-00000.parquet")


def write_population(run: Path, rates: Sequence[float], priority: Sequence[bool]) -> None:
    """Write who the clients of a run are."""
    rows = [
        {"client": k, "priority": p, "priority_weight": float(p), "participation_rate": rate}
        for k, (rate, p) in enumerate(zip(rates, priority, strict=True))
    ]
    table = pa.Table.from_pylist(rows, schema=POPULATION_SCHEMA)
    pq.write_table(table, run / "population.parquet")


def change_table(run: Path, folder: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the rows of a run's table in place."""
    rows = pq.read_table(run / folder).to_pylist()
    change(rows)
    write_table(run, folder, rows)


def change_round(run: Path, number: int, **changes: Any) -> None:
    """Change a line of a run's rounds.jsonl."""
    path = run / "rounds.jsonl"
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | changes)
    path.write_text("\n".join(lines) + "\n")
