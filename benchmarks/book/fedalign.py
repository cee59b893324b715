"""FedALIGN's claims, measured: accuracy over the run, and paired differences to both baselines."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
from server_app.report.methods import has_gate, trains_alone

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
    compared. ``admissions``, where the data is in shards and the run has a gate: of the clients
    whose classes lie inside the priority clients', and of the others, how often they were admitted
    while the gate was open, and how often asked.
    """
    found: dict[str, Any] = {
        clients: {
            after: metric_after_round(run.rounds[after - 1], clients, "accuracy")
            for after in _moments(len(run.rounds)).values()
        }
        for clients in ("priority", "non_priority")
    }
    if has_gate(run.strategy) and run.settings.get("data.shard_size"):
        found["admissions"] = _admissions(run)
    return found


def local_only_numbers(run: Run) -> Mapping[str, Any]:
    """Return the same, ``tested``, the last test accuracy by client, and who was ever admitted."""
    table = pq.read_table(run.directory / "clients").to_pylist()
    admitted = {row["client"] for row in table if row["weight"] > 0 and not row["priority"]}
    last = pq.read_table(
        run.directory / "evaluations", filters=[("round", "=", len(run.rounds))]
    ).to_pylist()
    return {
        **fedalign_numbers(run),
        "admitted": sorted(admitted),
        "tested": {row["client"]: row["test_accuracy"] for row in last if not row["priority"]},
    }


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
        "accuracy": _accuracies(found, "priority"),
        "differences": _differences(found),
        "changes": _changes(found),
    }
    if any("admissions" in run.numbers for run in runs):
        tables["admissions"] = _admission_table(found)
    return tables


def local_only_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables of an experiment beside clients that train alone.

    ``non_priority``: accuracy on those clients' own test parts. ``admitted``: the same for the
    clients that the gate ever admitted.
    """
    found = methods(runs)
    return {"non_priority": _accuracies(found, "non_priority"), "admitted": _of_admitted(found)}


def _moments(total: int) -> dict[str, int]:
    """Return the rounds after which accuracies are compared."""
    return {
        "end of warm-up": max(1, round(WARMUP * total)),
        "a quarter": max(1, total // 4),
        "half": max(1, total // 2),
        "end": total,
    }


def _headings(found: Sequence[Method]) -> tuple[str, ...]:
    moments = _moments(found[0].runs[0].rounds)
    return tuple(f"{moment} ({after})" for moment, after in moments.items())


def _accuracy(run: KeptRun, moment: str, clients: str = "priority") -> float:
    """Return these clients' test accuracy at a moment, in percent."""
    return 100 * run.number(clients, str(_moments(run.rounds)[moment]))


def _accuracies(found: Sequence[Method], clients: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method in found:
        cells = [
            numbers(method.values(partial(_accuracy, moment=moment, clients=clients)))
            for moment in _moments(1)
        ]
        rows.append((method.name, len(method.runs), *cells))
    return Table(("strategy", "seeds", *_headings(found)), tuple(rows))


def _differences(found: Sequence[Method]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for method in (one for one in found if has_gate(one.strategy)):
        for baseline in (one for one in found if _met_the_same(one, method)):
            cells = [
                differences(paired(method, baseline, partial(_accuracy, moment=moment)))
                for moment in _moments(1)
            ]
            rows.append((f"{method.name} - {_baseline(baseline)}", *cells))
    return Table(("difference, points", *_headings(found)), tuple(rows))


def _baseline(method: Method) -> str:
    """Return whom a baseline averages, and its options of the strategy."""
    options = (f"{key}={value}" for key, value in method.with_words("strategy.").items())
    told = ", ".join(map(short_setting, options))
    name = BASELINES[method.strategy]
    return f"{name} ({told})" if told else name


def _changes(found: Sequence[Method]) -> Table:
    """Return how far each method is above its accuracy at the end of warm-up, seed by seed."""
    first, *later = _moments(1)
    rows: list[tuple[Cell, ...]] = []
    for method in found:
        cells = [differences(method.values(partial(_gain, first=first, last=m))) for m in later]
        rows.append((method.name, *cells))
    return Table(("change since the end of warm-up, points", *_headings(found)[1:]), tuple(rows))


def _gain(run: KeptRun, first: str, last: str) -> float:
    return _accuracy(run, last) - _accuracy(run, first)


def _met_the_same(baseline: Method, method: Method) -> bool:
    """Return whether a method is a baseline on the same data, trained the same way."""
    world = ("experiment", "data", "client", "availability", "model", "rounds")
    same = baseline.with_words(*world) == method.with_words(*world)
    return same and baseline.strategy in BASELINES


def _of_admitted(found: Sequence[Method]) -> Table:
    alone = {run.seed: run for m in found if trains_alone(m.strategy) for run in m.runs}
    rows: list[tuple[Cell, ...]] = []
    for method in (one for one in found if has_gate(one.strategy)):
        counts: list[float] = []
        ours: list[float] = []
        theirs: list[float] = []
        for run in (one for one in method.runs if one.seed in alone):
            admitted = run.numbers["admitted"]
            counts.append(float(len(admitted)))
            if admitted:
                ours.append(statistics.mean(_tested(run, admitted)))
                theirs.append(statistics.mean(_tested(alone[run.seed], admitted)))
        ahead = sum(a > b for a, b in zip(ours, theirs, strict=True))
        cells = (numbers(counts), numbers(ours), numbers(theirs), f"{ahead} of {len(ours)}")
        rows.append((method.name, *cells))
    headings = ("strategy", "clients ever admitted", "global model", "their own models")
    return Table((*headings, "seeds with the global one ahead"), tuple(rows))


def _tested(run: KeptRun, clients: Sequence[int]) -> Iterator[float]:
    """Yield the clients' test accuracies after the last round, in percent."""
    for client in clients:
        yield 100 * run.number("tested", str(client))


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
    for method in (one for one in found if has_gate(one.strategy)):
        cells: list[Cell] = []
        for where in (INSIDE, OTHERS):
            of = [run.numbers["admissions"][where] for run in method.runs]
            admitted, asked = (sum(counts[name] for counts in of) for name in ("admitted", "asked"))
            share = Number(round(100 * admitted / asked, 2)) if asked else None
            cells += [admitted, asked, share]
        rows.append((method.name, *cells))
    columns = ("admitted", "of, rounds x clients", "%")
    headings = [f"{clients}: {column}" for clients in (INSIDE, OTHERS) for column in columns]
    return Table(("gate open", *headings), tuple(rows), digits=1)
