"""Does FedALIGN's gate with FedAU's weights beat each part alone? Accuracies and differences."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedquorum.records.reader import Run

from benchmarks.book.kept import KeptRun
from benchmarks.book.measured import Cell, Table, differences, numbers
from benchmarks.book.methods import Method, methods, paired
from server_app.report.groups import metric_after_round

COMBINED = "composed"


def composition_numbers(run: Run) -> Mapping[str, Any]:
    """Return the test accuracy of the priority objective at half and at the end, as fractions."""
    return {
        "accuracy": {
            after: metric_after_round(run.rounds[after - 1], "priority", "accuracy")
            for after in _moments(len(run.rounds))
        }
    }


def composition_tables(runs: Sequence[KeptRun]) -> Mapping[str, Table]:
    """Return two tables of the test accuracy of the priority objective, percent.

    ``accuracy``: of every method at half and at the end of the rounds. ``differences``: of the
    combination minus each other method, seed by seed.
    """
    found = methods(runs)
    moments = _moments(runs[0].rounds)
    headings = tuple(f"after {after} rounds" for after in moments)
    combined = next((method for method in found if method.strategy == COMBINED), None)
    rows: list[tuple[Cell, ...]] = []
    gains: list[tuple[Cell, ...]] = []
    for method in found:
        accuracies = (method.values(partial(_accuracy, after=at)) for at in moments)
        rows.append((_name(method), len(method.runs), *map(numbers, accuracies)))
        if combined is not None and method is not combined:
            pairs = (paired(combined, method, partial(_accuracy, after=at)) for at in moments)
            gains.append((f"both - {_name(method)}", *map(differences, pairs)))
    return {
        "accuracy": Table(("method", "seeds", *headings), tuple(rows)),
        "differences": Table(("difference, points", *headings), tuple(gains)),
    }


def _moments(rounds: int) -> tuple[int, int]:
    return max(1, rounds // 2), rounds


def _accuracy(run: KeptRun, after: int) -> float:
    return 100 * run.number("accuracy", str(after))


def _name(method: Method) -> str:
    return "FedALIGN's gate x FedAU's weights" if method.strategy == COMBINED else method.name
