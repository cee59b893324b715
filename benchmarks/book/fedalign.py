"""FedALIGN's claims, measured: accuracy over the run, and paired differences to both baselines."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
from fedquorum.named import FEDALIGN, NAMED_STRATEGIES
from fedquorum.records.reader import Run
from fedquorum.rule import Goal

from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun
from server_app.report.methods import has_gate
from server_app.report.rebuild import reload_data
from server_app.report.seed_groups import abbreviate_setting, get_test_metric

BASELINES = {
    key: "priority only" if declared.goal is Goal.PRIORITY else "all"
    for key, declared in NAMED_STRATEGIES.items()
    if declared.weighting is FEDALIGN.weighting and not declared.selection.has_gate
}
"""Strategies that weigh clients as FedALIGN does, without its gate, by the clients that count."""
WARMUP_FRACTION = 0.1
INSIDE, OTHERS = "inside", "others"


def collect_fedalign_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run.

    ``priority`` and ``non_priority``: their test accuracies, as fractions, at the moments that are
    compared. ``objective``: F(w) on the priority clients' training parts, in nats, at the same
    moments; runs that were kept before 2026-11-24 lack it. ``admissions``, where the data is in
    shards and the run has a gate: of the clients whose classes lie inside the priority clients',
    and of the others, how often they were admitted while the gate was open, and how often asked.
    """
    moments = _compute_moments(len(run.rounds)).values()
    found: dict[str, Any] = {
        clients: {
            after: get_test_metric(run.rounds[after - 1], clients, "accuracy") for after in moments
        }
        for clients in ("priority", "non_priority")
    }
    found["objective"] = _compute_objectives(run, moments)
    if has_gate(run.strategy) and run.settings.get("data.partition") == "shards":
        found["admissions"] = _count_admissions(run)
    return found


def build_fedalign_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Return the tables of one or several experiments.

    ``accuracy``: test accuracy of the priority objective, percent, at the end of warm-up, at a
    quarter, at half and at the end of the rounds. ``differences``: the same of every FedALIGN
    variant minus each baseline, seed by seed. ``changes``: what every method gains or loses from
    the end of warm-up on. ``admissions``, where the data is in shards: whom
    the open gate admits, by whether their classes all lie inside the priority clients'.
    """
    found = group_methods(runs)
    tables = {
        "accuracy": build_seed_table(found, "strategy", get_accuracies(found)),
        "differences": build_baseline_table(found, "difference, points", get_accuracies(found)),
        "changes": _build_changes(found),
    }
    if any("admissions" in run.numbers for run in runs):
        tables["admissions"] = _build_admission_table(found)
    return tables


def build_synth_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Return the same, and what Figure 2 shows beside the accuracy: F on the training data.

    ``objective``: F(w) of the priority clients' training parts, nats, at the same moments.
    ``objective_differences``: the same of every FedALIGN variant minus each baseline. Neither is
    there where no run kept F.
    """
    tables = dict(build_fedalign_tables(runs))
    if not any("objective" in run.numbers for run in runs):
        return tables
    found = group_methods(runs)
    losses = {moment: partial(get_objective, moment=moment) for moment in _compute_moments(1)}
    told = "training loss of the priority clients, nats"
    return {
        **tables,
        "objective": build_seed_table(found, told, format_moments(found, losses), digits=4),
        "objective_differences": build_baseline_table(
            found, "difference of the training loss, nats", format_moments(found, losses), digits=4
        ),
    }


def collect_one_client_numbers(run: Run) -> Mapping[str, Any]:
    """Return the numbers of a run, and each priority client's last test accuracy (``tested``)."""
    wanted = [("round", "=", len(run.rounds)), ("priority", "=", True)]
    last = pq.read_table(run.directory / "evaluations", filters=wanted).to_pylist()
    return {
        **collect_fedalign_numbers(run),
        "tested": {row["client"]: row["test_accuracy"] for row in last},
    }


