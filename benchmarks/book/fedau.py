"""Tables for FedAU's claims: accuracy under participation processes for every method."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow.parquet as pq
from fedquorum.records.reader import Run
from fedquorum.report.published import find_published_results
from fedquorum.report.seed_groups import get_test_metric, get_value_sort_key

from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun

PROCESSES = ("bernoulli", "markov", "cyclic")
NUM_LAST_EVALUATIONS = 10  # a run's accuracy is the mean of its last evaluations
VARIED_SETTINGS = {"client.lr": "lr", "availability.minimum": "p_min"}
"""Settings that follow a method's name if a chapter varies them."""
MethodsByProcess = Mapping[str, Mapping[str, MethodRuns]]


def collect_fedau_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run; accuracies are fractions, weighted by the clients' data.

    ``test`` is the accuracy by round, ``training`` that after the last round, ``weight_error`` the
    mean over rounds of Theorem 3's error, and ``cutoff`` None for a strategy without one.
    """
    accuracies = {r.round: get_test_metric(r, "all", "accuracy") for r in run.rounds}
    errors = [r.weight_error for r in run.rounds if r.weight_error is not None]
    cutoff = run.settings.get("strategy.cutoff")
    return {
        "process": run.settings["availability.name"],
        "cutoff": None if cutoff is None else f"{cutoff:g}",
        "test": {after: value for after, value in accuracies.items() if not math.isnan(value)},
        "training": compute_training_accuracy(run),
        "weight_error": statistics.mean(errors) if errors else math.nan,
        "state_bytes": run.rounds[-1].state_bytes,
    }


def build_fedau_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables: a row for each method, a column for each process.

    Accuracies are percent over all clients, weighted by their data. ``test``: the mean of the last
    ten evaluations. ``training``: that of the last model. ``steps``: the standard deviation of the
    steps of the test accuracy between evaluations, over the second half of the run.
    ``differences``: FedAU minus each other method, and each cutoff K minus no cutoff (K = inf) and
    minus the smallest (K = 1), paired by seed. ``weight_error``: the mean over rounds of Theorem
    3's error. ``state``: the server's state besides the model.
    """
    processes = {run.numbers["process"] for run in runs}
    by_process = {
        process: {
            _format_name(method.runs[0]): method
            for method in group_methods([run for run in runs if run.numbers["process"] == process])
        }
        for process in PROCESSES
        if process in processes
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
    """Return the paper's test accuracies for the measured methods and processes."""
    table = tables["test"]
    rows: list[tuple[Cell, ...]] = []
    for method, *_ in table.rows:
        if any(f", {label} = " in str(method) for label in VARIED_SETTINGS.values()):
            continue  # the paper has no numbers for other rates or p_min
        strategy, _, cutoff = str(method).partition(", K = ")
        settings = {"data.name": experiment.partition("/")[2], "strategy.name": strategy}
        with_cutoff = settings | ({"strategy.cutoff": float(cutoff)} if cutoff else {})
        cells: list[Cell] = []
        for process in table.headings[1:]:
            conditions = with_cutoff | {"availability.name": process}
            results = find_published_results(experiment, conditions)
            cells.append(SeedStatistic(100 * results[0].values["test"]) if results else None)
        rows.append((method, *cells))
    return {"published": ResultTable(("published, %", *table.headings[1:]), tuple(rows), digits=1)}


def _format_name(run: LoggedRun) -> str:
    cutoff = run.numbers["cutoff"]
    name = run.strategy if cutoff is None else f"{run.strategy}, K = {cutoff}"
    settings = run.settings
    varied = {label: settings[key] for key, label in VARIED_SETTINGS.items() if key in settings}
    return ", ".join([name, *(f"{label} = {value}" for label, value in varied.items())])


def _compute_test_accuracy(run: LoggedRun) -> float:
    evaluations = sorted(run.numbers["test"].items(), key=lambda entry: int(entry[0]))
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
    accuracies = run.numbers["test"].items()
    late = [100 * value for after, value in accuracies if 2 * int(after) > run.rounds]
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
    """Build a table with a row for each method, or only for FedAU's variants."""
    rows = tuple(
        (
            name,
            *(
                summarize_seeds(methods[name].compute_values(value)) if name in methods else None
                for methods in by_process.values()
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
                    compute_paired_differences(
                        methods[ours], methods[other], _compute_test_accuracy
                    )
                )
                if {ours, other} <= methods.keys()
                else None
                for methods in by_process.values()
            ]
            rows.append((f"{ours} - {other}", *cells))
    return ResultTable(("difference of test accuracy, points", *by_process), tuple(rows))


def _is_comparable(other: LoggedRun, ours: LoggedRun) -> bool:
    """Return whether the table compares a FedAU variant with ``other``.

    Both must have the same participation. FedAU's variants with K = 1 and without a cutoff are
    compared with those that differ only in the cutoff.
    """
    shared: tuple[str, ...] = ("availability.minimum",)
    if _is_fedau(other):
        cutoff, end = ours.numbers["cutoff"], other.numbers["cutoff"]
        if end not in ("1", "inf") or cutoff in ("inf", end):
            return False
        shared = tuple(VARIED_SETTINGS)
    return all(other.settings.get(key) == ours.settings.get(key) for key in shared)


def _is_fedau(run: LoggedRun) -> bool:
    return run.strategy.startswith("fedau")


def _sort_variants(by_process: MethodsByProcess) -> Mapping[str, LoggedRun]:
    """Return one run of each method by name, FedAU first, ordered by the varied settings."""
    runs = {
        name: method.runs[0] for methods in by_process.values() for name, method in methods.items()
    }
    return dict(sorted(runs.items(), key=lambda entry: _get_sort_key(entry[1])))


def _get_sort_key(run: LoggedRun) -> tuple[bool, str, list[tuple[int, float, str]]]:
    values = [run.numbers["cutoff"], *(run.settings.get(key) for key in VARIED_SETTINGS)]
    keys = [get_value_sort_key(value) for value in values if value is not None]
    return not _is_fedau(run), run.strategy, keys
