"""FedAU's claims, measured: accuracy under participation processes, for every method."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow.parquet as pq
from fedquorum.records.reader import Run

from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from benchmarks.book.methods import Method, methods, paired
from server_app.report.groups import ascending, metric_after_round
from server_app.report.published import published_values

PROCESSES = ("bernoulli", "markov", "cyclic")
LATE = 10  # evaluations, the last ones, whose mean is a run's accuracy
TOLD = {"client.lr": "lr", "availability.minimum": "p_min"}
"""Settings that stand behind a method's name where a chapter varies them."""
ByProcess = Mapping[str, Mapping[str, Method]]


def fedau_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run: accuracies of all clients by their data, as fractions.

    ``test`` after every round in which it was measured, ``training`` after the last one,
    ``weight_error`` of Theorem 3, mean over rounds, ``state_bytes``, and the cutoff, where it has
    one.
    """
    measured = {r.round: metric_after_round(r, "all", "accuracy") for r in run.rounds}
    errors = [r.weight_error for r in run.rounds if r.weight_error is not None]
    cutoff = run.settings.get("strategy.cutoff")
    return {
        "process": run.settings["availability.name"],
        "cutoff": None if cutoff is None else f"{cutoff:g}",
        "test": {after: value for after, value in measured.items() if not math.isnan(value)},
        "training": training_accuracy(run),
        "weight_error": statistics.mean(errors) if errors else math.nan,
        "state_bytes": run.rounds[-1].state_bytes,
    }


def fedau_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables, a row a method and a column a process, all clients by their data.

    ``test``: accuracy, percent, the mean of the last ten evaluations. ``training``: that of the
    last model. ``steps``: how unsteady the test accuracy is, the standard deviation of its steps
    from evaluation to evaluation over the second half of the run. ``differences``: test accuracy of
    FedAU minus each other method, and of each cutoff K minus none (K = inf) and minus the least
    (K = 1), seed by seed. ``weight_error``: that of Theorem 3, mean over rounds. ``state``: the
    server's beside the model.
    """
    found = {run.numbers["process"] for run in runs}
    by_process = {
        process: {
            _name(method.runs[0]): method
            for method in methods([run for run in runs if run.numbers["process"] == process])
        }
        for process in PROCESSES
        if process in found
    }
    return {
        "test": _table("test accuracy, %", by_process, _test_accuracy),
        "training": _table(
            "training accuracy, %", by_process, lambda run: 100 * run.number("training")
        ),
        "steps": _table("steps of the test accuracy, sd, points", by_process, _unsteadiness),
        "differences": _differences(by_process),
        "weight_error": _table(
            "weight error",
            by_process,
            lambda run: run.number("weight_error"),
            3,
            fedau_only=True,
        ),
        "state": _table(
            "server state, MB", by_process, lambda run: run.number("state_bytes") / 1e6, 3
        ),
    }


def fedau_published(experiment: str, measured: Mapping[str, Table]) -> Mapping[str, Table]:
    """Return the paper's test accuracies for the methods and processes measured."""
    table = measured["test"]
    rows: list[tuple[Cell, ...]] = []
    for method, *_ in table.rows:
        if any(f", {told} = " in str(method) for told in TOLD.values()):
            continue  # the paper's are with its rates and p_min
        strategy, _, cutoff = str(method).partition(", K = ")
        settings = {"data.name": experiment.partition("/")[2], "strategy.name": strategy}
        with_cutoff = settings | ({"strategy.cutoff": float(cutoff)} if cutoff else {})
        cells: list[Cell] = []
        for process in table.headings[1:]:
            found = published_values(experiment, with_cutoff | {"availability.name": process})
            cells.append(Number(100 * found[0].values["test"]) if found else None)
        rows.append((method, *cells))
    return {"published": Table(("published, %", *table.headings[1:]), tuple(rows), digits=1)}


def _name(run: KeptRun) -> str:
    cutoff = run.numbers["cutoff"]
    name = run.strategy if cutoff is None else f"{run.strategy}, K = {cutoff}"
    told = {told: run.settings[key] for key, told in TOLD.items() if key in run.settings}
    return ", ".join([name, *(f"{key} = {value}" for key, value in told.items())])


def _test_accuracy(run: KeptRun) -> float:
    evaluations = sorted(run.numbers["test"].items(), key=lambda found: int(found[0]))
    return 100 * statistics.mean(value for _, value in evaluations[-LATE:])


def training_accuracy(run: Run) -> float:
    """Return the accuracy of the last model on all clients' training data, as a fraction."""
    table = pq.read_table(
        run.directory / "evaluations",
        columns=["num_examples", "accuracy"],
        filters=[("round", "=", len(run.rounds))],
    ).to_pylist()
    total = sum(row["num_examples"] for row in table)
    return sum(float(row["num_examples"] / total * row["accuracy"]) for row in table)


def _unsteadiness(run: KeptRun) -> float:
    late = [100 * of for after, of in run.numbers["test"].items() if 2 * int(after) > run.rounds]
    steps = [b - a for a, b in pairwise(late)]
    return statistics.stdev(steps) if len(steps) > 1 else math.nan


def _table(
    title: str,
    by_process: ByProcess,
    value: Callable[[KeptRun], float],
    digits: int = 2,
    *,
    fedau_only: bool = False,
) -> Table:
    """Return a row per method, of FedAU's variants alone where others have no value."""
    rows = tuple(
        (
            name,
            *(
                numbers(found[name].values(value)) if name in found else None
                for found in by_process.values()
            ),
        )
        for name, run in _variants(by_process).items()
        if not fedau_only or _is_fedau(run)
    )
    return Table((title, *by_process), rows, digits)


def _differences(by_process: ByProcess) -> Table:
    variants = _variants(by_process)
    rows: list[tuple[Cell, ...]] = []
    for ours in (name for name, run in variants.items() if _is_fedau(run)):
        for other in (name for name, run in variants.items() if _meets(run, variants[ours])):
            cells = [
                differences(paired(found[ours], found[other], _test_accuracy))
                if {ours, other} <= found.keys()
                else None
                for found in by_process.values()
            ]
            rows.append((f"{ours} - {other}", *cells))
    return Table(("difference of test accuracy, points", *by_process), tuple(rows))


def _meets(other: KeptRun, ours: KeptRun) -> bool:
    """Return whether a variant of FedAU is compared to this one: under the same participation.

    Of FedAU's own variants those at both ends, K = 1 and no cutoff, are compared to those that
    differ in the cutoff alone.
    """
    same = ("availability.minimum",)
    if _is_fedau(other):
        cutoff, end = ours.numbers["cutoff"], other.numbers["cutoff"]
        if end not in ("1", "inf") or cutoff in ("inf", end):
            return False
        same = tuple(TOLD)
    return all(other.settings.get(key) == ours.settings.get(key) for key in same)


def _is_fedau(run: KeptRun) -> bool:
    return run.strategy.startswith("fedau")


def _variants(by_process: ByProcess) -> Mapping[str, KeptRun]:
    """Return a run of each method by its name, FedAU's first, ascending by the values it tells."""
    runs = {name: of.runs[0] for found in by_process.values() for name, of in found.items()}
    return dict(sorted(runs.items(), key=lambda entry: _order(entry[1])))


def _order(run: KeptRun) -> tuple[bool, str, list[tuple[int, float, str]]]:
    values = [run.numbers["cutoff"], *(run.settings.get(key) for key in TOLD)]
    told = [ascending(value) for value in values if value is not None]
    return not _is_fedau(run), run.strategy, told
