"""Tables of methods by participation pattern: accuracy, worst clients and server state."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from fedquorum.records.reader import Run
from fedquorum.report.published import find_published_results
from fedquorum.report.seed_groups import get_test_metric

from benchmarks.book.fedau import compute_training_accuracy
from benchmarks.book.results import (
    Cell,
    ResultTable,
    SeedStatistic,
    summarize_differences,
    summarize_seeds,
)
from benchmarks.book.runs_log import LoggedRun

PATTERNS = ("bernoulli", "markov", "cyclic", "staircase", "sine", "interleaved")
BASELINE = "average_participating"
NUM_LAST_EVALUATIONS = 10  # a run's accuracy is the mean of its last evaluations
TEST_GROUP_SUFFIXES = {"all": "", "mean_model": ", mean model"}
"""The groups of a record's ``test``, with the suffix of the method's name."""

RATE_KEYS = ("client.lr", "strategy.server_lr")
ValuesByMethod = Mapping[str, Mapping[str, Mapping[int, float]]]


def collect_participation_numbers(run: Run) -> Mapping[str, Any]:
    """Return the raw numbers of a run over all clients; metrics are fractions.

    ``test``, weighted by the clients' data, and ``worst10``, the mean of the worst tenth of the
    clients, are lists over the last evaluations. Each has an entry for the model and, if the
    strategy has one, for the mean of the models that clients start from. ``training`` is the
    accuracy after the last round.
    """
    evaluated = [record for record in run.rounds if record.test is not None][-NUM_LAST_EVALUATIONS:]
    groups = [group for group in TEST_GROUP_SUFFIXES if group in evaluated[-1].test]
    return {
        "pattern": run.settings["availability.name"],
        **{
            name: {
                group: [get_test_metric(record, group, metric) for record in evaluated]
                for group in groups
            }
            for name, metric in (("test", "accuracy"), ("worst10", "worst10"))
        },
        "training": compute_training_accuracy(run),
        "state_bytes": run.rounds[-1].state_bytes,
    }


def build_rate_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build one table: training accuracy, percent, by method and pair of learning rates."""
    pairs = sorted({_get_rates(run) for run in runs})
    accuracies: dict[str, dict[tuple[float, ...], list[float]]] = {}
    for run in runs:
        values = accuracies.setdefault(run.strategy, {}).setdefault(_get_rates(run), [])
        values.append(100 * run.get_number("training"))
    headings = (f"{client:g}, {server:g}" for client, server in pairs)
    rows = tuple(
        (strategy, *(summarize_seeds(by_rates.get(pair, [])) for pair in pairs))
        for strategy, by_rates in accuracies.items()
    )
    return {"rates": ResultTable(("training accuracy, %: client and server rate", *headings), rows)}


def build_participation_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build the tables: a row for each method, a column for each participation pattern.

    ``test``: accuracy over all clients, weighted by their data, percent, mean of the last
    evaluations. ``differences``: the difference to averaging the participants, paired by seed.
    ``worst10``: the mean of the worst tenth of the clients. ``best``: the number of seeds in which
    a method is ahead of all others. ``state``: the server's state besides the model.
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


def build_fedawe_published(tables: Mapping[str, ResultTable]) -> Mapping[str, ResultTable]:
    """Return FedAWE's Table 2 on CIFAR-10; the paper's accuracies are those of mean models."""
    patterns = tables["test"].headings[1:]
    methods = [str(method) for method, *_ in tables["test"].rows]
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        if method + TEST_GROUP_SUFFIXES["mean_model"] in methods:
            continue
        strategy = method.removesuffix(TEST_GROUP_SUFFIXES["mean_model"])
        settings = {"data.name": "cifar10", "strategy.name": strategy, "strategy.cutoff": 50.0}
        cells: list[Cell] = []
        for pattern in patterns:
            conditions = settings | {"availability.name": pattern}
            results = find_published_results("fedawe/cifar10", conditions)
            cells.append(SeedStatistic(100 * results[0].values["test"]) if results else None)
        rows.append((method, *cells))
    return {"published": ResultTable(("published, %", *patterns), tuple(rows), digits=1)}


def _get_rates(run: LoggedRun) -> tuple[float, ...]:
    return tuple(float(run.settings[key]) for key in RATE_KEYS)


def _average_last(name: str, run: LoggedRun) -> Mapping[str, float]:
    return {group: 100 * statistics.mean(values) for group, values in run.numbers[name].items()}


def _group_values(
    runs: Sequence[LoggedRun], values: Callable[[LoggedRun], Mapping[str, float]]
) -> ValuesByMethod:
    """Return values by method, pattern and seed, with patterns in the order of PATTERNS."""
    order = {pattern: index for index, pattern in enumerate(PATTERNS)}
    by_method: dict[str, dict[str, dict[int, float]]] = {}
    for run in sorted(runs, key=lambda run: (order[run.numbers["pattern"]], run.seed)):
        for group, value in values(run).items():
            by_pattern = by_method.setdefault(run.strategy + TEST_GROUP_SUFFIXES[group], {})
            by_pattern.setdefault(run.numbers["pattern"], {})[run.seed] = value
    return by_method


def _list_patterns(values: ValuesByMethod) -> tuple[str, ...]:
    return tuple(
        name for name in PATTERNS if any(name in by_pattern for by_pattern in values.values())
    )


def _build_table(title: str, values: ValuesByMethod, digits: int = 2) -> ResultTable:
    patterns = _list_patterns(values)
    rows: list[tuple[Cell, ...]] = []
    for method in sorted(values):
        seeds = [values[method].get(pattern, {}) for pattern in patterns]
        rows.append((method, *(summarize_seeds(list(by_seed.values())) for by_seed in seeds)))
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
    """Count the seeds in which each method is the best, among the seeds of all methods."""
    patterns = _list_patterns(values)
    wins = {method: dict.fromkeys(patterns, 0) for method in sorted(values)}
    counts = dict.fromkeys(patterns, 0)
    for pattern in patterns:
        scores = {method: by_pattern.get(pattern, {}) for method, by_pattern in values.items()}
        for seed in set.intersection(*map(set, scores.values())):
            best, _ = max(((m, by_seed[seed]) for m, by_seed in scores.items()), key=itemgetter(1))
            counts[pattern] += 1
            wins[best][pattern] += 1
    rows = tuple(
        (method, *(f"{won[pattern]} of {counts[pattern]}" for pattern in patterns))
        for method, won in wins.items()
    )
    return ResultTable(("ahead of all others, seeds", *patterns), rows)
