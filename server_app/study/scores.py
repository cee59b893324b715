"""Read scores from the records of a study's runs."""

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.audit.replay import read_audit_input
from fedquorum.errors import RunError
from fedquorum.metrics.calibration import ECE
from fedquorum.records.reader import Run, load_run, read_client_names, read_dataset
from fedquorum.records.round_record import summarize_evaluations
from fedquorum.records.tables import get_metric_column
from fedquorum.rules.decisions import EPOCH_SETTINGS, PERSONAL_MODELS, ClientEvaluation
from fedquorum.rules.metrics import AVERAGE_PRECISION

from server_app.study.result import ScoreCurve, SeedRun
from server_app.sweeps.jobs import read_complete_rounds

SCORE_GROUPS = ("all", "priority", "non_priority", "held_out", *PERSONAL_MODELS)
R2 = "r2"
COMPANIONS = (R2, AVERAGE_PRECISION, ECE)
"""Metrics that the records have beside the clients' metric."""
COVERAGE_NAMES = ("evaluated", "left_out")
"""The numbers of the score's clients, and of those without the metric."""

PER_ROW_METRICS = ("accuracy", "top5")
"""The metrics that are fractions of a client's test rows."""

DISPERSION_NAMES = ("average", "worst10", "best10", "gini", "std", "jain")


def read_curve(directory: Path, split: str, score: str) -> ScoreCurve:
    """Read the score after every evaluated round of a run, which may be unfinished.

    Parameters
    ----------
    directory : Path
        The run.
    split : {"validation", "test"}
    score : str
        A number below ``split`` in ``rounds.jsonl``, by dotted key.
    """
    return _build_curve(read_complete_rounds(directory), f"{split}.{score}")


def _build_curve(records: Sequence[Mapping[str, Any]], key: str) -> ScoreCurve:
    found = ((int(record["round"]), get_number(record, key)) for record in records)
    return tuple((number, value) for number, value in found if value is not None)


def get_number(record: Mapping[str, Any], key: str) -> float | None:
    """Return a number of a round's record by its dotted key, or None."""
    value: Any = record
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def read_seed_run(
    directory: Path,
    root: Path,
    score: str,
    metric: str,
    command: str,
    *,
    included_clients: Collection[int] | None = None,
) -> SeedRun:
    """Read the scores of a completed run on test splits.

    Parameters
    ----------
    directory : Path
        The run.
    root : Path
        The study's folder.
    score : str
        The compared number by dotted key below ``test``.
    metric : str
        The clients' metric.
    command : str
        The command that repeats the run.
    included_clients : collection of int, optional
        The clients that count; None for all evaluated clients.

    Raises
    ------
    RunError
        If the score is undefined after the last round.
    """
    all_records = read_complete_rounds(directory)
    records = (
        all_records
        if included_clients is None
        else [*_filter_records(directory, included_clients, metric)]
    )
    curve = _build_curve(records, f"test.{score}")
    run = load_run(directory)
    if not curve or curve[-1][0] != len(run.rounds):
        raise RunError(explain_missing_score(directory, "test", score, metric))
    _, measures = read_record_scores(records[-1], score, metric)
    return SeedRun(
        seed=run.seed,
        folder=directory.relative_to(root).as_posix(),
        command=command,
        score=curve[-1][1],
        measures=measures,
        clients=_read_client_metrics(directory, metric, included_clients),
        curve=curve,
        megabytes=_compute_megabytes(run),
        duration_seconds=math.fsum(record.duration_seconds for record in run.rounds),
    )


def read_record_scores(
    record: Mapping[str, Any], score: str, metric: str
) -> tuple[float | None, dict[str, float]]:
    """Return the score on test splits in a round's record, and the other numbers of a study."""
    group = score.partition(".")[0]
    measures = {
        **{name: get_number(record, f"test.{name}.{metric}") for name in SCORE_GROUPS},
        **{name: get_number(record, f"test.all.{name}") for name in DISPERSION_NAMES},
        **{
            name: get_number(record, f"test.{group}.{name}")
            for name in (*COVERAGE_NAMES, *COMPANIONS)
        },
    }
    defined = {name: value for name, value in measures.items() if value is not None}
    return get_number(record, f"test.{score}"), defined


def _compute_megabytes(run: Run) -> float:
    """Return the size of a run's messages, without those for personal models.

    The last round has these as well, so it counts as the last one before it with test metrics.
    """
    sizes = [record.bytes_down + record.bytes_up for record in run.rounds]
    if any(run.settings.get(key, 0) != 0 for key in EPOCH_SETTINGS.values()):
        tested = [size for size, record in zip(sizes[:-1], run.rounds, strict=False) if record.test]
        sizes[-1:] = tested[-1:] or sizes[-1:]
    return sum(sizes) / 1e6


def _filter_records(
    directory: Path, clients: Collection[int], metric: str
) -> Iterator[Mapping[str, Any]]:
    """Yield round records restricted to these clients."""
    audit_input = read_audit_input(directory)
    for record in audit_input.run.rounds:
        found = [one for one in audit_input.get_evaluations(record.round) if one.client in clients]
        yield {
            "round": record.round,
            "test": summarize_evaluations(found, metric, all_evaluated=True),
        }


