"""One row per group of runs, for the terminal and as CSV."""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from server_app.records import TEST_GROUPS
from server_app.report.groups import Group, Statistic, metric_after_round
from server_app.report.runs import STATUSES, Run


@dataclass(frozen=True)
class Row:
    """What a table says of one group; statistics are over seeds, None if never measured.

    Parameters
    ----------
    group : Group
        The runs.
    statuses : mapping
        How many of all its runs have each status.
    seeds : tuple of int
        The seeds that enter the statistics.
    rounds : tuple of int
        Fewest and most complete rounds of the runs that enter the statistics.
    test_accuracy, worst_client : mapping
        For each of ``TEST_GROUPS``, as a fraction, after the last round in which it
        was measured: the accuracy on the test parts weighted by training data, and the lowest
        of a single client.
    admitted : Statistic or None
        Updates admitted per round, mean over rounds.
    theta : Statistic or None
        theta_T, the mean over rounds of 1 / (1 + A), in (0, 1].
    """

    group: Group
    statuses: Mapping[str, int]
    seeds: tuple[int, ...]
    rounds: tuple[int, int]
    test_accuracy: Mapping[str, Statistic | None]
    worst_client: Mapping[str, Statistic | None]
    admitted: Statistic | None
    theta: Statistic | None


def summarize(groups: Iterable[Group]) -> tuple[Row, ...]:
    """Return a row for each group."""
    return tuple(_row(group) for group in groups)


def _row(group: Group) -> Row:
    lengths = [len(run.rounds) for run in group.counted] or [0]
    return Row(
        group=group,
        statuses=Counter(run.status for run in group.runs),
        seeds=tuple(run.seed for run in group.counted),
        rounds=(min(lengths), max(lengths)),
        test_accuracy={g: group.statistic(_final(g, "accuracy")) for g in TEST_GROUPS},
        worst_client={g: group.statistic(_final(g, "worst")) for g in TEST_GROUPS},
        admitted=group.statistic(lambda run: _mean(record.admitted for record in run.rounds)),
        theta=group.statistic(
            lambda run: _mean(record.theta for record in run.rounds if record.theta is not None)
        ),
    )


def _final(group: str, name: str) -> Callable[[Run], float]:
    def value(run: Run) -> float:
        measured = (metric_after_round(record, group, name) for record in reversed(run.rounds))
        return next((x for x in measured if not math.isnan(x)), math.nan)

    return value


def _mean(values: Iterable[float]) -> float:
    x = list(values)
    return math.fsum(x) / len(x) if x else math.nan


def terminal_table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for people: percentages, "mean ± standard deviation"."""
    table = Table(
        title="Runs, mean ± standard deviation over seeds", title_justify="left", show_lines=True
    )
    table.add_column("experiment\nstrategy", overflow="fold")
    table.add_column("runs", overflow="fold")
    table.add_column("clients")
    for heading in ("test\naccuracy, %", "worst\nclient, %", "admitted\na round", "theta_T"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> Iterator[str]:
    group = row.group
    yield escape("\n".join((group.experiment, group.strategy, *group.variant)))
    fewest, most = row.rounds
    rounds = str(most) if fewest == most else f"{fewest} to {most}"
    statuses = [f"{row.statuses[s]} {s}" for s in STATUSES if row.statuses.get(s)]
    yield "\n".join((*statuses, f"seeds: {len(row.seeds)}", f"rounds: {rounds}"))
    yield "\n".join(TEST_GROUPS)
    for metric in (row.test_accuracy, row.worst_client):
        yield "\n".join(_cell(metric[name], factor=100, digits=1) for name in TEST_GROUPS)
    yield _cell(row.admitted, digits=1, separator="\n")
    yield _cell(row.theta, digits=3, separator="\n")


def _cell(
    statistic: Statistic | None, *, digits: int, factor: float = 1, separator: str = " "
) -> str:
    if statistic is None:
        return "-"
    mean = f"{factor * statistic.mean:.{digits}f}"
    if statistic.sd is None:
        return mean
    return f"{mean}{separator}± {factor * statistic.sd:.{digits}f}"


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as CSV in UTF-8 with a header: fractions, full precision, empty for None.

    Columns: experiment, strategy, variant, runs, one per status, seeds (how many enter the
    statistics), rounds_min, rounds_max, and ``_mean`` and ``_sd`` of test_accuracy and
    worst_client (with ``_priority``, ``_non_priority`` and ``_all``), admitted and theta.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    lines = [_line(row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]) if lines else [])
        writer.writeheader()
        writer.writerows(lines)


def _line(row: Row) -> dict[str, str | int | float | None]:
    line: dict[str, str | int | float | None] = {
        "experiment": row.group.experiment,
        "strategy": row.group.strategy,
        "variant": ", ".join(row.group.variant),
        "runs": len(row.group.runs),
        **{status: row.statuses.get(status, 0) for status in STATUSES},
        "seeds": len(row.seeds),
        "rounds_min": row.rounds[0],
        "rounds_max": row.rounds[1],
    }
    statistics = {
        **{f"test_accuracy_{name}": row.test_accuracy[name] for name in TEST_GROUPS},
        **{f"worst_client_{name}": row.worst_client[name] for name in TEST_GROUPS},
        "admitted": row.admitted,
        "theta": row.theta,
    }
    for name, statistic in statistics.items():
        line[f"{name}_mean"] = None if statistic is None else statistic.mean
        line[f"{name}_sd"] = None if statistic is None else statistic.sd
    return line
