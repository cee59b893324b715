"""What a study reads from the records of its runs."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fedquorum.errors import RunError
from fedquorum.records.reader import load_run, read_parts

from server_app.study.answer import Curve, SeedRun
from server_app.sweep_jobs import complete_rounds

GROUPS = ("all", "priority", "non_priority", "unseen")
SPREAD = ("average", "worst10", "best10", "gini", "std", "jain")


def curve_of(directory: Path, part: str, score: str) -> Curve:
    """Return the score after every round in which it was measured; it may be of an unfinished run.

    Parameters
    ----------
    directory : Path
        The run.
    part : {"validation", "test"}
        Whose scores.
    score : str
        A number below ``part`` in ``rounds.jsonl``, by dotted key.
    """
    found = (
        (int(record["round"]), _number(record, f"{part}.{score}"))
        for record in complete_rounds(directory)
    )
    return tuple((number, value) for number, value in found if value is not None)


def _number(record: Mapping[str, Any], key: str) -> float | None:
    value: Any = record
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def seed_run(directory: Path, root: Path, score: str, metric: str, command: str) -> SeedRun:
    """Return what a completed run came to, on test parts.

    Parameters
    ----------
    directory : Path
        The run.
    root : Path
        The study's folder.
    score : str
        What is compared, below ``test``.
    metric : str
        What clients measure.
    command : str
        What repeats the run.

    Raises
    ------
    RunError
        If the score is not defined after the last round.
    """
    curve = curve_of(directory, "test", score)
    run = load_run(directory)
    if not curve or curve[-1][0] != len(run.rounds):
        raise RunError(f"test.{score} is not defined after the last round (seed {run.seed})")
    last = complete_rounds(directory)[-1]
    measures = {
        **{group: _number(last, f"test.{group}.{metric}") for group in GROUPS},
        **{name: _number(last, f"test.all.{name}") for name in SPREAD},
    }
    return SeedRun(
        seed=run.seed,
        folder=directory.relative_to(root).as_posix(),
        command=command,
        score=curve[-1][1],
        measures={name: value for name, value in measures.items() if value is not None},
        clients=_clients(directory, metric),
        curve=curve,
        megabytes=sum(record.bytes_down + record.bytes_up for record in run.rounds) / 1e6,
        seconds=math.fsum(record.seconds for record in run.rounds),
    )


_COLUMNS = {"loss": "test_loss", "accuracy": "test_accuracy"}


def _clients(directory: Path, metric: str) -> dict[int, float]:
    """Return the metric on each client's test part after the last round, where it is defined."""
    column = _COLUMNS.get(metric, "test_metric")
    table = read_parts(directory / "evaluations", ["round", "client", column])
    values = table[column].to_numpy().astype(np.float64)
    last = table["round"].to_numpy() == table["round"].to_numpy().max(initial=0)
    defined = last & ~np.isnan(values)
    clients = table["client"].to_numpy()[defined].tolist()
    return dict(zip(clients, values[defined].tolist(), strict=True))


def run_command(words: Sequence[str]) -> str:
    """Return what repeats a run."""
    return shlex.join(["fedquorum", *words])


def rounds_to(curve: Curve, target: float, *, higher_is_better: bool) -> int | None:
    """Return after which round a curve first is as good as ``target``; None if it never is."""
    sign = 1.0 if higher_is_better else -1.0
    return next((number for number, score in curve if sign * (score - target) >= 0), None)


def mean_by_client(runs: Sequence[SeedRun]) -> dict[int, float]:
    """Return each client's metric, mean over the runs that measured it."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for client, value in run.clients.items():
            found.setdefault(client, []).append(value)
    return {client: math.fsum(values) / len(values) for client, values in found.items()}
