"""Whose help a priority group should take: gate, projection and weights against priority alone."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedquorum.records.reader import Run

from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Table, differences, numbers
from benchmarks.book.methods import Method, methods, paired
from server_app.report.groups import metric_after_round

ALONE = "fedavg_priority"
COMBINED = "composed"


def priority_numbers(run: Run) -> Mapping[str, Any]:
    """Return the test accuracy of the priority objective at half and at the end, as fractions."""
    return {
        "accuracy": {
            after: metric_after_round(run.rounds[after - 1], "priority", "accuracy")
            for after in _moments(len(run.rounds))
        },
        "state_bytes": run.rounds[-1].state_bytes,
    }


def priority_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return two tables of the test accuracy of the priority objective, percent.

    ``accuracy``: of every method at half and at the end of the rounds, and the server's state
    beside the model. ``differences``: of every method minus the priority clients alone, seed by
    seed.
    """
    found = methods(runs)
    moments = _moments(runs[0].rounds)
    headings = tuple(f"after {after} rounds" for after in moments)
    rows: list[tuple[Cell, ...]] = []
    gains: list[tuple[Cell, ...]] = []
    for method in found:
        accuracies = (method.values(partial(_accuracy, after=at)) for at in moments)
        state = numbers(method.values(lambda run: run.number("state_bytes") / 1e6))
        rows.append((_name(method), len(method.runs), *map(numbers, accuracies), state))
        for alone in (one for one in found if _is_alone(one, method)):
            pairs = (paired(method, alone, partial(_accuracy, after=at)) for at in moments)
            gains.append((f"{_name(method)} - priority only", *map(differences, pairs)))
    return {
        "accuracy": Table(("method", "seeds", *headings, "server state, MB"), tuple(rows)),
        "differences": Table(("difference, points", *headings), tuple(gains)),
    }


def _is_alone(one: Method, method: Method) -> bool:
    return one.strategy == ALONE != method.strategy and one.experiment == method.experiment


def _moments(rounds: int) -> tuple[int, int]:
    return max(1, rounds // 2), rounds


def _accuracy(run: KeptRun, after: int) -> float:
    return 100 * run.number("accuracy", str(after))


def _name(method: Method) -> str:
    name, _, _ = method.name.partition(" (")
    return name.replace(COMBINED, "FedALIGN's gate x FedAU's weights")
