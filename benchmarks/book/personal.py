"""Compare common models with models of each client's own, over data sets and methods."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedquorum.records.reader import Run
from fedquorum.rules.decisions import ALONE, FINETUNED

from benchmarks.book.results import Cell, ResultTable, summarize_differences, summarize_seeds
from benchmarks.book.runs_log import LoggedRun

STATISTICS = {"average": "average", "worst10": "worst 10 %", "gini": "Gini"}
"""The statistics over clients in the records, by their names in the tables; all are fractions."""

COMMON = "all"
SUFFIXES = {COMMON: "", FINETUNED: ", fine-tuned"}
REFERENCE = "fedavg"
"""The method whose runs train the clients alone, and with which all rows are compared."""

DATA_NAMES = {
    "fedau/fmnist": "Fashion-MNIST, accuracy",
    "aaggff/mnist_writers": "MNIST by writer, accuracy",
    "aaggff/berka": "Berka, AUROC",
    "aaggff/heart": "heart, AUROC",
}
"""The columns by preset, in their order."""

Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""A number by row, preset and seed."""


def collect_personal_numbers(run: Run) -> Mapping[str, Any]:
    """Return the last statistics over clients of each kind of model, and the chosen epochs."""
    test = run.rounds[-1].test
    assert test is not None
    groups = {name: test[name] for name in (*SUFFIXES, ALONE) if test.get(name) is not None}
    return {
        name: {key: group[key] for key in (*STATISTICS, "epochs") if key in group}
        for name, group in groups.items()
    }


def build_personal_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build a table of each statistic, in percent, and its differences from FedAvg's model."""
    tables = {}
    for key, name in STATISTICS.items():
        values = _group_values(runs, key)
        tables[key] = _build_table(f"{name} of the clients, %", values, _summarize)
        tables[f"{key}_differences"] = _build_table(
            f"{name}: difference from {REFERENCE}, points",
            {row: _subtract(by_data, values[REFERENCE]) for row, by_data in values.items()},
            summarize_differences,
            skipped=REFERENCE,
        )
    return tables


def _group_values(runs: Sequence[LoggedRun], key: str) -> Values:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for run in sorted(runs, key=lambda run: (run.strategy != REFERENCE, run.strategy, run.seed)):
        rows = {group: f"{run.strategy}{suffix}" for group, suffix in SUFFIXES.items()}
        if run.strategy == REFERENCE:
            rows[ALONE] = "alone"
        for group, row in rows.items():
            by_seed = found.setdefault(row, {}).setdefault(run.experiment, {})
            by_seed[run.seed] = 100 * run.get_number(group, key)
    return found


def _subtract(
    one: Mapping[str, Mapping[int, float]], other: Mapping[str, Mapping[int, float]]
) -> Mapping[str, Mapping[int, float]]:
    """Return the differences of the seeds that both have."""
    return {
        data: {
            seed: value - other[data][seed]
            for seed, value in by_seed.items()
            if seed in other.get(data, {})
        }
        for data, by_seed in one.items()
    }


def _build_table(
    title: str,
    values: Values,
    summarize: Callable[[Sequence[float]], Cell],
    *,
    skipped: str = "",
) -> ResultTable:
    columns = [data for data in DATA_NAMES if any(data in by_data for by_data in values.values())]
    rows = tuple(
        (row, *(summarize([*by_data.get(data, {}).values()]) for data in columns))
        for row, by_data in values.items()
        if row != skipped
    )
    return ResultTable((title, *(DATA_NAMES[data] for data in columns)), rows)


def _summarize(values: Sequence[float]) -> Cell:
    return summarize_seeds(values)
