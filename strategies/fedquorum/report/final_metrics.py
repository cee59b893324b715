"""Compute a run's final metrics: one number per name, from the last evaluation."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from ..contrib import REPORTED_METRICS
from ..errors import RunError
from ..metrics.calibration import ECE
from ..metrics.fairness import DISPERSION_KEYS, compute_weighted_dispersion, exact_sum
from ..records.data_facts import get_constant_accuracy
from ..records.reader import POPULATION_FILE, Run, read_dataset, read_population
from ..records.round_record import OPTIONAL_GROUPS, TEST_GROUPS
from ..rules.metrics import AVERAGE_PRECISION, get_metric
from ..rules.types import IntArray
from .seed_groups import Group, get_test_metric, is_tested

RULE_METRICS = tuple(key for numbers in REPORTED_METRICS for key in numbers.labels)
"""Numbers that reports of rules add to the records, each a fraction in [0, 1]."""

CLIENT_METRICS = (
    *(
        "test",
        "r2",
        AVERAGE_PRECISION,
        ECE,
        "constant_accuracy",
        *DISPERSION_KEYS,
        "evaluated",
        "left_out",
    ),
    *("validation", "validation_worst10"),
    *RULE_METRICS,
)
"""Metrics over the splits of one of ``TEST_GROUPS``, test splits unless the name says otherwise."""

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
    """Compute a run's final metrics for a group of clients, NaN for missing ones.

    ``test`` is the metric in ``evaluation.metric``, its mean over test splits weighted by training
    data; average, worst, best, worst10, best10, gini, std and jain are its spread over clients
    (``fedquorum.metrics.fairness``). ``evaluated`` is the number of clients, ``left_out`` that of
    clients without a value. ``constant_accuracy`` is that of always guessing the largest class, if
    the metric is accuracy; ``r2`` is the mean R2 of predicted numbers, whatever it is,
    and ``average_precision`` is beside AUROC. ``ece`` is the expected calibration error over all
    predictions (``fedquorum.metrics.calibration``).
    ``validation`` and ``validation_worst10`` are ``test`` and ``worst10`` of the validation splits.
    The others are those of ``fedquorum.contrib.REPORTED_METRICS``.

    Parameters
    ----------
    run : Run
    clients : {"priority", "non_priority", "all", "held_out", "mean_model"}
        The last evaluates the mean of all clients' start models on all test splits.
    """
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    names = {name: metric if name == "test" else name for name in CLIENT_METRICS}
    found = {name: get_last_test_metric(run, clients, key) for name, key in names.items()}
    summaries = ((record.validation or {}).get(clients) for record in reversed(run.rounds))
    last = next(filter(None, summaries), {})
    found["validation"] = last.get(metric, math.nan)
    found["validation_worst10"] = last.get("worst10", math.nan)
    if metric == "accuracy":
        found["constant_accuracy"] = get_constant_accuracy(run.data, clients)
    return found


def compute_run_metrics(run: Run) -> Mapping[str, float]:
    """Compute a run's final metrics over all clients, NaN for missing ones.

    ``largest_training_loss``: see ``find_max_training_loss``. ``global_loss`` is F(w) of the last
    model broadcast, ``theta`` theta_T. ``regret`` and ``regret_bound`` are AAggFF's;
    ``regret_bound_proven`` is 1 if the bound is proven for the run, else 0. Means over rounds:
    ``admitted`` updates, ``duration_seconds``, ``megabytes`` of messages both ways. After the last
    round: ``state_bytes``, ``simulated_seconds``.
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
    """Return the ids of all clients that may train, ascending; None without that record.

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
    """Return a test metric after the last round that tested these clients, else NaN.

    NaN also if the metric is undefined in that round, such as the Gini coefficient of an infinite
    loss; an earlier round is no substitute.
    """
    tested = (record for record in reversed(run.rounds) if is_tested(record, clients))
    last = next(tested, None)
    return math.nan if last is None else get_test_metric(last, clients, name)


def find_max_training_loss(run: Run) -> float:
    """Return the largest training loss of a priority client, in nats.

    It is from the last round with a loss of all priority clients. NaN if there is none, for
    example with a strategy that evaluates only the clients of the next sample.

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
    num_clients = len(np.unique(table["client"].to_numpy()[priority]))
    rounds, num_evaluated = np.unique(number[counts], return_counts=True)
    complete = rounds[num_evaluated == num_clients]
    return float(loss[counts & (number == complete[-1])].max()) if len(complete) else math.nan


def compute_row_weighted_metrics(run: Run) -> Mapping[str, float]:
    """Compute average, worst10 and best10 of all clients that train, weighted by test rows.

    ``fedquorum.metrics.fairness.compute_weighted_dispersion`` defines them; here they are named
    ``average_by_rows`` and so on. They are from the last round with a test metric; NaN without one.

    Raises
    ------
    RunError
        If the table of evaluations is damaged.
    """
    metric = str(run.settings.get("evaluation.metric", "accuracy"))
    column = f"test_{metric}" if metric in {"loss", "accuracy"} else "test_metric"
    columns = ["round", "client", "test_num_examples", column]
    if not (run.directory / "evaluations").is_dir():
        return dict.fromkeys(ROW_WEIGHTED_METRICS, math.nan)
    table = read_dataset(run.directory / "evaluations", columns)
    if not {*columns} <= {*table.column_names}:
        return dict.fromkeys(ROW_WEIGHTED_METRICS, math.nan)
    number, client, rows, value = (table[name].to_numpy().astype(np.float64) for name in columns)
    trains = read_training_clients(run)
    counts = ~np.isnan(value) & (rows > 0)
    if trains is not None:
        counts &= np.isin(client, trains)
    if not counts.any():
        return dict.fromkeys(ROW_WEIGHTED_METRICS, math.nan)
    counts &= number == number[counts].max()
    higher = get_metric(metric).higher_is_better
    found = compute_weighted_dispersion(value[counts], rows[counts], higher_is_better=higher)
    return {f"{name}_by_rows": mean for name, mean in found.items()}


def list_evaluated_groups(group: Group) -> tuple[str, ...]:
    """Return the groups of ``TEST_GROUPS`` with test metrics, then held-out clients and mean model.

    If every client that trains has priority, ``all`` stands for ``priority``.
    """
    evaluated = tuple(
        name
        for name in (*TEST_GROUPS, *OPTIONAL_GROUPS)
        if any(is_tested(record, name) for run in group.counted_runs for record in run.rounds)
    )
    if "all" in evaluated and "non_priority" not in evaluated:
        return tuple(name for name in evaluated if name != "priority")
    return evaluated


def _average(values: Iterable[float]) -> float:
    x = list(values)
    return exact_sum(x) / len(x) if x else math.nan


def _to_float(value: float | None) -> float:
    return math.nan if value is None else float(value)
