"""Tables that compare gate, projection and weights with training on priority clients only."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedquorum.records.reader import Run
from fedquorum.report.seed_groups import get_test_metric

from benchmarks.book.methods import MethodRuns, compute_paired_differences, group_methods
from benchmarks.book.results import Cell, ResultTable, summarize_differences, summarize_seeds
from benchmarks.book.runs_log import LoggedRun

PRIORITY_ONLY = "fedavg_priority"
COMPOSED = "composed"


def collect_priority_numbers(run: Run) -> Mapping[str, Any]:
    """Return the test accuracy of the priority objective at half and at the end, as fractions."""
    return {
        "accuracy": {
            after: get_test_metric(run.rounds[after - 1], "priority", "accuracy")
            for after in _compute_moments(len(run.rounds))
        },
        "state_bytes": run.rounds[-1].state_bytes,
    }


def build_priority_tables(runs: Sequence[LoggedRun]) -> Mapping[str, ResultTable]:
    """Build two tables of the test accuracy of the priority objective, percent.

    ``accuracy``: every method at half and at the end of the rounds, and the server's state besides
    the model. ``differences``: every method minus training on the priority clients only, paired by
    seed.
    """
    methods = group_methods(runs)
    moments = _compute_moments(runs[0].rounds)
    headings = tuple(f"after {after} rounds" for after in moments)
    rows: list[tuple[Cell, ...]] = []
    gains: list[tuple[Cell, ...]] = []
    for method in methods:
        accuracies = (method.compute_values(partial(_get_accuracy, after=at)) for at in moments)
        state = summarize_seeds(
            method.compute_values(lambda run: run.get_number("state_bytes") / 1e6)
        )
        rows.append(
            (_format_name(method), len(method.runs), *map(summarize_seeds, accuracies), state)
        )
        for baseline in (m for m in methods if _is_priority_only(m, method)):
            differences = (
                compute_paired_differences(method, baseline, partial(_get_accuracy, after=at))
                for at in moments
            )
            cells = map(summarize_differences, differences)
            gains.append((f"{_format_name(method)} - priority only", *cells))
    return {
        "accuracy": ResultTable(("method", "seeds", *headings, "server state, MB"), tuple(rows)),
        "differences": ResultTable(("difference, points", *headings), tuple(gains)),
    }


def _is_priority_only(one: MethodRuns, method: MethodRuns) -> bool:
    return one.strategy == PRIORITY_ONLY != method.strategy and one.experiment == method.experiment


def _compute_moments(rounds: int) -> tuple[int, int]:
    return max(1, rounds // 2), rounds


def _get_accuracy(run: LoggedRun, after: int) -> float:
    return 100 * run.get_number("accuracy", str(after))


def _format_name(method: MethodRuns) -> str:
    name, _, _ = method.name.partition(" (")
    return name.replace(COMPOSED, "FedALIGN's gate x FedAU's weights")
