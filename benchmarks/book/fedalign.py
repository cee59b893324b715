"""Tables for FedALIGN's claims: accuracy over the run, and paired differences to baselines."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
from fedquorum.records.reader import Run
from fedquorum.registry import FEDALIGN, NAMED_STRATEGIES
from fedquorum.report.methods import has_gate
from fedquorum.report.seed_groups import abbreviate_setting, get_test_metric
from fedquorum.rules.description import Goal

from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun
from server_app.runs.reload import reload_data

BASELINES = {
    key: "priority only" if entry.goal is Goal.PRIORITY else "all"
    for key, entry in NAMED_STRATEGIES.items()
    if entry.weighting is FEDALIGN.weighting and not entry.selection.traits.has_gate
}
"""Strategies with FedALIGN's weighting but no gate, with the clients that they average."""
WARMUP_FRACTION = 0.1
INSIDE, OTHERS = "inside", "others"


def collect_fedalign_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run.

    ``priority`` and ``non_priority`` are test accuracies, as fractions, at the compared moments.
    ``objective`` is F(w) on the priority clients' training splits, in nats, at the same moments;
    runs logged before 2026-11-24 lack it. ``admissions`` is for runs with a gate on sharded data:
    how often the open gate selected and admitted clients whose classes all belong to priority
    clients, and the others.
    """
    moments = _compute_moments(len(run.rounds)).values()
    numbers: dict[str, Any] = {
        clients: {
            after: get_test_metric(run.rounds[after - 1], clients, "accuracy") for after in moments
        }
        for clients in ("priority", "non_priority")
    }
    numbers["objective"] = _compute_objectives(run, moments)
    if has_gate(run.strategy) and run.settings.get("data.partition") == "shards":
        numbers["admissions"] = _count_admissions(run)
    return numbers


def build_fedalign_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables of one or more experiments.

    ``accuracy``: test accuracy of the priority objective, percent, at the end of warm-up, at a
    quarter, at half and at the end of the rounds. ``differences``: every FedALIGN variant minus
    each baseline, paired by seed. ``changes``: the gain of every method since the end of warm-up.
    ``admissions``, for sharded data only: how often the open gate admits clients whose classes all
    belong to priority clients, and the others.
    """
    methods = group_methods(runs)
    accuracies = get_accuracies(methods)
    tables = {
        "accuracy": build_seed_table(methods, "strategy", accuracies),
        "differences": build_baseline_table(methods, "difference, points", accuracies),
        "changes": _build_changes(methods),
    }
    if any("admissions" in run.numbers for run in runs):
        tables["admissions"] = _build_admission_table(methods)
    return tables


def build_synth_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build FedALIGN's tables and, as in Figure 2, those of the training objective F.

    ``objective``: F(w) on the priority clients' training splits, nats, at the same moments.
    ``objective_differences``: every FedALIGN variant minus each baseline. Both are missing if no
    run has F in the log.
    """
    tables = dict(build_fedalign_tables(runs))
    if not any("objective" in run.numbers for run in runs):
        return tables
    methods = group_methods(runs)
    objectives = format_moments(
        methods,
        {moment: partial(get_objective, moment=moment) for moment in _compute_moments(1)},
    )
    heading = "training loss of the priority clients, nats"
    return {
        **tables,
        "objective": build_seed_table(methods, heading, objectives, digits=4),
        "objective_differences": build_baseline_table(
            methods, "difference of the training loss, nats", objectives, digits=4
        ),
    }


def collect_one_client_numbers(run: Run) -> Mapping[str, Any]:
    """Return FedALIGN's numbers, and each priority client's last test accuracy (``tested``)."""
    filters = [("round", "=", len(run.rounds)), ("priority", "=", True)]
    last = pq.read_table(run.directory / "evaluations", filters=filters).to_pylist()
    return {
        **collect_fedalign_numbers(run),
        "tested": {row["client"]: row["test_accuracy"] for row in last},
    }


def build_one_client_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables of a gate on the objective of one priority client, client 0.

    ``clients``: the last test accuracy of this client, and the unweighted mean of the other
    priority clients, percent. ``gains``: every FedALIGN variant minus each baseline, and the gate
    on client 0 minus the gate on all priority clients.
    """
    methods = group_methods(runs)
    accuracies = {
        "client 0, end": _get_first_accuracy,
        "other priority clients, end": _average_other_accuracies,
    }
    gains = build_baseline_table(methods, "difference, points", accuracies)
    gates = (
        build_difference_row(f"{one.name} - {other.name}", one, other, accuracies)
        for one in methods
        for other in methods
        if (_get_objective_client(one), _get_objective_client(other)) == ("0", "null")
    )
    return {
        **build_fedalign_tables(runs),
        "clients": build_seed_table(methods, "test accuracy, %", accuracies),
        "gains": replace(gains, rows=(*gains.rows, *gates)),
    }


