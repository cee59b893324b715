"""FedALIGN's claims, measured: accuracy over the run, and paired differences to both baselines."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
from fedquorum.named import FEDALIGN, NAMED
from fedquorum.records.reader import Run
from fedquorum.rule import Question

from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from benchmarks.book.methods import Method, methods, paired
from server_app.report.data import run_data
from server_app.report.groups import metric_after_round, short_setting
from server_app.report.methods import has_gate

BASELINES = {
    key: "priority only" if declared.answers is Question.PRIORITY else "all"
    for key, declared in NAMED.items()
    if declared.weighting is FEDALIGN.weighting and not declared.selection.gated
}
"""Strategies that weigh clients as FedALIGN does, without its gate, by the clients that count."""
WARMUP = 0.1
INSIDE, OTHERS = "inside", "others"


def fedalign_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run.

    ``priority`` and ``non_priority``: their test accuracies, as fractions, at the moments that are
    compared. ``objective``: F(w) on the priority clients' training parts, in nats, at the same
    moments; runs that were kept before 2026-11-24 lack it. ``admissions``, where the data is in
    shards and the run has a gate: of the clients whose classes lie inside the priority clients',
    and of the others, how often they were admitted while the gate was open, and how often asked.
    """
    moments = _moments(len(run.rounds)).values()
    found: dict[str, Any] = {
        clients: {
            after: metric_after_round(run.rounds[after - 1], clients, "accuracy")
            for after in moments
        }
        for clients in ("priority", "non_priority")
    }
    found["objective"] = _objectives(run, moments)
    if has_gate(run.strategy) and run.settings.get("data.partition") == "shards":
        found["admissions"] = _admissions(run)
    return found


def fedalign_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables of one or several experiments.

    ``accuracy``: test accuracy of the priority objective, percent, at the end of warm-up, at a
    quarter, at half and at the end of the rounds. ``differences``: the same of every FedALIGN
    variant minus each baseline, seed by seed. ``changes``: what every method gains or loses from
    the end of warm-up on. ``admissions``, where the data is in shards: whom
    the open gate admits, by whether their classes all lie inside the priority clients'.
    """
    found = methods(runs)
    tables = {
        "accuracy": of_methods(found, "strategy", accuracies(found)),
        "differences": to_baselines(found, "difference, points", accuracies(found)),
        "changes": _changes(found),
    }
    if any("admissions" in run.numbers for run in runs):
        tables["admissions"] = _admission_table(found)
    return tables


def synth_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the same, and what Figure 2 shows beside the accuracy: F on the training data.

    ``objective``: F(w) of the priority clients' training parts, nats, at the same moments.
    ``objective_differences``: the same of every FedALIGN variant minus each baseline. Neither is
    there where no run kept F.
    """
    tables = dict(fedalign_tables(runs))
    if not any("objective" in run.numbers for run in runs):
        return tables
    found = methods(runs)
    losses = {moment: partial(objective_at, moment=moment) for moment in _moments(1)}
    told = "training loss of the priority clients, nats"
    return {
        **tables,
        "objective": of_methods(found, told, moments_of(found, losses), digits=4),
        "objective_differences": to_baselines(
            found, "difference of the training loss, nats", moments_of(found, losses), digits=4
        ),
    }


def one_client_numbers(run: Run) -> Mapping[str, Any]:
    """Return the numbers of a run, and each priority client's last test accuracy (``tested``)."""
    wanted = [("round", "=", len(run.rounds)), ("priority", "=", True)]
    last = pq.read_table(run.directory / "evaluations", filters=wanted).to_pylist()
    return {
        **fedalign_numbers(run),
        "tested": {row["client"]: row["test_accuracy"] for row in last},
    }