def build_one_client_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Return the tables of a gate that compares with one priority client, client 0.

    ``clients``: the last test accuracy of this client and, unweighted, of the other priority
    clients, percent. ``gains``: the same of every FedALIGN variant minus each baseline, and of the
    gate that compares with client 0 minus the one that compares with all priority clients.
    """
    found = group_methods(runs)
    tested = {
        "client 0, end": _get_first_accuracy,
        "other priority clients, end": _average_other_accuracies,
    }
    gains = build_baseline_table(found, "difference, points", tested)
    gates = (
        build_difference_row(f"{one.name} - {other.name}", one, other, tested)
        for one in found
        for other in found
        if (_get_objective_client(one), _get_objective_client(other)) == ("0", "null")
    )
    return {
        **build_fedalign_tables(runs),
        "clients": build_seed_table(found, "test accuracy, %", tested),
        "gains": replace(gains, rows=(*gains.rows, *gates)),
    }


def _get_objective_client(method: MethodRuns) -> str | None:
    """Return with whom the gate compares, as the words have it, None without a gate."""
    return method.runs[0].settings.get("strategy.objective_client")


def _get_first_accuracy(run: LoggedRun) -> float:
    return 100 * run.get_number("tested", "0")


def _average_other_accuracies(run: LoggedRun) -> float:
    return 100 * fmean(run.get_number("tested", k) for k in run.numbers["tested"] if k != "0")


ValuesByHeading = Mapping[str, Callable[[LoggedRun], float]]
"""What is told of a run, by its heading."""


def build_seed_table(
    compared: Sequence[MethodRuns], heading: str, values: ValuesByHeading, digits: int = 2
) -> ResultTable:
    """Return mean and standard deviation over seeds of values of each method."""
    rows = tuple(
        (
            method.name,
            len(method.runs),
            *(summarize_seeds(method.compute_values(v)) for v in values.values()),
        )
        for method in compared
    )
    return ResultTable((heading, "seeds", *values), rows, digits)


def build_baseline_table(
    compared: Sequence[MethodRuns], heading: str, values: ValuesByHeading, digits: int = 2
) -> ResultTable:
    """Return values of every method with a gate minus those of each baseline, seed by seed."""
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
    """Return a row of one method's values minus the other's, seed by seed."""
    return name, *(
        summarize_differences(compute_paired_differences(one, other, value))
        for value in values.values()
    )


def format_moments(compared: Sequence[MethodRuns], values: ValuesByHeading) -> ValuesByHeading:
    """Return values by moment with headings that say after how many rounds."""
    moments = _compute_moments(compared[0].runs[0].rounds)
    return {f"{moment} ({moments[moment]})": value for moment, value in values.items()}


def get_accuracies(compared: Sequence[MethodRuns], clients: str = "priority") -> ValuesByHeading:
    """Return the test accuracies of clients, percent, at the moments compared."""
    percent = {m: partial(get_accuracy, moment=m, clients=clients) for m in _compute_moments(1)}
    return format_moments(compared, percent)


def get_objective(run: LoggedRun, moment: str) -> float:
    """Return F(w) on the priority clients' training parts at a moment, NaN where it is not kept."""
    return run.get_number("objective", str(_compute_moments(run.rounds)[moment]))


def _compute_moments(total: int) -> dict[str, int]:
    """Return the rounds after which accuracies are compared."""
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
    """Return whom a baseline averages, and its options of the strategy."""
    options = (f"{key}={value}" for key, value in method.select_overrides("strategy.").items())
    told = ", ".join(map(abbreviate_setting, options))
    name = BASELINES[method.strategy]
    return f"{name} ({told})" if told else name


def _build_changes(compared: Sequence[MethodRuns]) -> ResultTable:
    """Return how far each method is above its accuracy at the end of warm-up, seed by seed."""
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
    """Return whether a method is a baseline on the same data, trained the same way."""
    world = ("experiment", "data", "client", "availability", "model", "rounds")
    same = baseline.select_overrides(*world) == method.select_overrides(*world)
    return same and baseline.strategy in BASELINES


def _compute_objectives(run: Run, moments: Iterable[int]) -> dict[int, float]:
    """Return F(w) = sum over priority clients of p_k F_k(w) after rounds, NaN if not measured."""
    wanted = [("round", "in", list(moments)), ("priority", "=", True)]
    columns = ["round", "num_examples", "loss"]
    table = pq.read_table(run.directory / "evaluations", columns=columns, filters=wanted)
    rows = [row for row in table.to_pylist() if row["loss"] is not None]
    return {
        after: _compute_mean_loss([row for row in rows if row["round"] == after])
        for after in moments
    }


def _compute_mean_loss(rows: Sequence[Mapping[str, Any]]) -> float:
    total = sum(row["num_examples"] for row in rows)
    return sum(row["num_examples"] / total * row["loss"] for row in rows) if total else math.nan


def _count_admissions(run: Run) -> Mapping[str, Mapping[str, int]]:
    asked: Counter[str] = Counter()
    admitted: Counter[str] = Counter()
    data, _ = reload_data(run)
    classes = {k: set(data.get_client(k).y_train.tolist()) for k in range(data.num_clients)}
    covered = set().union(*(classes[k] for k in data.priority))
    is_open = {r.round for r in run.rounds if r.epsilon}
    for row in pq.read_table(run.directory / "clients").to_pylist():
        if not row["priority"] and row["round"] in is_open:
            where = INSIDE if classes[row["client"]] <= covered else OTHERS
            asked[where] += 1
            admitted[where] += row["weight"] > 0
    return {
        where: {"admitted": admitted[where], "asked": asked[where]} for where in (INSIDE, OTHERS)
    }


def _build_admission_table(compared: Sequence[MethodRuns]) -> ResultTable:
    rows: list[tuple[Cell, ...]] = []
    for method in compared:
        counted = [run for run in method.runs if "admissions" in run.numbers]
        if not counted:
            continue
        cells: list[Cell] = []
        for where in (INSIDE, OTHERS):
            of = [run.numbers["admissions"][where] for run in counted]
            admitted, asked = (sum(counts[name] for counts in of) for name in ("admitted", "asked"))
            share = SeedStatistic(round(100 * admitted / asked, 2)) if asked else None
            cells += [admitted, asked, share]
        rows.append((method.name, *cells))
    columns = ("admitted", "of, rounds x clients", "%")
    headings = [f"{clients}: {column}" for clients in (INSIDE, OTHERS) for column in columns]
    return ResultTable(("gate open", *headings), tuple(rows), digits=1)
