"""Who is best where: methods against patterns of participation, by accuracy, worst and memory."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from fedquorum.records.reader import Run

from benchmarks.book.fedau import training_accuracy
from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Number, Table, differences, numbers
from server_app.report.groups import metric_after_round
from server_app.report.published import published_values

PATTERNS = ("bernoulli", "markov", "cyclic", "staircase", "sine", "interleaved")
PLAIN = "average_participating"
LATE = 10  # evaluations, the last ones, whose mean is a run's accuracy
TESTED = {"all": "", "mean_model": ", mean model"}
"""The groups of a record's ``test`` by what stands behind a method's name."""

RATES = ("client.lr", "strategy.server_lr")
Values = Mapping[str, Mapping[str, Mapping[int, float]]]


def answers_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run, over all clients; metrics are fractions.

    ``test`` by the clients' data, and ``worst10``, the mean of the worst tenth of the clients,
    after each of the last evaluations, by what was tested: the model, and the mean of the models
    that clients start from where there is one; ``training`` after the last; ``state_bytes``.
    """
    measured = [record for record in run.rounds if record.test is not None][-LATE:]
    tested = [name for name in TESTED if name in measured[-1].test]
    return {
        "pattern": run.settings["availability.name"],
        **{
            name: {of: [metric_after_round(r, of, metric) for r in measured] for of in tested}
            for name, metric in (("test", "accuracy"), ("worst10", "worst10"))
        },
        "training": training_accuracy(run),
        "state_bytes": run.rounds[-1].state_bytes,
    }


def rates_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return one table: training accuracy, percent, a row a method and a column a pair of rates."""
    pairs = sorted({_rates(run) for run in runs})
    found: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for run in runs:
        of = found.setdefault(run.strategy, {}).setdefault(_rates(run), [])
        of.append(100 * run.number("training"))
    headings = (f"{client:g}, {server:g}" for client, server in pairs)
    rows = tuple(
        (strategy, *(numbers(by_rates.get(pair, [])) for pair in pairs))
        for strategy, by_rates in found.items()
    )
    return {"rates": Table(("training accuracy, %: client and server rate", *headings), rows)}


def answers_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return the tables, a row a method and a column a pattern of participation.

    ``test``: accuracy over all clients by their data, percent, mean of the last evaluations.
    ``differences``: the same minus that of the plain average of the participants, seed by seed.
    ``worst10``: of the worst tenth of the clients. ``best``: in how many seeds a method is ahead of
    all others. ``state``: the server's beside the model.
    """
    test = _values(runs, partial(_late, "test"))
    worst = _values(runs, partial(_late, "worst10"))
    state = _values(runs, lambda run: {"all": run.number("state_bytes") / 1e6})
    return {
        "test": _table("test accuracy, %", test),
        "differences": _differences(test),
        "best": _best(test),
        "worst10": _table("worst 10 % of the clients, %", worst),
        "state": _table("server state, MB", state, 3),
    }


def fedawe_published(measured: Mapping[str, Table]) -> Mapping[str, Table]:
    """Return the accuracies of FedAWE's Table 2 on CIFAR-10; the paper's are of mean models."""
    patterns = measured["test"].headings[1:]
    methods = [str(method) for method, *_ in measured["test"].rows]
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        if method + TESTED["mean_model"] in methods:
            continue
        strategy = method.removesuffix(TESTED["mean_model"])
        settings = {"data.name": "cifar10", "strategy.name": strategy, "strategy.cutoff": 50.0}
        found = (
            published_values("fedawe/cifar10", settings | {"availability.name": pattern})
            for pattern in patterns
        )
        rows.append(
            (method, *(Number(100 * one[0].values["test"]) if one else None for one in found))
        )
    return {"published": Table(("published, %", *patterns), tuple(rows), digits=1)}


def _rates(run: KeptRun) -> tuple[float, ...]:
    return tuple(float(run.settings[key]) for key in RATES)


def _late(name: str, run: KeptRun) -> Mapping[str, float]:
    return {of: 100 * statistics.mean(values) for of, values in run.numbers[name].items()}


def _values(runs: Sequence[KeptRun], values: Callable[[KeptRun], Mapping[str, float]]) -> Values:
    """Return values by method, pattern and seed, the patterns in their order."""
    order = {pattern: place for place, pattern in enumerate(PATTERNS)}
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in sorted(runs, key=lambda one: (order[one.numbers["pattern"]], one.seed)):
        for of, value in values(run).items():
            by_pattern = found.setdefault(run.strategy + TESTED[of], {})
            by_pattern.setdefault(run.numbers["pattern"], {})[run.seed] = value
    return found


def _patterns(values: Values) -> tuple[str, ...]:
    return tuple(name for name in PATTERNS if any(name in found for found in values.values()))


def _table(title: str, values: Values, digits: int = 2) -> Table:
    patterns = _patterns(values)
    rows: list[tuple[Cell, ...]] = []
    for method in sorted(values):
        found = [values[method].get(pattern, {}) for pattern in patterns]
        rows.append((method, *(numbers(list(by_seed.values())) for by_seed in found)))
    return Table((title, *patterns), tuple(rows), digits)


def _differences(values: Values) -> Table:
    patterns = _patterns(values)
    rows: list[tuple[Cell, ...]] = []
    for method in sorted(set(values) - {PLAIN}):
        cells: list[Cell] = []
        for pattern in patterns:
            one, other = (values.get(name, {}).get(pattern, {}) for name in (method, PLAIN))
            cells.append(differences([one[seed] - other[seed] for seed in one if seed in other]))
        rows.append((f"{method} - {PLAIN}", *cells))
    return Table(("difference of test accuracy, points", *patterns), tuple(rows))


def _best(values: Values) -> Table:
    """Return how often each method is the best, of the seeds that all methods have."""
    patterns = _patterns(values)
    wins = {method: dict.fromkeys(patterns, 0) for method in sorted(values)}
    counts = dict.fromkeys(patterns, 0)
    for pattern in patterns:
        of = {method: found.get(pattern, {}) for method, found in values.items()}
        for seed in set.intersection(*map(set, of.values())):
            ahead, _ = max(((m, by_seed[seed]) for m, by_seed in of.items()), key=itemgetter(1))
            counts[pattern] += 1
            wins[ahead][pattern] += 1
    rows = tuple(
        (method, *(f"{won[pattern]} of {counts[pattern]}" for pattern in patterns))
        for method, won in wins.items()
    )
    return Table(("ahead of all others, seeds", *patterns), rows)