def _get_objective_client(method: MethodRuns) -> str | None:
    """Return the override of ``strategy.objective_client``, None without one."""
    return method.runs[0].settings.get("strategy.objective_client")


def _get_first_accuracy(run: LoggedRun) -> float:
    return 100 * run.get_number("tested", "0")


def _average_other_accuracies(run: LoggedRun) -> float:
    return 100 * fmean(run.get_number("tested", k) for k in run.numbers["tested"] if k != "0")


ValuesByHeading = Mapping[str, Callable[[LoggedRun], float]]
"""Functions of a run, by table heading."""


def build_seed_table(
    compared: Sequence[MethodRuns], heading: str, values: ValuesByHeading, digits: int = 2
) -> ResultTable:
    """Build a table of mean and standard deviation over seeds, one row for each method."""
    rows = tuple(
        (
            method.name,
            len(method.runs),
            *(summarize_seeds(method.compute_values(value)) for value in values.values()),
        )
        for method in compared
    )
    return ResultTable((heading, "seeds", *values), rows, digits)


def build_baseline_table(
    compared: Sequence[MethodRuns], heading: str, values: ValuesByHeading, digits: int = 2
) -> ResultTable:
    """Build a table of every method with a gate minus each baseline, paired by seed."""
    rows = tuple(
        build_difference_row(
            f"{method.name} - {_format_baseline(baseline)}", method, baseline, values
        )
        for method in compared
        if has_gate(method.strategy)
        for baseline in compared
        if _is_comparable(baseline, method)
    )
    return ResultTable((heading, *values), rows, digits)


def build_difference_row(
    name: str, one: MethodRuns, other: MethodRuns, values: ValuesByHeading
) -> tuple[Cell, ...]:
    """Build a row of one method's values minus the other's, paired by seed."""
    return name, *(
        summarize_differences(compute_paired_differences(one, other, value))
        for value in values.values()
    )


def format_moments(compared: Sequence[MethodRuns], values: ValuesByHeading) -> ValuesByHeading:
    """Add the number of rounds of each moment to its heading."""
    moments = _compute_moments(compared[0].runs[0].rounds)
    return {f"{moment} ({moments[moment]})": value for moment, value in values.items()}


def get_accuracies(compared: Sequence[MethodRuns], clients: str = "priority") -> ValuesByHeading:
    """Return functions for the clients' test accuracy, percent, at the compared moments."""
    percent = {m: partial(get_accuracy, moment=m, clients=clients) for m in _compute_moments(1)}
    return format_moments(compared, percent)


def get_objective(run: LoggedRun, moment: str) -> float:
    """Return F(w) on the priority clients' training splits at a moment, NaN if not logged."""
    return run.get_number("objective", str(_compute_moments(run.rounds)[moment]))


