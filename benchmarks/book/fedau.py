"""FedAU's claims, measured: accuracy under participation processes, for every method."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pyarrow.parquet as pq
from fedquorum.records.reader import Run

from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from server_app.report.groups import Group, group_runs, metric_after_round, paired
from server_app.report.published import published_values

PROCESSES = ("bernoulli", "markov", "cyclic")
ByProcess = Mapping[str, Mapping[str, Group]]


def fedau_tables(runs: Sequence[Run]) -> Mapping[str, Table]:
    """Return the tables, a row a method and a column a process, all clients by their data.

    ``test`` and ``training``: accuracy of the last model, percent. ``steps``: how unsteady the test
    accuracy is, the standard deviation of its steps from evaluation to evaluation over the second
    half of the run. ``differences``: test accuracy of FedAU minus each other method, seed by seed.
    ``weight_error``: that of Theorem 3, mean over rounds. ``state``: the server's beside the model.
    """
    found = {r.settings["availability.name"] for r in runs}
    by_process = {
        process: {
            _method(group): group
            for group in group_runs(r for r in runs if r.settings["availability.name"] == process)
        }
        for process in PROCESSES
        if process in found
    }
    return {
        "test": _table("test accuracy, %", by_process, _test_accuracy),
        "training": _table("training accuracy, %", by_process, _training_accuracy),
        "steps": _table("steps of the test accuracy, sd, points", by_process, _unsteadiness),
        "differences": _differences(by_process),
        "weight_error": _table("weight error", by_process, _weight_error, 3, fedau_only=True),
        "state": _table(
            "server state, MB", by_process, lambda r: r.rounds[-1].state_bytes / 1e6, 3
        ),
    }


def fedau_published(experiment: str, measured: Mapping[str, Table]) -> Mapping[str, Table]:
    """Return the paper's test accuracies for the methods and processes measured."""
    table = measured["test"]
    rows: list[tuple[Cell, ...]] = []
    for method, *_ in table.rows:
        strategy, _, cutoff = str(method).partition(", K = ")
        settings = {"data.name": experiment.partition("/")[2], "strategy.name": strategy}
        with_cutoff = settings | ({"strategy.cutoff": float(cutoff)} if cutoff else {})
        cells: list[Cell] = []
        for process in table.headings[1:]:
            found = published_values(experiment, with_cutoff | {"availability.name": process})
            cells.append(Number(100 * found[0].values["test"]) if found else None)
        rows.append((method, *cells))
    return {"published": Table(("published, %", *table.headings[1:]), tuple(rows), digits=1)}


def _method(group: Group) -> str:
    cutoff = group.runs[0].settings.get("strategy.cutoff")
    return group.strategy if cutoff is None else f"{group.strategy}, K = {cutoff:g}"


def _test_accuracy(run: Run) -> float:
    return 100.0 * float(metric_after_round(run.rounds[-1], "all", "accuracy"))


def _training_accuracy(run: Run) -> float:
    table = pq.read_table(
        run.directory / "evaluations",
        columns=["num_examples", "accuracy"],
        filters=[("round", "=", len(run.rounds))],
    ).to_pylist()
    total = sum(row["num_examples"] for row in table)
    return 100.0 * sum(float(row["num_examples"] / total * row["accuracy"]) for row in table)


def _unsteadiness(run: Run) -> float:
    values = [100 * metric_after_round(r, "all", "accuracy") for r in run.rounds]
    late = [v for v in values[len(values) // 2 :] if not math.isnan(v)]
    steps = [b - a for a, b in pairwise(late)]
    return statistics.stdev(steps) if len(steps) > 1 else math.nan


def _weight_error(run: Run) -> float:
    """Return (1 / NT) sum_t sum_n (p_n omega_n - 1)^2, NaN where there is no omega."""
    errors = [r.weight_error for r in run.rounds if r.weight_error is not None]
    return statistics.mean(errors) if errors else math.nan


def _table(
    title: str,
    by_process: ByProcess,
    value: Callable[[Run], float],
    digits: int = 2,
    *,
    fedau_only: bool = False,
) -> Table:
    """Return a row per method, of FedAU's variants alone where others have no value."""
    rows = tuple(
        (
            name,
            *(
                numbers([value(run) for run in groups[name].counted]) if name in groups else None
                for groups in by_process.values()
            ),
        )
        for name in _methods(by_process)
        if not fedau_only or name.startswith("fedau")
    )
    return Table((title, *by_process), rows, digits)


def _differences(by_process: ByProcess) -> Table:
    names = _methods(by_process)
    rows: list[tuple[Cell, ...]] = []
    for ours in (n for n in names if n.startswith("fedau")):
        for other in (n for n in names if not n.startswith("fedau")):
            cells = [
                differences(paired(groups[ours], groups[other], _test_accuracy))
                if {ours, other} <= groups.keys()
                else None
                for groups in by_process.values()
            ]
            rows.append((f"{ours} - {other}", *cells))
    return Table(("difference of test accuracy, points", *by_process), tuple(rows))


def _methods(by_process: ByProcess) -> list[str]:
    """Return the names of all methods, FedAU first."""
    names = {name for groups in by_process.values() for name in groups}
    return sorted(names, key=lambda name: (not name.startswith("fedau"), name))
