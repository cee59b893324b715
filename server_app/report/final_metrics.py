"""What a run comes to: one number for each name, of the model after its last evaluation."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from fedquorum.contrib import REPORTED_METRICS
from fedquorum.errors import RunError
from fedquorum.metrics import get_metric
from fedquorum.records.fairness import DISPERSION_KEYS, compute_weighted_dispersion, exact_sum
from fedquorum.records.reader import POPULATION_FILE, Run, read_dataset, read_population
from fedquorum.records.round_record import OPTIONAL_GROUPS, TEST_GROUPS
from fedquorum.types import IntArray

from server_app.report.seed_groups import Group, get_test_metric, is_tested

RULE_METRICS = tuple(key for numbers in REPORTED_METRICS for key in numbers.labels)
"""Numbers that reports of rules add to the records, each a share in [0, 1]."""

CLIENT_METRICS = ("test", *DISPERSION_KEYS, "left_out", *RULE_METRICS)
"""Measured on the test parts of one of ``TEST_GROUPS``."""

ROW_WEIGHTED_METRICS = ("average_by_rows", "worst10_by_rows", "best10_by_rows")
"""Means over clients that are weighted by their test rows; see ``compute_row_weighted_metrics``."""

RUN_METRICS = (
    "largest_training_loss",
    "global_loss",
    "admitted",
    "theta",
    "regret",
    "regret_bound",
    "regret_bound_proven",
    "duration_seconds",
    "megabytes",
    "state_bytes",
    "simulated_seconds",
)


def compute_client_metrics(run: Run, clients: str) -> Mapping[str, float]:
    """Return what a run comes to for a group of clients, NaN where it was not measured.

    ``test`` is the metric that ``evaluation.metric`` names, mean over the test parts by training
    data; average, worst, best, worst10, best10, gini, std and jain are its spread over clients
    (``fedquorum.records.fairness``), ``left_out`` how many have none. The others are those of
    ``fedquorum.contrib.REPORTED_METRICS``, of runs that have them.

    Parameters
    ----------
    run : Run
        The run.
    clients : {"priority", "non_priority", "all", "held_out", "mean_model"}
        Whose test parts; the last is all, with the mean of the models that clients start from.
    """
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    names = {name: metric if name == "test" else name for name in CLIENT_METRICS}
    return {name: get_last_test_metric(run, clients, key) for name, key in names.items()}


def compute_run_metrics(run: Run) -> Mapping[str, float]:
    """Return what a run comes to as a whole, NaN where there is no such thing.

    ``find_max_training_loss``: see there. ``global_loss`` is F(w) of the last model broadcast,
    ``theta`` theta_T. ``regret`` and ``regret_bound`` are AAggFF's; ``regret_bound_proven`` is 1
    where the bound is proven for the run, else 0 (NaN in older records). Per round, mean over
    rounds: ``admitted`` updates, ``duration_seconds``, ``megabytes`` of messages both ways. After
    the last: ``state_bytes``, ``simulated_seconds``.
    """
    mixing = run.summary.get("mixing") or {}
    last = run.rounds[-1] if run.rounds else None
    return {
        "largest_training_loss": find_max_training_loss(run),
        "global_loss": math.nan if last is None else last.global_loss,
        "admitted": _average(r.admitted for r in run.rounds),
        "theta": _average(r.theta for r in run.rounds if r.theta is not None),
        "regret": _to_float(mixing.get("regret")),
        "regret_bound": _to_float(mixing.get("regret_bound")),
        "regret_bound_proven": _to_float(mixing.get("regret_bound_proven")),
        "duration_seconds": _average(r.duration_seconds for r in run.rounds),
        "megabytes": _average((r.bytes_down + r.bytes_up) / 1e6 for r in run.rounds),
        "state_bytes": math.nan if last is None else float(last.state_bytes),
        "simulated_seconds": math.nan if last is None else _to_float(last.simulated_seconds),
    }


def read_training_clients(run: Run) -> IntArray | None:
    """Return the clients that could be asked to train, ascending; None without that record.

    Raises
    ------
    RunError
        If the record is damaged.
    """
    if not (run.directory / POPULATION_FILE).is_file():
        return None
    table = read_population(run.directory)
    client = table["client"].to_numpy().astype(np.int64)
    if "held_out" in table.column_names:
        client = client[table["held_out"].cast(pa.float64()).to_numpy() != 1.0]
    return np.sort(client)


def get_last_test_metric(run: Run, clients: str, name: str) -> float:
    """Return a test metric after the last round in which these clients were tested, else NaN.

    NaN where it is not defined then, as the Gini coefficient of an infinite loss: that of an
    earlier model does not stand for it.
    """
    tested = (record for record in reversed(run.rounds) if is_tested(record, clients))
    last = next(tested, None)
    return math.nan if last is None else get_test_metric(last, clients, name)


def find_max_training_loss(run: Run) -> float:
    """Return the largest training loss of a priority client, in nats.

    It is of the model after the last round in which all of them measured it. NaN if there is
    none, as where a strategy asks only the clients of the next sample.

    Raises
    ------
    RunError
        If the table of evaluations is damaged.
    """
    try:
        table = read_dataset(run.directory / "evaluations", ["round", "client", "priority", "loss"])
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


def compute_row_weighted_metrics(run: Run) -> Mapping[str, float]:
    """Return average, worst10 and best10 of all clients that train, weighted by their test rows.

    They are those of ``fedquorum.records.fairness.compute_weighted_dispersion``, named ``average_by_rows`` and
    so on, of the last round in which a client's metric was measured; NaN without one.

    Raises
    ------
    RunError
        If the table of evaluations is damaged.
    """
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    column = f"test_{metric}" if metric in {"loss", "accuracy"} else "test_metric"
    wanted = ["round", "client", "test_num_examples", column]
    if not (run.directory / "evaluations").is_dir():
        return dict.fromkeys(ROW_WEIGHTED_METRICS, math.nan)
    table = read_dataset(run.directory / "evaluations", wanted)
    if not {*wanted} <= {*table.column_names}:
        return dict.fromkeys(ROW_WEIGHTED_METRICS, math.nan)
    number, client, rows, value = (table[name].to_numpy().astype(np.float64) for name in wanted)
    trains = read_training_clients(run)
    counts = ~np.isnan(value) & (rows > 0)
    if trains is not None:
        counts &= np.isin(client, trains)
    if not counts.any():
        return dict.fromkeys(ROW_WEIGHTED_METRICS, math.nan)
    counts &= number == number[counts].max()
    higher = get_metric(metric).higher_is_better
    found = compute_weighted_dispersion(value[counts], rows[counts], higher_is_better=higher)
    return {f"{name}_by_rows": of for name, of in found.items()}


def list_evaluated_groups(group: Group) -> tuple[str, ...]:
    """Return whose test parts to tell of: those of ``TEST_GROUPS`` that were measured.

    Where no client that trains is without priority, all of them stand for the priority clients;
    held-out clients and the mean model come last, where there are any.
    """
    measured = tuple(
        name
        for name in (*TEST_GROUPS, *OPTIONAL_GROUPS)
        if any(is_tested(record, name) for run in group.counted_runs for record in run.rounds)
    )
    if "all" in measured and "non_priority" not in measured:
        return tuple(name for name in measured if name != "priority")
    return measured


def _average(values: Iterable[float]) -> float:
    x = list(values)
    return exact_sum(x) / len(x) if x else math.nan


def _to_float(value: float | None) -> float:
    return math.nan if value is None else float(value)
