"""FedALIGN's claims, measured: accuracy over the run, and paired differences to both baselines.

    python benchmarks/fedalign_claims.py DIR [DIR ...]

reads all completed runs below the folders and prints Markdown. For every experiment: test
accuracy of the priority objective (percent) at the end of warm-up, at a quarter, at half and at
the end of the rounds, mean and standard deviation over seeds; then, seed by seed, the difference
of every FedALIGN variant to FedAvg on the priority clients and on all; where there are local-only
runs, the same of the test accuracy on the non-priority clients; and whom the gate admits, by the
classes of their data.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from server_app.report.data import run_data
from server_app.report.groups import (
    Group,
    group_runs,
    mean_sd,
    mean_sd_ahead,
    metric_after_round,
    paired,
)
from server_app.report.runs import Run, find_runs, load_run

BASELINES = {"fedavg_priority": "priority only", "fedavg": "all"}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    runs = [load_run(d) for d in find_runs(parser.parse_args().directories)]
    groups = group_runs([run for run in runs if run.status == "completed"])
    for experiment in sorted({group.experiment for group in groups}):
        own = [group for group in groups if group.experiment == experiment]
        print(f"\n### {experiment}\n")
        print_accuracies(own)
        print_differences(own)
        if any(group.strategy == "local_only" for group in own):
            print_non_priority(own)
            print_admitted_clients(own)
        if own[0].runs[0].settings.get("data.shard_size"):
            print_admissions(own)


def checkpoints(group: Group) -> dict[str, int]:
    """Return the rounds after which accuracies are compared."""
    total = len(group.counted[0].rounds)
    return {
        "end of warm-up": round(0.1 * total),
        "a quarter": total // 4,
        "half": total // 2,
        "end": total,
    }


def accuracy(run: Run, after: int, clients: str = "priority") -> float:
    """Return these clients' test accuracy after a round, in percent."""
    return 100 * metric_after_round(run.rounds[after - 1], clients, "accuracy")


def print_non_priority(groups: Sequence[Group]) -> None:
    """Print the accuracy on the non-priority clients' own test parts, and who leads."""
    moments = checkpoints(groups[0])
    alone = {r.seed: r for g in groups if g.strategy == "local_only" for r in g.counted}
    print("\n| non-priority clients' test accuracy | " + " | ".join(moments) + " |")
    print("| --- |" + " --- |" * len(moments))
    for group in groups:
        cells = []
        for after in moments.values():
            values = {run.seed: accuracy(run, after, "non_priority") for run in group.counted}
            text = mean_sd(list(values.values()))
            if group.strategy != "local_only":
                ahead = [v > accuracy(alone[k], after, "non_priority") for k, v in values.items()]
                text += f" ({sum(ahead)}/{len(ahead)} ahead of local)"
            cells.append(text)
        print(f"| {group.method} | " + " | ".join(cells) + " |")


def print_admitted_clients(groups: Sequence[Group]) -> None:
    """Print the same at the end for the clients that the gate ever admitted: global and local."""
    alone = {r.seed: r for g in groups if g.strategy == "local_only" for r in g.counted}
    print("\n| clients ever admitted, end | how many | global model | their own models |")
    print("| --- | --- | --- | --- |")
    for group in (g for g in groups if g.strategy == "fedalign"):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in group.counted:
            rows = pq.read_table(run.directory / "clients").to_pylist()
            admitted = {r["client"] for r in rows if r["weight"] > 0 and not r["priority"]}
            counts.append(float(len(admitted)))
            for values, source in ((ours, run), (theirs, alone[run.seed])):
                tested = pq.read_table(
                    source.directory / "evaluations", filters=[("round", "=", len(source.rounds))]
                ).to_pylist()
                own = [100 * r["test_accuracy"] for r in tested if r["client"] in admitted]
                values.append(statistics.mean(own))
        print(
            f"| {group.method} | {mean_sd(counts)} | {mean_sd(ours)} | {mean_sd(theirs)} "
            f"({sum(a > b for a, b in zip(ours, theirs, strict=True))}/{len(ours)} global ahead) |"
        )


def print_admissions(groups: Sequence[Group]) -> None:
    """Print how the gate sorts clients whose classes all lie inside the priority clients'."""
    print("\n| gate open, after warm-up | rounds x clients | admitted, inside | admitted, others |")
    print("| --- | --- | --- | --- |")
    for group in (g for g in groups if g.strategy == "fedalign"):
        asked: Counter[bool] = Counter()
        admitted: Counter[bool] = Counter()
        for run in group.counted:
            data, _ = run_data(run)
            priority = set(data.priority)
            classes = {k: set(data.client(k).y_train.tolist()) for k in range(data.num_clients)}
            covered = set().union(*(classes[k] for k in priority))
            is_open = {r.round for r in run.rounds if r.epsilon}
            for row in pq.read_table(run.directory / "clients").to_pylist():
                if not row["priority"] and row["round"] in is_open:
                    inside = classes[row["client"]] <= covered
                    asked[inside] += 1
                    admitted[inside] += row["weight"] > 0
        cells = [
            f"{admitted[inside]} of {asked[inside]} "
            f"({100 * admitted[inside] / max(asked[inside], 1):.1f} %)"
            for inside in (True, False)
        ]
        print(f"| {group.method} | {asked.total()} | " + " | ".join(cells) + " |")


def print_accuracies(groups: Sequence[Group]) -> None:
    """Print a row per strategy: mean and standard deviation over seeds."""
    moments = checkpoints(groups[0])
    print("| strategy | seeds | " + " | ".join(f"{m} ({r})" for m, r in moments.items()) + " |")
    print("| --- | --- |" + " --- |" * len(moments))
    for group in groups:
        cells = [mean_sd([accuracy(run, r) for run in group.counted]) for r in moments.values()]
        print(f"| {group.method} | {len(group.counted)} | " + " | ".join(cells) + " |")


def print_differences(groups: Sequence[Group]) -> None:
    """Print FedALIGN minus each baseline, paired by seed."""
    moments = checkpoints(groups[0])
    print("\n| paired difference, points | " + " | ".join(moments) + " |")
    print("| --- |" + " --- |" * len(moments))
    for group in (g for g in groups if g.strategy == "fedalign"):
        for baseline in (g for g in groups if g.strategy in BASELINES):
            cells = [
                mean_sd_ahead(paired(group, baseline, partial(accuracy, after=after)))
                for after in moments.values()
            ]
            label = f"{group.method} - {BASELINES[baseline.strategy]}"
            print(f"| {label} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
