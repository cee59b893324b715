"""FedAU's claims, measured: accuracy under participation processes, for every method."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow.parquet as pq
from fedquorum.records.reader import Run

from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun
from server_app.report.published import find_published_results
from server_app.report.seed_groups import get_test_metric, get_value_sort_key

PROCESSES = ("bernoulli", "markov", "cyclic")
NUM_LAST_EVALUATIONS = 10  # evaluations, the last ones, whose mean is a run's accuracy
VARIED_SETTINGS = {"client.lr": "lr", "availability.minimum": "p_min"}
"""Settings that stand behind a method's name where a chapter varies them."""
MethodsByProcess = Mapping[str, Mapping[str, MethodRuns]]


def collect_fedau_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run: accuracies of all clients by their data, as fractions.

    ``test`` after every round in which it was measured, ``training`` after the last one,
    ``weight_error`` of Theorem 3, mean over rounds, ``state_bytes``, and the cutoff, where it has
    one.
    """
    measured = {r.round: get_test_metric(r, "all", "accuracy") for r in run.rounds}
    errors = [r.weight_error for r in run.rounds if r.weight_error is not None]
    cutoff = run.settings.get("strategy.cutoff")
    return {
        "process": run.settings["availability.name"],
        "cutoff": None if cutoff is None else f"{cutoff:g}",
        "test": {after: value for after, value in measured.items() if not math.isnan(value)},
        "training": compute_training_accuracy(run),
        "weight_error": statistics.mean(errors) if errors else math.nan,
        "state_bytes": run.rounds[-1].state_bytes,
    }


def build_fedau_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
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
            _format_name(method.runs[0]): method
            for method in group_methods([run for run in runs if run.numbers["process"] == process])
        }
        for process in PROCESSES
        if process in found
    }
    return {
        "test": _build_table("test accuracy, %", by_process, _compute_test_accuracy),
        "training": _build_table(
            "training accuracy, %", by_process, lambda run: 100 * run.get_number("training")
        ),
        "steps": _build_table(
            "steps of the test accuracy, sd, points", by_process, _compute_unsteadiness
        ),
        "differences": _build_differences(by_process),
        "weight_error": _build_table(
            "weight error",
            by_process,
            lambda run: run.get_number("weight_error"),
            3,
            fedau_only=True,
        ),
        "state": _build_table(
            "server state, MB", by_process, lambda run: run.get_number("state_bytes") / 1e6, 3
        ),
    }


def build_fedau_published(
    experiment: str, tables: Mapping[str, ResultTable]
) -> Mapping[str, ResultTable]:
    """Return the paper's test accuracies for the methods and processes measured."""
    table = tables["test"]
    rows: list[tuple[Cell, ...]] = []
    for method, *_ in table.rows:
        if any(f", {told} = " in str(method) for told in VARIED_SETTINGS.values()):
            continue  # the paper's are with its rates and p_min
        strategy, _, cutoff = str(method).partition(", K = ")
        settings = {"data.name": experiment.partition("/")[2], "strategy.name": strategy}
        with_cutoff = settings | ({"strategy.cutoff": float(cutoff)} if cutoff else {})
        cells: list[Cell] = []
        for process in table.headings[1:]:
            found = find_published_results(experiment, with_cutoff | {"availability.name": process})
            cells.append(SeedStatistic(100 * found[0].values["test"]) if found else None)
        rows.append((method, *cells))
    return {"published": ResultTable(("published, %", *table.headings[1:]), tuple(rows), digits=1)}


def _format_name(run: LoggedRun) -> str:
    cutoff = run.numbers["cutoff"]
    name = run.strategy if cutoff is None else f"{run.strategy}, K = {cutoff}"
    told = {told: run.settings[key] for key, told in VARIED_SETTINGS.items() if key in run.settings}
    return ", ".join([name, *(f"{key} = {value}" for key, value in told.items())])


def _compute_test_accuracy(run: LoggedRun) -> float:
    evaluations = sorted(run.numbers["test"].items(), key=lambda found: int(found[0]))
    return 100 * statistics.mean(value for _, value in evaluations[-NUM_LAST_EVALUATIONS:])


def compute_training_accuracy(run: Run) -> float:
    """Return the accuracy of the last model on all clients' training data, as a fraction."""
    table = pq.read_table(
        run.directory / "evaluations",
        columns=["num_examples", "accuracy"],
        filters=[("round", "=", len(run.rounds))],
    ).to_pylist()
    total = sum(row["num_examples"] for row in table)
    return sum(float(row["num_examples"] / total * row["accuracy"]) for row in table)


def _compute_unsteadiness(run: LoggedRun) -> float:
    late = [100 * of for after, of in run.numbers["test"].items() if 2 * int(after) > run.rounds]
    steps = [b - a for a, b in pairwise(late)]
    return statistics.stdev(steps) if len(steps) > 1 else math.nan


def _build_table(
    title: str,
    by_process: MethodsByProcess,
    value: Callable[[LoggedRun], float],
    digits: int = 2,
    *,
    fedau_only: bool = False,
) -> ResultTable:
    """Return a row per method, of FedAU's variants alone where others have no value."""
    rows = tuple(
        (
            name,
            *(
                summarize_seeds(found[name].compute_values(value)) if name in found else None
                for found in by_process.values()
            ),
        )
        for name, run in _sort_variants(by_process).items()
        if not fedau_only or _is_fedau(run)
    )
    return ResultTable((title, *by_process), rows, digits)


def _build_differences(by_process: MethodsByProcess) -> ResultTable:
    variants = _sort_variants(by_process)
    rows: list[tuple[Cell, ...]] = []
    for ours in (name for name, run in variants.items() if _is_fedau(run)):
        for other in (
            name for name, run in variants.items() if _is_comparable(run, variants[ours])
        ):
            cells = [
                summarize_differences(
                    compute_paired_differences(found[ours], found[other], _compute_test_accuracy)
                )
                if {ours, other} <= found.keys()
                else None
                for found in by_process.values()
            ]
            rows.append((f"{ours} - {other}", *cells))
    return ResultTable(("difference of test accuracy, points", *by_process), tuple(rows))


def _is_comparable(other: LoggedRun, ours: LoggedRun) -> bool:
    """Return whether a variant of FedAU is compared to this one: under the same participation.

    Of FedAU's own variants those at both ends, K = 1 and no cutoff, are compared to those that
    differ in the cutoff alone.
    """
    same = ("availability.minimum",)
    if _is_fedau(other):
        cutoff, end = ours.numbers["cutoff"], other.numbers["cutoff"]
        if end not in ("1", "inf") or cutoff in ("inf", end):
            return False
        same = tuple(VARIED_SETTINGS)
    return all(other.settings.get(key) == ours.settings.get(key) for key in same)


def _is_fedau(run: LoggedRun) -> bool:
    return run.strategy.startswith("fedau")


def _sort_variants(by_process: MethodsByProcess) -> Mapping[str, LoggedRun]:
    """Return a run of each method by its name, FedAU's first, ascending by the values it tells."""
    runs = {name: of.runs[0] for found in by_process.values() for name, of in found.items()}
    return dict(sorted(runs.items(), key=lambda entry: _get_sort_key(entry[1])))


def _get_sort_key(run: LoggedRun) -> tuple[bool, str, list[tuple[int, float, str]]]:
    values = [run.numbers["cutoff"], *(run.settings.get(key) for key in VARIED_SETTINGS)]
    told = [get_value_sort_key(value) for value in values if value is not None]
    return not _is_fedau(run), run.strategy, told
