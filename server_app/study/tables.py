"""A study's answer as tables, for the terminal and for the page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedquorum.intake import shown
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from server_app.naming import setting_words
from server_app.report.tables import TextTable
from server_app.study.answer import Answer, MethodResult, SeedRun
from server_app.study.decision import Comparison
from server_app.study.words import (
    compared,
    num_seeds,
    percent,
    possessive_of,
    title,
    unit_of,
    verdict_sentence,
    whose,
)

NONE = "-"
MANY_MB = 1000.0
TUNED = "values tuned"
ALL, WORST, UNSEEN = "all", "worst10", "held_out"
LONGEST_TEXT = 1000
SPACE = 3  # around a column in a terminal


def mean_measure(runs: Sequence[SeedRun], name: str) -> float:
    """Return the mean over seeds of what was measured after the last round, NaN without any."""
    values = [run.measures[name] for run in runs if name in run.measures]
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan


def ranked(answer: Answer) -> tuple[MethodResult, ...]:
    """Return the methods compared, the largest difference from the baseline first, and it last."""
    order = [] if answer.decision is None else [c.method for c in answer.decision.comparisons]
    by_name = {method.name: method for method in compared(answer)}
    first = [by_name[name] for name in order]
    return (*first, *(method for method in by_name.values() if method.name not in order))


def answer_table(answer: Answer) -> TextTable:
    """Return a row for each method that was compared, the best first.

    Columns in which nothing was measured are left out.
    """
    rows = [_Row(answer, method) for method in ranked(answer)]
    cells = {heading: [cell(row) for row in rows] for heading, cell in _columns(answer).items()}
    told = {heading: column for heading, column in cells.items() if set(column) != {NONE}}
    names = [title(row.method.name) for row in rows]
    return TextTable(
        f"Methods, means ± standard deviations over {num_seeds(answer)} seeds",
        ("method", *told),
        tuple(zip(names, *told.values(), strict=True)),
    )


def left_out_table(answer: Answer) -> TextTable:
    """Return a row for each method that was not compared, with the reason."""
    rows = [(title(one.name), shown(one.left_out)) for one in answer.methods if one.left_out]
    return TextTable("Methods left out", ("method", "why"), tuple(rows))


@dataclass(frozen=True)
class _Row:
    """One method of an answer, as the columns tell of it."""

    answer: Answer
    method: MethodResult

    @property
    def comparison(self) -> Comparison | None:
        """How it compares with the baseline; None of the baseline and without a decision."""
        decision = self.answer.decision
        comparisons = () if decision is None else decision.comparisons
        return next((one for one in comparisons if one.method == self.method.name), None)

    @property
    def score(self) -> str:
        unit, scores = unit_of(self.answer), [run.score for run in self.method.runs]
        if not scores:
            return NONE
        spread = f" ± {unit.number(stdev(scores))}" if len(scores) > 1 else ""
        return unit.number(fmean(scores)) + spread

    @property
    def difference(self) -> str:
        unit, one = unit_of(self.answer), self.comparison
        if one is None:
            return NONE
        interval = unit.interval(one.low, one.high, signed=True)
        return f"{unit.number(one.difference, signed=True)} ({interval})"

    @property
    def ahead(self) -> str:
        one = self.comparison
        return NONE if one is None else f"{one.ahead} of {num_seeds(self.answer)}"

    def measured(self, name: str) -> str:
        return unit_of(self.answer).number(mean_measure(self.method.runs, name))

    @property
    def worse_off(self) -> str:
        share = self.method.worse_off
        return NONE if math.isnan(share) else f"{100 * share:.0f} %"

    @property
    def rounds(self) -> str:
        rounds = self.method.rounds_to_baseline
        if self.method.name == self.answer.baseline or not self.method.runs:
            return NONE
        return "rarely" if rounds is None else f"{rounds:,.0f}"

    @property
    def megabytes(self) -> str:
        amounts = [run.megabytes for run in self.method.runs]
        if not amounts:
            return NONE
        mean = fmean(amounts)
        return f"{mean:,.0f}" if mean >= MANY_MB else f"{mean:.3g}"

    @property
    def tuned(self) -> str:
        return ", ".join(map(setting_words, self.method.tuned)) or NONE


def _columns(answer: Answer) -> dict[str, Callable[[_Row], str]]:
    """Return the columns by their headings, without one that would repeat the score."""
    unit, baseline = unit_of(answer), title(answer.baseline)
    in_percent = ", %" if answer.measured.is_share else ""
    of_difference = f", {unit.unit}" if unit.unit else ""
    interval = f"{percent(answer.confidence)} interval"
    columns: dict[str, Callable[[_Row], str]] = {
        f"{unit.metric} of {whose(answer)}{in_percent}": lambda row: row.score,
        f"better than {baseline} by{of_difference} ({interval})": lambda row: row.difference,
        "seeds ahead": lambda row: row.ahead,
        f"all clients{in_percent}": lambda row: row.measured(ALL),
        f"worst 10 % of clients{in_percent}": lambda row: row.measured(WORST),
        f"held-out clients{in_percent}": lambda row: row.measured(UNSEEN),
        "clients worse off": lambda row: row.worse_off,
        f"rounds to {possessive_of(baseline)} score": lambda row: row.rounds,
        "MB sent": lambda row: row.megabytes,
        TUNED: lambda row: row.tuned,
    }
    said = whose(answer).removeprefix("the ").replace("of all", "of")
    return {name: cell for name, cell in columns.items() if name != f"{said}{in_percent}"}


def runs_table(answer: Answer) -> TextTable:
    """Return a row for each run that was compared, with the command that repeats it."""
    unit = unit_of(answer)
    rows = (
        (
            title(method.name),
            str(run.seed),
            unit.number(run.score),
            f"{run.duration_seconds:,.0f}",
            shown(run.folder),
            shown(run.command, LONGEST_TEXT),
        )
        for method in compared(answer)
        for run in method.runs
    )
    headings = ("method", "seed", "score", "seconds", "folder", "command")
    return TextTable("Runs and the commands that repeat them", headings, tuple(rows))


def print_answer(answer: Answer, console: Console) -> None:
    """Print verdict, tables and caveats; a table that is too wide is divided."""
    console.print(escape(verdict_sentence(answer)), style="bold", highlight=False)
    for table in (*divided(answer_table(answer), console.width), left_out_table(answer)):
        if table.rows:
            console.print()
            console.print(_terminal(table))
    for caveat in answer.caveats:
        console.print(f"- {escape(shown(caveat, LONGEST_TEXT))}", highlight=False)


def divided(table: TextTable, width: int) -> tuple[TextTable, ...]:
    """Return a table's columns as tables that fit a width, each with the first column.

    A heading may be broken between words, a cell not.
    """
    columns = [
        [heading, *cells] for heading, *cells in zip(table.headings, *table.rows, strict=True)
    ]
    first, parts, left = columns[0], [[columns[0]]], width - _width(columns[0])
    for column in columns[1:]:
        if _width(column) > left and len(parts[-1]) > 1:
            parts.append([first])
            left = width - _width(first)
        parts[-1].append(column)
        left -= _width(column)
    return tuple(_table(table.title if part is parts[0] else "", part) for part in parts)


def _width(column: Sequence[str]) -> int:
    """Return how wide a column is in a terminal."""
    heading, *cells = column
    return max(len(text) for text in (*heading.split(), *cells)) + SPACE


def _table(title: str, columns: Sequence[Sequence[str]]) -> TextTable:
    rows = tuple(zip(*(cells for _, *cells in columns), strict=True))
    return TextTable(title, tuple(heading for heading, *_ in columns), rows)


def _terminal(table: TextTable) -> Table:
    drawn = Table(title=escape(table.title) or None, title_justify="left", box=SIMPLE_HEAD)
    for column in zip(table.headings, *table.rows, strict=True):
        drawn.add_column(escape(column[0]), overflow="fold", width=_width(column) - SPACE)
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn
