"""Who is best where: methods against patterns of participation, by accuracy, worst and memory."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from fedquorum.records.reader import Run

from benchmarks.book.fedau import compute_training_accuracy
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun
from server_app.report.published import find_published_results
from server_app.report.seed_groups import get_test_metric

PATTERNS = ("bernoulli", "markov", "cyclic", "staircase", "sine", "interleaved")
BASELINE = "average_participating"
NUM_LAST_EVALUATIONS = 10  # evaluations, the last ones, whose mean is a run's accuracy
TEST_GROUP_SUFFIXES = {"all": "", "mean_model": ", mean model"}
"""The groups of a record's ``test`` by what stands behind a method's name."""

RATE_KEYS = ("client.lr", "strategy.server_lr")
ValuesByMethod = Mapping[str, Mapping[str, Mapping[int, float]]]


def collect_participation_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run, over all clients; metrics are fractions.

    ``test`` by the clients' data, and ``worst10``, the mean of the worst tenth of the clients,
    after each of the last evaluations, by what was tested: the model, and the mean of the models
    that clients start from where there is one; ``training`` after the last; ``state_bytes``.
    """
    measured = [record for record in run.rounds if record.test is not None][-NUM_LAST_EVALUATIONS:]
    tested = [name for name in TEST_GROUP_SUFFIXES if name in measured[-1].test]
    return {
        "pattern": run.settings["availability.name"],
        **{
            name: {of: [get_test_metric(r, of, metric) for r in measured] for of in tested}
            for name, metric in (("test", "accuracy"), ("worst10", "worst10"))
        },
        "training": compute_training_accuracy(run),
        "state_bytes": run.rounds[-1].state_bytes,
    }


def build_rate_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Return one table: training accuracy, percent, a row a method and a column a pair of rates."""
    pairs = sorted({_get_rates(run) for run in runs})
    found: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for run in runs:
        of = found.setdefault(run.strategy, {}).setdefault(_get_rates(run), [])
        of.append(100 * run.get_number("training"))
    headings = (f"{client:g}, {server:g}" for client, server in pairs)
    rows = tuple(
        (strategy, *(summarize_seeds(by_rates.get(pair, [])) for pair in pairs))
        for strategy, by_rates in found.items()
    )
    return {"rates": ResultTable(("training accuracy, %: client and server rate", *headings), rows)}


def build_participation_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Return the tables, a row a method and a column a pattern of participation.

    ``test``: accuracy over all clients by their data, percent, mean of the last evaluations.
    ``differences``: the same minus that of the plain average of the participants, seed by seed.
    ``worst10``: of the worst tenth of the clients. ``best``: in how many seeds a method is ahead of
    all others. ``state``: the server's beside the model.
    """
    test = _group_values(runs, partial(_average_last, "test"))
    worst = _group_values(runs, partial(_average_last, "worst10"))
    state = _group_values(runs, lambda run: {"all": run.get_number("state_bytes") / 1e6})
    return {
        "test": _build_table("test accuracy, %", test),
        "differences": _build_differences(test),
        "best": _count_wins(test),
        "worst10": _build_table("worst 10 % of the clients, %", worst),
        "state": _build_table("server state, MB", state, 3),
    }


def build_fedawe_published(measured: Mapping[str, ResultTable]) -> Mapping[str, ResultTable]:
    """Return the accuracies of FedAWE's Table 2 on CIFAR-10; the paper's are of mean models."""
    patterns = measured["test"].headings[1:]
    methods = [str(method) for method, *_ in measured["test"].rows]
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        if method + TEST_GROUP_SUFFIXES["mean_model"] in methods:
            continue
        strategy = method.removesuffix(TEST_GROUP_SUFFIXES["mean_model"])
        settings = {"data.name": "cifar10", "strategy.name": strategy, "strategy.cutoff": 50.0}
        found = (
            find_published_results("fedawe/cifar10", settings | {"availability.name": pattern})
            for pattern in patterns
        )
        rows.append(
            (
                method,
                *(SeedStatistic(100 * one[0].values["test"]) if one else None for one in found),
            )
        )
    return {"published": ResultTable(("published, %", *patterns), tuple(rows), digits=1)}


def _get_rates(run: LoggedRun) -> tuple[float, ...]:
    return tuple(float(run.settings[key]) for key in RATE_KEYS)


def _average_last(name: str, run: LoggedRun) -> Mapping[str, float]:
    return {of: 100 * statistics.mean(values) for of, values in run.numbers[name].items()}


def _group_values(
    runs: Sequence[LoggedRun], values: Callable[[LoggedRun], Mapping[str, float]]
) -> ValuesByMethod:
    """Return values by method, pattern and seed, the patterns in their order."""
    order = {pattern: place for place, pattern in enumerate(PATTERNS)}
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in sorted(runs, key=lambda one: (order[one.numbers["pattern"]], one.seed)):
        for of, value in values(run).items():
            by_pattern = found.setdefault(run.strategy + TEST_GROUP_SUFFIXES[of], {})
            by_pattern.setdefault(run.numbers["pattern"], {})[run.seed] = value
    return found


def _list_patterns(values: ValuesByMethod) -> tuple[str, ...]:
    return tuple(name for name in PATTERNS if any(name in found for found in values.values()))


def _build_table(title: str, values: ValuesByMethod, digits: int = 2) -> ResultTable:
    patterns = _list_patterns(values)
    rows: list[tuple[Cell, ...]] = []
    for method in sorted(values):
        found = [values[method].get(pattern, {}) for pattern in patterns]
        rows.append((method, *(summarize_seeds(list(by_seed.values())) for by_seed in found)))
    return ResultTable((title, *patterns), tuple(rows), digits)


def _build_differences(values: ValuesByMethod) -> ResultTable:
    patterns = _list_patterns(values)
    rows: list[tuple[Cell, ...]] = []
    for method in sorted(set(values) - {BASELINE}):
        cells: list[Cell] = []
        for pattern in patterns:
            one, other = (values.get(name, {}).get(pattern, {}) for name in (method, BASELINE))
            cells.append(
                summarize_differences([one[seed] - other[seed] for seed in one if seed in other])
            )
        rows.append((f"{method} - {BASELINE}", *cells))
    return ResultTable(("difference of test accuracy, points", *patterns), tuple(rows))


def _count_wins(values: ValuesByMethod) -> ResultTable:
    """Return how often each method is the best, of the seeds that all methods have."""
    patterns = _list_patterns(values)
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
    return ResultTable(("ahead of all others, seeds", *patterns), rows)
