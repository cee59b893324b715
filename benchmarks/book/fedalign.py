"""FedALIGN's claims, measured: accuracy over the run, and paired differences to both baselines."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow.parquet as pq
from fedquorum.named import FEDALIGN, NAMED
from fedquorum.records.reader import Run

from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from server_app.report.data import run_data
from server_app.report.groups import Group, group_runs, metric_after_round, paired
from server_app.report.methods import has_gate, trains_alone

BASELINES = {
    key: "all" if declared.selection.asks_all else "priority only"
    for key, declared in NAMED.items()
    if declared.weighting is FEDALIGN.weighting and not declared.selection.gated
}
"""Strategies that weigh clients as FedALIGN does, without its gate, by the clients that count."""
WARMUP = 0.1


def fedalign_tables(runs: Sequence[Run]) -> Mapping[str, Table]:
    """Return the tables of one or several experiments.

    ``accuracy``: test accuracy of the priority objective, percent, at the end of warm-up, at a
    quarter, at half and at the end of the rounds. ``differences``: the same of every FedALIGN
    variant minus each baseline, seed by seed. ``admissions``, where the data is in shards: whom
    the open gate admits, by whether their classes all lie inside the priority clients'. With
    local-only runs, instead: ``non_priority``, the accuracy on those clients' own test parts, and
    ``admitted``, the same for the clients that the gate ever admitted.
    """
    groups = group_runs(runs)
    if any(trains_alone(group.strategy) for group in groups):
        return {
            "non_priority": _accuracies(groups, "non_priority"),
            "admitted": _of_admitted(groups),
        }
    tables = {"accuracy": _accuracies(groups, "priority"), "differences": _differences(groups)}
    if runs[0].settings.get("data.shard_size"):
        tables["admissions"] = _admissions(groups)
    return tables


def _moments(group: Group) -> dict[str, int]:
    """Return the rounds after which accuracies are compared."""
    total = len(group.counted[0].rounds)
    return {
        "end of warm-up": max(1, round(WARMUP * total)),
        "a quarter": max(1, total // 4),
        "half": max(1, total // 2),
        "end": total,
    }


def _headings(groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(f"{moment} ({after})" for moment, after in _moments(groups[0]).items())


def _name(group: Group, groups: Sequence[Group]) -> str:
    """Return what tells a group from the others: with the preset's name if there are several."""
    several = len({one.experiment for one in groups}) > 1
    return f"{group.experiment.partition('/')[2]}, {group.method}" if several else group.method


def _accuracy(run: Run, after: int, clients: str = "priority") -> float:
    """Return these clients' test accuracy after a round, in percent."""
    return 100 * metric_after_round(run.rounds[after - 1], clients, "accuracy")


def _accuracies(groups: Sequence[Group], clients: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        moments = _moments(group).values()
        cells = [numbers([_accuracy(run, at, clients) for run in group.counted]) for at in moments]
        rows.append((_name(group, groups), len(group.counted), *cells))
    return Table(("strategy", "seeds", *_headings(groups)), tuple(rows))


def _differences(groups: Sequence[Group]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for group in (g for g in groups if has_gate(g.strategy)):
        for baseline in (g for g in groups if _met_the_same(g, group)):
            cells = [
                differences(paired(group, baseline, partial(_accuracy, after=after)))
                for after in _moments(group).values()
            ]
            rows.append((f"{_name(group, groups)} - {BASELINES[baseline.strategy]}", *cells))
    return Table(("difference, points", *_headings(groups)), tuple(rows))


def _met_the_same(baseline: Group, group: Group) -> bool:
    """Return whether a group is a baseline on the same data, trained the same way."""

    def world(one: Group) -> dict[str, object]:
        settings = one.runs[0].settings
        return {key: settings[key] for key in settings if key.startswith(("data.", "client."))}

    same = baseline.experiment == group.experiment and world(baseline) == world(group)
    return same and baseline.strategy in BASELINES


def _of_admitted(groups: Sequence[Group]) -> Table:
    alone = {r.seed: r for g in groups if trains_alone(g.strategy) for r in g.counted}
    rows: list[tuple[Cell, ...]] = []
    for group in (g for g in groups if has_gate(g.strategy)):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in (r for r in group.counted if r.seed in alone):
            table = pq.read_table(run.directory / "clients").to_pylist()
            admitted = {r["client"] for r in table if r["weight"] > 0 and not r["priority"]}
            counts.append(float(len(admitted)))
            if admitted:
                ours.append(statistics.mean(_tested(run, admitted)))
                theirs.append(statistics.mean(_tested(alone[run.seed], admitted)))
        ahead = sum(a > b for a, b in zip(ours, theirs, strict=True))
        cells = (numbers(counts), numbers(ours), numbers(theirs), f"{ahead} of {len(ours)}")
        rows.append((group.method, *cells))
    headings = ("strategy", "clients ever admitted", "global model", "their own models")
    return Table((*headings, "seeds with the global one ahead"), tuple(rows))


def _tested(run: Run, clients: set[int]) -> Iterator[float]:
    """Yield the clients' test accuracies after the last round, in percent."""
    filters = [("round", "=", len(run.rounds))]
    for row in pq.read_table(run.directory / "evaluations", filters=filters).to_pylist():
        if row["client"] in clients:
            yield 100 * row["test_accuracy"]


def _admissions(groups: Sequence[Group]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for group in (g for g in groups if has_gate(g.strategy)):
        asked: Counter[bool] = Counter()
        admitted: Counter[bool] = Counter()
        for run in group.counted:
            data, _ = run_data(run)
            classes = {k: set(data.client(k).y_train.tolist()) for k in range(data.num_clients)}
            covered = set().union(*(classes[k] for k in data.priority))
            is_open = {r.round for r in run.rounds if r.epsilon}
            for row in pq.read_table(run.directory / "clients").to_pylist():
                if not row["priority"] and row["round"] in is_open:
                    inside = classes[row["client"]] <= covered
                    asked[inside] += 1
                    admitted[inside] += row["weight"] > 0
        cells = [
            cell
            for inside in (True, False)
            for cell in (
                admitted[inside],
                asked[inside],
                Number(round(100 * admitted[inside] / asked[inside], 2)) if asked[inside] else None,
            )
        ]
        rows.append((group.method, *cells))
    columns = ("admitted", "of, rounds x clients", "%")
    headings = [f"{clients}: {column}" for clients in ("inside", "others") for column in columns]
    return Table(("gate open", *headings), tuple(rows), digits=1)
