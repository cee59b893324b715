"""Does FedALIGN's gate with FedAU's weights beat each part alone? Accuracies and differences."""

from collections.abc import Mapping, Sequence
from functools import partial

from fedquorum.records.reader import Run

from benchmarks.book.measured import Cell, Table, differences, numbers
from server_app.report.groups import Group, group_runs, metric_after_round, paired

COMBINED = "composed"


def composition_tables(runs: Sequence[Run]) -> Mapping[str, Table]:
    """Return two tables of the test accuracy of the priority objective, percent.

    ``accuracy``: of every method at half and at the end of the rounds. ``differences``: of the
    combination minus each other method, seed by seed.
    """
    groups = group_runs(runs)
    total = len(groups[0].counted[0].rounds)
    moments = (max(1, total // 2), total)
    headings = tuple(f"after {after} rounds" for after in moments)
    combined = next(group for group in groups if group.strategy == COMBINED)
    rows: list[tuple[Cell, ...]] = []
    gains: list[tuple[Cell, ...]] = []
    for group in groups:
        accuracies = ([_accuracy(run, at) for run in group.counted] for at in moments)
        rows.append((_name(group), len(group.counted), *map(numbers, accuracies)))
        if group is not combined:
            pairs = (paired(combined, group, partial(_accuracy, after=at)) for at in moments)
            gains.append((f"both - {_name(group)}", *map(differences, pairs)))
    return {
        "accuracy": Table(("method", "seeds", *headings), tuple(rows)),
        "differences": Table(("difference, points", *headings), tuple(gains)),
    }


def _accuracy(run: Run, after: int) -> float:
    return 100 * metric_after_round(run.rounds[after - 1], "priority", "accuracy")


def _name(group: Group) -> str:
    return "FedALIGN's gate x FedAU's weights" if group.strategy == COMBINED else group.method
