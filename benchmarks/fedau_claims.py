"""FedAU's claims, measured: accuracy under three participation processes, for every method.

    python benchmarks/fedau_claims.py DIR [DIR ...]

reads all completed runs of fedau/ experiments below the folders and prints Markdown: training and
test accuracy of the last model (percent, all clients by their data, mean and standard deviation
over seeds), paired differences of FedAU to the other methods, how unsteady the test accuracy is
from evaluation to evaluation (standard deviation of its steps over the second half of the run),
the server's state, and the weight error of Theorem 3, mean over rounds.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from server_app.report.groups import (
    Group,
    group_runs,
    mean_sd,
    mean_sd_ahead,
    metric_after_round,
    paired,
)
from server_app.report.runs import Run, find_runs, load_run

PROCESSES = ("bernoulli", "markov", "cyclic")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    runs = [load_run(d) for d in find_runs(parser.parse_args().directories)]
    completed = [r for r in runs if r.status == "completed" and r.experiment.startswith("fedau/")]
    for experiment in sorted({run.experiment for run in completed}):
        own = [run for run in completed if run.experiment == experiment]
        lengths = sorted({len(run.rounds) for run in own})
        print(f"\n### {experiment}, rounds: {', '.join(map(str, lengths))}\n")
        by_process = {
            process: {method(group): group for group in groups_of(own, process)}
            for process in PROCESSES
        }
        print_table("test accuracy", by_process, test_accuracy)
        print_table("training accuracy", by_process, training_accuracy)
        print_table("steps of the test accuracy, second half, sd", by_process, unsteadiness)
        print_table("weight error (Theorem 3)", by_process, weight_error, digits=3)
        print_table("server state, MB", by_process, lambda run: run.rounds[-1].state_bytes / 1e6, 3)
        print_differences(by_process)


def groups_of(runs: Iterable[Run], process: str) -> tuple[Group, ...]:
    """Return the groups of the runs under one process."""
    return group_runs(run for run in runs if run.settings["availability.name"] == process)


def method(group: Group) -> str:
    """Return a strategy's name, with the cutoff for FedAU."""
    cutoff = group.runs[0].settings.get("strategy.cutoff")
    return group.strategy if cutoff is None else f"{group.strategy}, K = {cutoff:g}"


def test_accuracy(run: Run) -> float:
    """Return the test accuracy of all clients after the last round, in percent."""
    return 100.0 * float(metric_after_round(run.rounds[-1], "all", "accuracy"))


def training_accuracy(run: Run) -> float:
    """Return the accuracy on all training data after the last round, in percent."""
    table = pq.read_table(
        run.directory / "evaluations",
        columns=["num_examples", "accuracy"],
        filters=[("round", "=", len(run.rounds))],
    ).to_pylist()
    total = sum(row["num_examples"] for row in table)
    return 100.0 * sum(float(row["num_examples"] / total * row["accuracy"]) for row in table)


def unsteadiness(run: Run) -> float:
    """Return the sd of the test accuracy's steps between evaluations in the second half."""
    values = [100 * metric_after_round(r, "all", "accuracy") for r in run.rounds]
    late = [v for v in values[len(values) // 2 :] if not math.isnan(v)]
    steps = [b - a for a, b in pairwise(late)]
    return statistics.stdev(steps) if len(steps) > 1 else math.nan


def weight_error(run: Run) -> float:
    """Return (1 / NT) sum_t sum_n (p_n omega_n - 1)^2, NaN where there is no omega."""
    errors = [r.weight_error for r in run.rounds if r.weight_error is not None]
    return statistics.mean(errors) if errors else math.nan


def print_table(
    title: str,
    by_process: dict[str, dict[str, Group]],
    value: Callable[[Run], float],
    digits: int = 2,
) -> None:
    """Print a row per method and a column per process."""
    print(f"\n| {title} | " + " | ".join(by_process) + " |")
    print("| --- |" + " --- |" * len(by_process))
    for name in methods(by_process):
        cells = []
        for groups in by_process.values():
            values = [value(run) for run in groups[name].counted] if name in groups else []
            cells.append(mean_sd(values, digits))
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_differences(by_process: dict[str, dict[str, Group]]) -> None:
    """Print FedAU (both cutoffs) minus each other method, paired by seed."""
    print("\n| paired difference of test accuracy, points | " + " | ".join(by_process) + " |")
    print("| --- |" + " --- |" * len(by_process))
    names = methods(by_process)
    for ours in (n for n in names if n.startswith("fedau")):
        for other in (n for n in names if not n.startswith("fedau")):
            cells = [
                mean_sd_ahead(paired(groups[ours], groups[other], test_accuracy))
                if {ours, other} <= groups.keys()
                else "-"
                for groups in by_process.values()
            ]
            print(f"| {ours} - {other} | " + " | ".join(cells) + " |")


def methods(by_process: dict[str, dict[str, Group]]) -> list[str]:
    """Return the names of all methods, FedAU first."""
    names = {name for groups in by_process.values() for name in groups}
    return sorted(names, key=lambda name: (not name.startswith("fedau"), name))


if __name__ == "__main__":
    main()
