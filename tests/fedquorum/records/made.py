"""Build records of runs, with the library's writer or by hand."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fedquorum.records.callback import FinishedRound
from fedquorum.records.columns import build_schema
from fedquorum.records.provenance import RunInfo
from fedquorum.records.reader import FORMAT_VERSION, Run, read_runs
from fedquorum.records.round_record import RoundRecord, build_round_record
from fedquorum.records.tables import (
    CLIENTS_SCHEMA,
    EVALUATIONS_SCHEMA,
    POPULATION_SCHEMA,
    list_evaluation_columns,
)
from fedquorum.records.writer import RunWriter
from fedquorum.rules.decisions import (
    PERSONAL_MODELS,
    ClientDecision,
    ClientEvaluation,
    RoundReport,
)
from fedquorum.rules.metrics import AVERAGE_PRECISION
from fedquorum.rules.types import Objective, RoundPlan

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
"""The folder of a module with a user's own rule."""

NAN = math.nan
CONFIG = "client:\n  lr: 0.05\nseed: 7\n"
IDENTITY = RunInfo(
    experiment="fedalign/synth_low",
    overrides=("seed=7", "client.lr=0.05"),
    strategy="fedalign",
    seed=7,
    engine="in-process",
    device="cpu",
    rounds=2,
    source="/home/user/code",
    commit="a" * 40,
    packages={"numpy": "2.0", "missing": None},
    arithmetic={"version": 2},
)


def open_records(directory: Path, **options: Any) -> RunWriter:
    """Return the writer of a run with default facts."""
    return RunWriter(directory, IDENTITY, CONFIG, **options)


def report(server_round: int, epsilon: float | None = 0.2) -> RoundReport:
    """Return a round in which one client trained, one declined and one was rejected."""
    return RoundReport(
        server_round,
        RoundPlan((0, 1, 2), epsilon),
        Objective(1.25, 0.5),
        (
            ClientDecision(
                0, True, "trained", None, 10, 1.0, 0.5, participation_correction=3.0, weight=0.75
            ),
            ClientDecision(1, False, "declined", participation_correction=2.0),
            ClientDecision(2, False, "rejected", "too good", 5, 0.1, 0.9),
        ),
        inclusion_mass=0.25,
        omega={0: 3.0, 1: 2.0},
    )


EVALUATIONS = (
    ClientEvaluation(0, 1.0, 10, 1.0, 0.5, 4, 2.0, 0.75),
    ClientEvaluation(1, 0.0, 30, NAN, NAN, 2, 4.0, 0.25),
)


def add(
    records: RunWriter,
    number: int,
    epsilon: float | None = 0.2,
    initial: Sequence[ClientEvaluation] = (),
) -> None:
    """Write the round of ``report``, with evaluations of the model before it."""
    records.end_round(make_finished_round(number, epsilon, initial))


def make_finished_round(
    number: int, epsilon: float | None = 0.2, initial: Sequence[ClientEvaluation] = ()
) -> FinishedRound:
    """Return the round of ``report``, with evaluations of the model before it."""
    round_report = report(number, epsilon)
    rates = np.array([0.5, 0.25, 0.1])
    record = make_round_record(
        round_report,
        None,
        EVALUATIONS,
        bytes_down=5,
        bytes_up=7,
        seconds=0.5,
        state_bytes=24,
        get_rates=lambda t: rates,
    )
    return FinishedRound(record, round_report, EVALUATIONS, initial)


def make_round_record(
    report: RoundReport,
    previous: RoundRecord | None = None,
    evaluations: Sequence[ClientEvaluation] = (),
    **options: Any,
) -> RoundRecord:
    """Return the record of a round with defaults for everything else."""
    fields: dict[str, Any] = {
        **dict.fromkeys(("bytes_down", "bytes_up", "seconds", "state_bytes"), 0),
        "get_rates": None,
        "metric": "accuracy",
        "all_evaluated": True,
    }
    return build_round_record(report, evaluations, previous=previous, **{**fields, **options})


# --- by hand ----------------------------------------------------------------------------------