def _compute_moments(total: int) -> dict[str, int]:
    """Return the number of rounds at each compared moment."""
    return {
        "end of warm-up": max(1, round(WARMUP_FRACTION * total)),
        "a quarter": max(1, total // 4),
        "half": max(1, total // 2),
        "end": total,
    }


def get_accuracy(run: LoggedRun, moment: str, clients: str = "priority") -> float:
    """Return the clients' test accuracy at a moment, in percent."""
    return 100 * run.get_number(clients, str(_compute_moments(run.rounds)[moment]))


def _format_baseline(method: MethodRuns) -> str:
    """Return the clients that a baseline averages, and its strategy settings."""
    settings = (f"{key}={value}" for key, value in method.select_overrides("strategy.").items())
    options = ", ".join(map(abbreviate_setting, settings))
    name = BASELINES[method.strategy]
    return f"{name} ({options})" if options else name


def _build_changes(compared: Sequence[MethodRuns]) -> ResultTable:
    """Build a table of each method's gain since the end of warm-up, paired by seed."""
    first, *later = _compute_moments(1)
    gains = format_moments(
        compared, {m: partial(_compute_gain, first=first, last=m) for m in later}
    )
    rows = tuple(
        (
            method.name,
            *(summarize_differences(method.compute_values(gain)) for gain in gains.values()),
        )
        for method in compared
    )
    return ResultTable(("change since the end of warm-up, points", *gains), rows)


def _compute_gain(run: LoggedRun, first: str, last: str) -> float:
    return get_accuracy(run, last) - get_accuracy(run, first)


def _is_comparable(baseline: MethodRuns, method: MethodRuns) -> bool:
    """Return whether a method is a baseline with the same data and training settings."""
    prefixes = ("experiment", "data", "client", "availability", "model", "rounds")
    is_same = baseline.select_overrides(*prefixes) == method.select_overrides(*prefixes)
    return is_same and baseline.strategy in BASELINES


def _compute_objectives(run: Run, moments: Iterable[int]) -> dict[int, float]:
    """Return F(w) = sum over priority clients of p_k F_k(w) by round, NaN if not evaluated."""
    filters = [("round", "in", list(moments)), ("priority", "=", True)]
    columns = ["round", "num_examples", "loss"]
    table = pq.read_table(run.directory / "evaluations", columns=columns, filters=filters)
    rows = [row for row in table.to_pylist() if row["loss"] is not None]
    return {
        after: _compute_mean_loss([row for row in rows if row["round"] == after])
        for after in moments
    }


def _compute_mean_loss(rows: Sequence[Mapping[str, Any]]) -> float:
    total = sum(row["num_examples"] for row in rows)
    return sum(row["num_examples"] / total * row["loss"] for row in rows) if total else math.nan


def _count_admissions(run: Run) -> Mapping[str, Mapping[str, int]]:
    """Count how often the open gate selected and admitted non-priority clients, by group."""
    selected: Counter[str] = Counter()
    admitted: Counter[str] = Counter()
    data, _ = reload_data(run)
    classes = {k: set(data.get_client(k).y_train.tolist()) for k in range(data.num_clients)}
    priority_classes = set().union(*(classes[k] for k in data.priority))
    open_rounds = {record.round for record in run.rounds if record.epsilon}
    for row in pq.read_table(run.directory / "clients").to_pylist():
        if not row["priority"] and row["round"] in open_rounds:
            group = INSIDE if classes[row["client"]] <= priority_classes else OTHERS
            selected[group] += 1
            admitted[group] += row["weight"] > 0
    return {
        group: {"admitted": admitted[group], "asked": selected[group]} for group in (INSIDE, OTHERS)
    }


def _build_admission_table(compared: Sequence[MethodRuns]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for method in compared:
        counted = [run for run in method.runs if "admissions" in run.numbers]
        if not counted:
            continue
        cells: list[Cell] = []
        for group in (INSIDE, OTHERS):
            counts = [run.numbers["admissions"][group] for run in counted]
            admitted, selected = (
                sum(count[name] for count in counts) for name in ("admitted", "asked")
            )
            percent = SeedStatistic(round(100 * admitted / selected, 2)) if selected else None
            cells += [admitted, selected, percent]
        rows.append((method.name, *cells))
    columns = ("admitted", "of, rounds x clients", "%")
    headings = [f"{group}: {column}" for group in (INSIDE, OTHERS) for column in columns]
    return ResultTable(("gate open", *headings), tuple(rows), digits=1)
