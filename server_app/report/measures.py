"""What a run comes to: one number for each name, of the model after its last evaluation."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from fedquorum.errors import RunError
from fedquorum.records.fairness import SPREAD
from fedquorum.records.reader import Run, read_parts
from fedquorum.records.round_record import TEST_GROUPS

from server_app.report.groups import Group, is_tested, metric_after_round

OF_CLIENTS = ("test", *SPREAD, "left_out")
"""Measured on the test parts of one of ``TEST_GROUPS``."""

OF_RUN = (
    "largest_training_loss",
    "global_loss",
    "admitted",
    "theta",
    "regret",
    "regret_bound",
    "seconds",
    "megabytes",
    "state_bytes",
    "simulated_seconds",
)


def final_measures(run: Run, clients: str) -> Mapping[str, float]:
    """Return what a run comes to, NaN where it was not measured or there is no such thing.

    ``test`` is the metric that ``evaluation.metric`` names, mean over the test parts by training
    data; average, worst, best, worst10, best10, gini, std and jain are its spread over clients
    (``fedquorum.records.fairness``), ``left_out`` how many have none. ``largest_training_loss``:
    see there. ``global_loss`` is F(w) of the last model broadcast, ``theta`` theta_T. ``regret``
    and ``regret_bound`` are AAggFF's. Per round, mean over rounds: ``admitted`` updates,
    ``seconds``, ``megabytes`` of messages both ways; ``state_bytes`` and ``simulated_seconds``
    after the last.

    Parameters
    ----------
    run : Run
        The run.
    clients : {"priority", "non_priority", "all"}
        Whose test parts.

    Raises
    ------
    RunError
        If the table of evaluations is damaged.
    """
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    tested = {"test": metric} | {name: name for name in (*SPREAD, "left_out")}
    mixing = run.summary.get("mixing") or {}
    last = run.rounds[-1] if run.rounds else None
    return {
        **{name: last_measured(run, clients, key) for name, key in tested.items()},
        "largest_training_loss": largest_training_loss(run),
        "global_loss": math.nan if last is None else last.global_loss,
        "admitted": _mean(r.admitted for r in run.rounds),
        "theta": _mean(r.theta for r in run.rounds if r.theta is not None),
        "regret": _number(mixing.get("regret")),
        "regret_bound": _number(mixing.get("regret_bound")),
        "seconds": _mean(r.seconds for r in run.rounds),
        "megabytes": _mean((r.bytes_down + r.bytes_up) / 1e6 for r in run.rounds),
        "state_bytes": math.nan if last is None else float(last.state_bytes),
        "simulated_seconds": math.nan if last is None else _number(last.simulated_seconds),
    }


def last_measured(run: Run, clients: str, name: str) -> float:
    """Return a test metric after the last round in which it was measured, else NaN."""
    measured = (metric_after_round(record, clients, name) for record in reversed(run.rounds))
    return next((x for x in measured if not math.isnan(x)), math.nan)


def largest_training_loss(run: Run) -> float:
    """Return the largest training loss of a priority client, in nats.

    It is of the model after the last round in which all of them measured it. NaN if there is
    none, as where a strategy asks only the clients of the next sample.

    Raises
    ------
    RunError
        If the table of evaluations is damaged.
    """
    try:
        table = read_parts(run.directory / "evaluations", ["round", "client", "priority", "loss"])
    except RunError:
        if (run.directory / "evaluations").is_dir():
            raise
        return math.nan
    if len(table) == 0:
        return math.nan
    loss = table["loss"].to_numpy().astype(np.float64)
    priority = table["priority"].to_numpy()
    number = table["round"].to_numpy()
    counts = priority & ~np.isnan(loss) & (number > 0)
    everyone = len(np.unique(table["client"].to_numpy()[priority]))
    rounds, measured = np.unique(number[counts], return_counts=True)
    complete = rounds[measured == everyone]
    return float(loss[counts & (number == complete[-1])].max()) if len(complete) else math.nan


def measured_groups(group: Group) -> tuple[str, ...]:
    """Return whose test parts to tell of: all, where no client is without priority.

    Otherwise those of ``TEST_GROUPS`` that were measured.
    """
    measured = tuple(
        name
        for name in TEST_GROUPS
        if any(is_tested(record, name) for run in group.counted for record in run.rounds)
    )
    if "all" in measured and "non_priority" not in measured:
        return ("all",)
    return measured


def _mean(values: Iterable[float]) -> float:
    x = list(values)
    return math.fsum(x) / len(x) if x else math.nan


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