def make_round_line(number: int, **changes: Any) -> dict[str, Any]:
    """Return a line of rounds.jsonl as parsed JSON."""
    fields: dict[str, Any] = {
        "round": number,
        "epsilon": 0.2,
        "global_loss": 1.0,
        "global_accuracy": 0.5,
        "selected": 4,
        "trained": 3,
        "declined": 1,
        "unavailable": 0,
        "rejected": 0,
        "failed": 0,
        "late": 0,
        "busy": 0,
        "admitted": 3,
        "bytes_down": 10,
        "bytes_up": 20,
        "duration_seconds": 0.1,
        "inclusion_mass": 0.25,
        "theta": 0.8,
        "state_bytes": 0,
        "weight_error": None,
        "decision_loss": None,
        "decision_loss_sum": None,
        "kl_to_data": None,
        "priority_data": None,
        "unregistered": [],
        "stale_clients": [],
        "unmeasured": [],
        "disconnected": [],
        "late_replies": [],
        "simulated_seconds": None,
        "test": make_accuracy(0.5),
        "validation": None,
        "refused": None,
        "update_norm": None,
    }
    return fields | changes


def make_accuracy(priority: float | None, everyone: float | None = 0.25) -> dict[str, Any]:
    """Return the field ``test``; the worst client has half the mean accuracy."""
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
        "format": FORMAT_VERSION,
        "status": "completed",
        "experiment": "fedalign/synth_low",
        "strategy": "fedalign",
        "started": "2026-01-01T00:00:00+00:00",
        "overrides": [],
        "rounds": 0,
        "resumed": [],
    }
    (directory / "manifest.json").write_text(json.dumps({**fields, **manifest, "seed": seed}))
    (directory / "config.yaml").write_text(f"{settings}seed: {seed}\n")
    (directory / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def add_rounds(run: Path, *lines: Mapping[str, Any], torn: str = "") -> None:
    """Append lines to a run's rounds.jsonl, the last of which may be incomplete."""
    with (run / "rounds.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + torn)


def load_all(directory: Path) -> list[Run]:
    """Return all runs below a folder, none of which may be damaged."""
    runs, problems = read_runs([directory])
    assert problems == ()
    return list(runs)


SCHEMAS = {"clients": CLIENTS_SCHEMA, "evaluations": EVALUATIONS_SCHEMA}


def write_table(run: Path, folder: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a run's table with exactly these rows; missing columns are null."""
    schema = SCHEMAS[folder]
    if folder == "evaluations":
        models = [model for model in PERSONAL_MODELS if rows and f"{model}_epochs" in rows[0]]
        has_precision = bool(rows) and any(AVERAGE_PRECISION in name for name in rows[0])
        schema = build_schema(list_evaluation_columns(models, has_average_precision=has_precision))
    (run / folder).mkdir(exist_ok=True)
    for path in (run / folder).glob("*.parquet"):
        path.unlink()
    complete_rows = [
        {name: {"held_out": False, **row}.get(name) for name in schema.names} for row in rows
    ]
    pq.write_table(
        pa.Table.from_pylist(complete_rows, schema=schema), run / folder / "part-00000.parquet"
    )


def write_part(run: Path, number: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write one file of a run's table of clients and return its path; missing columns are null."""
    path = run / "clients" / f"part-{number:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    defaults: dict[str, Any] = {"priority": False, "status": "trained", "weight": 0.0}
    complete_rows = [
        {name: {**defaults, **row}.get(name) for name in CLIENTS_SCHEMA.names} for row in rows
    ]
    pq.write_table(pa.Table.from_pylist(complete_rows, schema=CLIENTS_SCHEMA), path)
    return path


def write_population(
    run: Path, rates: Sequence[float], priority: Sequence[bool], names: Sequence[str | None] = ()
) -> None:
    """Write the table of a run's clients."""
    blank = {**dict.fromkeys(POPULATION_SCHEMA.names), "held_out": False}
    rows = [
        {
            **blank,
            "client": k,
            "name": names[k] if names else None,
            "priority": p,
            "priority_weight": float(p),
            "participation_rate": rate,
        }
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