def one_client_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables of a gate that compares with one priority client, client 0.

    ``clients``: the last test accuracy of this client and, unweighted, of the other priority
    clients, percent. ``gains``: the same of every FedALIGN variant minus each baseline, and of the
    gate that compares with client 0 minus the one that compares with all priority clients.
    """
    found = methods(runs)
    tested = {"client 0, end": _of_first, "other priority clients, end": _of_others}
    gains = to_baselines(found, "difference, points", tested)
    gates = (
        gaps(f"{one.name} - {other.name}", one, other, tested)
        for one in found
        for other in found
        if (_compares_with(one), _compares_with(other)) == ("0", "null")
    )
    return {
        **fedalign_tables(runs),
        "clients": of_methods(found, "test accuracy, %", tested),
        "gains": replace(gains, rows=(*gains.rows, *gates)),
    }


def _compares_with(method: Method) -> str | None:
    """Return with whom the gate compares, as the words have it, None without a gate."""
    return method.runs[0].settings.get("strategy.objective_client")


def _of_first(run: KeptRun) -> float:
    return 100 * run.number("tested", "0")


def _of_others(run: KeptRun) -> float:
    return 100 * fmean(run.number("tested", k) for k in run.numbers["tested"] if k != "0")


Values = Mapping[str, Callable[[KeptRun], float]]
"""What is told of a run, by its heading."""


def of_methods(found: Sequence[Method], heading: str, values: Values, digits: int = 2) -> Table:
    """Return mean and standard deviation over seeds of values of each method."""
    rows = tuple(
        (method.name, len(method.runs), *(numbers(method.values(v)) for v in values.values()))
        for method in found
    )
    return Table((heading, "seeds", *values), rows, digits)


def to_baselines(found: Sequence[Method], heading: str, values: Values, digits: int = 2) -> Table:
    """Return values of every method with a gate minus those of each baseline, seed by seed."""
    rows = tuple(
        gaps(f"{method.name} - {_baseline(baseline)}", method, baseline, values)
        for method in found
        if has_gate(method.strategy)
        for baseline in found
        if _met_the_same(baseline, method)
    )
    return Table((heading, *values), rows, digits)


def gaps(name: str, one: Method, other: Method, values: Values) -> tuple[Cell, ...]:
    """Return a row of one method's values minus the other's, seed by seed."""
    return name, *(differences(paired(one, other, value)) for value in values.values())


def moments_of(found: Sequence[Method], values: Values) -> Values:
    """Return values by moment with headings that say after how many rounds."""
    moments = _moments(found[0].runs[0].rounds)
    return {f"{moment} ({moments[moment]})": value for moment, value in values.items()}


def accuracies(found: Sequence[Method], clients: str = "priority") -> Values:
    """Return the test accuracies of clients, percent, at the moments compared."""
    percent = {m: partial(accuracy, moment=m, clients=clients) for m in _moments(1)}
    return moments_of(found, percent)


def objective_at(run: KeptRun, moment: str) -> float:
    """Return F(w) on the priority clients' training parts at a moment, NaN where it is not kept."""
    return run.number("objective", str(_moments(run.rounds)[moment]))


def _moments(total: int) -> dict[str, int]:
    """Return the rounds after which accuracies are compared."""
    return {
        "end of warm-up": max(1, round(WARMUP * total)),
        "a quarter": max(1, total // 4),
        "half": max(1, total // 2),
        "end": total,
    }


def accuracy(run: KeptRun, moment: str, clients: str = "priority") -> float:
    """Return the clients' test accuracy at a moment, in percent."""
    return 100 * run.number(clients, str(_moments(run.rounds)[moment]))


def _baseline(method: Method) -> str:
    """Return whom a baseline averages, and its options of the strategy."""
    options = (f"{key}={value}" for key, value in method.with_words("strategy.").items())
    told = ", ".join(map(short_setting, options))
    name = BASELINES[method.strategy]
    return f"{name} ({told})" if told else name


def _changes(found: Sequence[Method]) -> Table:
    """Return how far each method is above its accuracy at the end of warm-up, seed by seed."""
    first, *later = _moments(1)
    gains = moments_of(found, {m: partial(_gain, first=first, last=m) for m in later})
    rows = tuple(
        (method.name, *(differences(method.values(gain)) for gain in gains.values()))
        for method in found
    )
    return Table(("change since the end of warm-up, points", *gains), rows)


def _gain(run: KeptRun, first: str, last: str) -> float:
    return accuracy(run, last) - accuracy(run, first)


def _met_the_same(baseline: Method, method: Method) -> bool:
    """Return whether a method is a baseline on the same data, trained the same way."""
    world = ("experiment", "data", "client", "availability", "model", "rounds")
    same = baseline.with_words(*world) == method.with_words(*world)
    return same and baseline.strategy in BASELINES


def _objectives(run: Run, moments: Iterable[int]) -> dict[int, float]:
    """Return F(w) = sum over priority clients of p_k F_k(w) after rounds, NaN if not measured."""
    wanted = [("round", "in", list(moments)), ("priority", "=", True)]
    columns = ["round", "num_examples", "loss"]
    table = pq.read_table(run.directory / "evaluations", columns=columns, filters=wanted)
    rows = [row for row in table.to_pylist() if row["loss"] is not None]
    return {after: _mean_loss([row for row in rows if row["round"] == after]) for after in moments}


def _mean_loss(rows: Sequence[Mapping[str, Any]]) -> float:
    total = sum(row["num_examples"] for row in rows)
    return sum(row["num_examples"] / total * row["loss"] for row in rows) if total else math.nan


def _admissions(run: Run) -> Mapping[str, Mapping[str, int]]:
    asked: Counter[str] = Counter()
    admitted: Counter[str] = Counter()
    data, _ = run_data(run)
    classes = {k: set(data.client(k).y_train.tolist()) for k in range(data.num_clients)}
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


def _admission_table(found: Sequence[Method]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method in found:
        counted = [run for run in method.runs if "admissions" in run.numbers]
        if not counted:
            continue
        cells: list[Cell] = []
        for where in (INSIDE, OTHERS):
            of = [run.numbers["admissions"][where] for run in counted]
            admitted, asked = (sum(counts[name] for counts in of) for name in ("admitted", "asked"))
            share = Number(round(100 * admitted / asked, 2)) if asked else None
            cells += [admitted, asked, share]
        rows.append((method.name, *cells))
    columns = ("admitted", "of, rounds x clients", "%")
    headings = [f"{clients}: {column}" for clients in (INSIDE, OTHERS) for column in columns]
    return Table(("gate open", *headings), tuple(rows), digits=1)
