"""AAggFF's claims, measured: how the clients' test metrics are spread, for every method.

    python benchmarks/aaggff_claims.py DIR [DIR ...]

reads all completed runs of aaggff/ experiments below the folders and prints Markdown: of the
configured metric over clients after the last round, in percent, average, worst, best, worst and
best tenth and Gini; the largest training loss of a client over its last measured round; and for
AAggFF the regret and its bound. Mean and standard deviation over seeds, then paired differences of
AAggFF to each other method.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from server_app.report.groups import Group, group_runs, metric_after_round
from server_app.report.runs import Run, find_runs, load_run

SPREAD = ("average", "worst", "best", "worst10", "best10", "gini")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    runs = [load_run(d) for d in find_runs(parser.parse_args().directories)]
    done = [r for r in runs if r.status == "completed" and r.experiment.startswith("aaggff/")]
    for experiment in sorted({run.experiment for run in done}):
        groups = group_runs(run for run in done if run.experiment == experiment)
        first = groups[0].counted[0]
        print(
            f"\n### {experiment}, {first.settings['evaluation.metric']}, "
            f"{len(first.rounds)} rounds\n"
        )
        print_table(groups)
        print_differences(groups)


def spread(name: str) -> Callable[[Run], float]:
    """Return what reads one number of the spread after the last round, in percent."""
    return lambda run: 100.0 * float(metric_after_round(run.rounds[-1], "all", name))


def largest_loss(run: Run) -> float:
    """Return the largest training loss of a client of the model that it last received."""
    table = pq.read_table(run.directory / "clients", columns=["round", "client", "loss"])
    last = {row["client"]: row["loss"] for row in table.to_pylist() if row["loss"] is not None}
    return max(float(loss) for loss in last.values())


def regret(run: Run, name: str) -> float:
    """Return the regret or its bound from the manifest, NaN where there is none."""
    mixing = json.loads((run.directory / "manifest.json").read_text())["summary"]["mixing"]
    return math.nan if mixing is None or mixing[name] is None else float(mixing[name])


COLUMNS: dict[str, Callable[[Run], float]] = {
    **{name: spread(name) for name in SPREAD},
    "largest training loss": largest_loss,
    "regret": lambda run: regret(run, "regret"),
    "its bound": lambda run: regret(run, "regret_bound"),
}


def name_of(group: Group) -> str:
    """Return a group's name within its experiment."""
    return " ".join([group.strategy, *group.variant])


def print_table(groups: Sequence[Group]) -> None:
    """Print a row per method."""
    print("| method | seeds | " + " | ".join(COLUMNS) + " |")
    print("| --- | --- |" + " --- |" * len(COLUMNS))
    for group in groups:
        cells = [mean_sd([value(run) for run in group.counted]) for value in COLUMNS.values()]
        print(f"| {name_of(group)} | {len(group.counted)} | " + " | ".join(cells) + " |")


def print_differences(groups: Sequence[Group]) -> None:
    """Print AAggFF minus each other method, paired by seed."""
    shown = ("average", "worst", "best", "gini", "largest training loss")
    print("\n| paired difference | " + " | ".join(shown) + " |")
    print("| --- |" + " --- |" * len(shown))
    for ours in (g for g in groups if g.strategy.startswith("aaggff")):
        for other in (g for g in groups if not g.strategy.startswith("aaggff")):
            theirs = {run.seed: run for run in other.counted}
            pairs = [(run, theirs[run.seed]) for run in ours.counted if run.seed in theirs]
            cells = []
            for column in shown:
                gaps = [COLUMNS[column](a) - COLUMNS[column](b) for a, b in pairs]
                cells.append(f"{mean_sd(gaps)} ({sum(g > 0 for g in gaps)}/{len(gaps)} above)")
            print(f"| {name_of(ours)} - {name_of(other)} | " + " | ".join(cells) + " |")


def mean_sd(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation in words."""
    if any(math.isnan(v) for v in values):
        return "-"
    sd = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{sd}"


if __name__ == "__main__":
    main()