def explain_missing_score(directory: Path, split: str, score: str, metric: str) -> str:
    """Return the reason why a run has no score on a split after its last round so far."""
    if _read_client_metrics(directory, metric, None, split):
        return f"{split}.{score} is not defined after the last round"
    for client, reason in read_rejection_reasons(directory).items():
        return f"no client reports {metric} on its {split} split; client {client}: {reason}"
    return (
        f"evaluation.metric must be one that clients report on their {split} splits, got {metric}, "
        "which no client does (withhold in a device's node.yaml keeps it there)"
    )


def read_rejection_reasons(directory: Path) -> dict[str, str]:
    """Return the reasons of clients that were unavailable in the last round, by their names."""
    names = read_client_names(directory)
    table = read_dataset(directory / "clients", ["round", "client", "status", "reason"])
    rows = table.to_pylist()
    last = max((row["round"] for row in rows), default=0)
    return {
        names.format(row["client"]): row["reason"]
        for row in rows
        if row["round"] == last and row["status"] == "unavailable" and row["reason"]
    }


def _read_client_metrics(
    directory: Path, metric: str, included_clients: Collection[int] | None, split: str = "test"
) -> dict[int, float]:
    """Read each client's metric on a split after the last round, without undefined ones."""
    column = get_metric_column(split, metric)
    table = read_dataset(directory / "evaluations", ["round", "client", column])
    values = table[column].to_numpy().astype(np.float64)
    last = table["round"].to_numpy() == table["round"].to_numpy().max(initial=0)
    defined = last & ~np.isnan(values)
    found = zip(table["client"].to_numpy()[defined], values[defined], strict=True)
    return {
        int(k): float(value)
        for k, value in found
        if included_clients is None or k in included_clients
    }


def find_diverged_clients(directory: Path) -> frozenset[int]:
    """Return the clients whose loss on test splits is reported, but not finite, in the end.

    Such a client's metric is undefined because of the method, and not because of its data.
    """
    column = get_metric_column("test", "loss")
    rows = read_dataset(directory / "evaluations", ["round", "client", column]).to_pylist()
    last = max((row["round"] for row in rows), default=0)
    reported = [row for row in rows if row["round"] == last and row[column] is not None]
    return frozenset(row["client"] for row in reported if not math.isfinite(row[column]))


def get_test_metric(evaluation: ClientEvaluation, metric: str) -> float:
    """Return the metric on a client's test split."""
    name = metric if metric in ("loss", "accuracy") else "metric"
    return float(getattr(evaluation, f"test_{name}"))


def replace_metric(one: ClientEvaluation, metric: str, value: float) -> ClientEvaluation:
    """Return an evaluation with this metric on its test split instead of the model's."""
    if metric == "accuracy":
        return replace(one, test_accuracy=value)
    return replace(one, test_loss=value) if metric == "loss" else replace(one, test_metric=value)


def read_tested_clients(directory: Path) -> list[ClientEvaluation]:
    """Return the last evaluations of a run, of the clients that have test rows."""
    run = read_audit_input(directory)
    found = run.get_evaluations(run.run.rounds[-1].round)
    return [one for one in found if one.test_num_examples > 0]


def compute_score(evaluations: Sequence[ClientEvaluation], score: str, metric: str) -> float:
    """Return a number below ``test``, by dotted key, of these evaluations; NaN if undefined."""
    summary = summarize_evaluations(evaluations, metric, all_evaluated=True)
    found = get_number({"test": summary}, f"test.{score}")
    return math.nan if found is None else found


def format_run_command(overrides: Sequence[str]) -> str:
    """Return the command that repeats a run."""
    return shlex.join(["fedquorum", *overrides])


def find_round_reaching(curve: ScoreCurve, target: float, *, higher_is_better: bool) -> int | None:
    """Return the first round at which a curve reaches ``target``, or None."""
    sign = 1.0 if higher_is_better else -1.0
    return next((number for number, score in curve if sign * (score - target) >= 0), None)


def compute_changed_fractions(
    runs: Sequence[SeedRun], baseline_runs: Sequence[SeedRun], sign: float, margin: float
) -> tuple[float, float]:
    """Return the fractions of clients worse and better off, within a seed, mean over seeds.

    Where each seed divides the data anew, an id is another client in every seed: the mean over
    seeds of an id's metric would say nothing of any client.

    Parameters
    ----------
    runs, baseline_runs : sequence of SeedRun
        The runs of a method and of the baseline, with the same seeds.
    sign : float
        -1 if a lower metric is better.
    margin : float
        The largest change that counts as none, in the metric's unit.

    Returns
    -------
    worse, better : float
        NaN if no client has the metric.
    """
    found = []
    for run, baseline in zip(runs, baseline_runs, strict=False):
        shared = run.clients.keys() & baseline.clients.keys()
        gains = np.array([sign * (run.clients[k] - baseline.clients[k]) for k in shared])
        if len(gains):
            found.append(((gains < -margin).mean(), (gains > margin).mean()))
    worse, better = np.mean(found, axis=0) if found else (math.nan, math.nan)
    return float(worse), float(better)
