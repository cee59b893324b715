"""Build a study's tables for the terminal and the page."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from fedquorum.metrics.calibration import ECE
from fedquorum.records.round_record import format_coverage
from fedquorum.report.names import format_setting
from fedquorum.report.tables import TextTable
from fedquorum.rules.metrics import AVERAGE_PRECISION, METRICS
from fedquorum.sanitize import sanitize
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from server_app.study.paired_statistics import PairedDifference
from server_app.study.result import MethodResult, SeedRun, StudyResult
from server_app.study.scores import COVERAGE_NAMES, R2
from server_app.study.text import (
    Unit,
    count_seeds,
    describe_score_clients,
    describe_score_group,
    format_method_name,
    format_percent,
    format_verdict,
    get_compared_methods,
    get_unit,
    to_possessive,
)

MISSING_CELL = "-"
MIN_WHOLE_MB = 1000.0
COMPANION_MARGIN = 0.01
"""The precision of R2, average precision and calibration error, which have no margin."""
TUNED_HEADING = "values tuned"
ALL, WORST, UNSEEN = "all", "worst10", "held_out"
MAX_SENTENCE_LENGTH = 1000
COLUMN_PADDING = 3  # around a column in a terminal


def average_measure(runs: Sequence[SeedRun], name: str) -> float:
    """Return the mean over seeds of a number of the last round, or NaN."""
    values = [run.measures[name] for run in runs if name in run.measures]
    defined = [value for value in values if not math.isnan(value)]
    return fmean(defined) if defined else math.nan


def rank_methods(result: StudyResult) -> tuple[MethodResult, ...]:
    """Return the compared methods, the largest difference first and the baseline last."""
    order = [] if result.decision is None else [c.method for c in result.decision.differences]
    by_name = {method.name: method for method in get_compared_methods(result)}
    first = [by_name[name] for name in order]
    return (*first, *(method for method in by_name.values() if method.name not in order))


def build_result_table(result: StudyResult) -> TextTable:
    """Build the table of compared methods, the best first, without empty columns."""
    rows = [
        *(_Row(result, method) for method in rank_methods(result)),
        *_build_rival_rows(result),
    ]
    cells = {
        heading: [cell(row) for row in rows] for heading, cell in _build_columns(result).items()
    }
    shown = {heading: column for heading, column in cells.items() if set(column) != {MISSING_CELL}}
    names = [format_method_name(row.method.name) for row in rows]
    return TextTable(
        f"Methods, means ± standard deviations over {count_seeds(result)} seeds",
        ("method", *shown),
        tuple(zip(names, *shown.values(), strict=True)),
    )


def _build_rival_rows(result: StudyResult) -> list["_Row"]:
    """Return the rows of personal models, with the intervals of their family."""
    rivals = result.rivals
    if rivals is None:
        return []
    of_family = replace(result, decision=rivals.decision)
    return [_Row(of_family, method) for method in rivals.methods]


def build_exclusion_table(result: StudyResult) -> TextTable:
    """Build the table of excluded methods with the reasons."""
    rows = [
        (format_method_name(one.name), sanitize(one.left_out))
        for one in result.methods
        if one.left_out
    ]
    if result.rivals is not None:
        rows += [(name, sanitize(reason)) for name, reason in result.rivals.left_out.items()]
    return TextTable("Methods left out", ("method", "why"), tuple(rows))


@dataclass(frozen=True)
class _Row:
    """A row of the result table: one method with its formatted cells."""

    result: StudyResult
    method: MethodResult

    @property
    def paired_difference(self) -> PairedDifference | None:
        """The difference from the baseline; None for the baseline and without a decision."""
        decision = self.result.decision
        comparisons = () if decision is None else decision.differences
        return next((one for one in comparisons if one.method == self.method.name), None)

    @property
    def score(self) -> str:
        unit, scores = get_unit(self.result), [run.score for run in self.method.runs]
        if not scores:
            return MISSING_CELL
        spread = f" ± {unit.format_number(stdev(scores))}" if len(scores) > 1 else ""
        counts = {name: average_measure(self.method.runs, name) for name in COVERAGE_NAMES}
        coverage = format_coverage(counts)
        return unit.format_number(fmean(scores)) + spread + (coverage and f" ({coverage})")

    @property
    def difference(self) -> str:
        unit, one = get_unit(self.result), self.paired_difference
        if one is None:
            return MISSING_CELL
        interval = unit.format_interval(one.low, one.high, signed=True)
        return f"{unit.format_number(one.difference, signed=True)} ({interval})"

    @property
    def ahead(self) -> str:
        one = self.paired_difference
        return MISSING_CELL if one is None else f"{one.ahead} of {count_seeds(self.result)}"

    def format_companion(self, metric: str) -> str:
        unit = Unit.for_metric(metric, COMPANION_MARGIN)
        return unit.format_number(average_measure(self.method.runs, metric))

    def format_measure(self, name: str) -> str:
        return get_unit(self.result).format_number(average_measure(self.method.runs, name))

    @property
    def worse_off(self) -> str:
        return _format_fraction(self.method.worse_off)

    @property
    def better_off(self) -> str:
        return _format_fraction(self.method.better_off)

    @property
    def rounds(self) -> str:
        rounds = self.method.rounds_to_baseline
        has_curve = any(run.curve for run in self.method.runs)
        if self.method.name == self.result.baseline or not has_curve:
            return MISSING_CELL
        return "rarely" if rounds is None else f"{rounds:,.0f}"

    @property
    def megabytes(self) -> str:
        amounts = [run.megabytes for run in self.method.runs]
        if not amounts:
            return MISSING_CELL
        mean = fmean(amounts)
        return f"{mean:,.0f}" if mean >= MIN_WHOLE_MB else f"{mean:.3g}"

    @property
    def tuned(self) -> str:
        return ", ".join(map(format_setting, self.method.tuned)) or MISSING_CELL


def _format_fraction(fraction: float) -> str:
    return MISSING_CELL if math.isnan(fraction) else f"{100 * fraction:.0f} %"


def _build_columns(result: StudyResult) -> dict[str, Callable[[_Row], str]]:
    """Return the columns by heading, without one that would repeat the score."""
    unit, baseline = get_unit(result), format_method_name(result.baseline)
    in_percent = ", %" if result.metric_info.is_fraction else ""
    in_unit = f", {unit.unit}" if unit.unit else ""
    interval = f"{format_percent(result.confidence)} interval"
    columns: dict[str, Callable[[_Row], str]] = {
        f"{unit.metric} of {describe_score_clients(result)}{in_percent}": lambda row: row.score,
        **_build_companion_columns(result),
        f"better than {baseline} by{in_unit} ({interval})": lambda row: row.difference,
        "seeds ahead": lambda row: row.ahead,
        f"all clients{in_percent}": lambda row: row.format_measure(ALL),
        f"worst 10 % of clients{in_percent}": lambda row: row.format_measure(WORST),
        f"held-out clients{in_percent}": lambda row: row.format_measure(UNSEEN),
        "clients worse off": lambda row: row.worse_off,
        "clients better off": lambda row: row.better_off,
        f"rounds to {to_possessive(baseline)} score": lambda row: row.rounds,
        "MB sent": lambda row: row.megabytes,
        TUNED_HEADING: lambda row: row.tuned,
    }
    score = describe_score_clients(result).removeprefix("the ").replace("of all", "of")
    return {name: cell for name, cell in columns.items() if name != f"{score}{in_percent}"}


def _build_companion_columns(result: StudyResult) -> dict[str, Callable[[_Row], str]]:
    """Return the columns of metrics beside the study's, for the score's group of clients.

    R2 stands beside other metrics of predicted numbers, and average precision beside AUROC. The
    calibration error stands beside every metric of classes, which alone have one.
    """
    group = result.metric_key.removeprefix("test.").partition(".")[0]
    of_group = f"of {describe_score_group(group)}"
    error = {f"calibration error {of_group}, %": lambda row: row.format_companion(ECE)}
    if result.metric == "auroc":
        companion = AVERAGE_PRECISION
    elif result.metric_info.is_regression and result.metric != R2:
        companion = R2
    else:
        return error
    in_percent = ", %" if METRICS[companion].is_fraction else ""
    heading = f"{METRICS[companion].name} {of_group}{in_percent}"
    return {heading: lambda row: row.format_companion(companion), **error}


def build_seed_runs_table(result: StudyResult) -> TextTable:
    """Build the table of compared runs with the commands that repeat them."""
    unit = get_unit(result)
    rows = (
        (
            format_method_name(method.name),
            str(run.seed),
            unit.format_number(run.score),
            f"{run.duration_seconds:,.0f}",
            sanitize(run.folder),
            sanitize(run.command, MAX_SENTENCE_LENGTH),
        )
        for method in get_compared_methods(result)
        for run in method.runs
    )
    headings = ("method", "seed", "score", "seconds", "folder", "command")
    return TextTable("Runs and the commands that repeat them", headings, tuple(rows))


def print_result(result: StudyResult, console: Console) -> None:
    """Print verdict, tables and caveats; too wide tables are split."""
    console.print(escape(format_verdict(result)), style="bold", highlight=False)
    for table in (
        *split_table(build_result_table(result), console.width),
        build_exclusion_table(result),
    ):
        if table.rows:
            console.print()
            console.print(_render_table(table))
    for caveat in result.caveats:
        console.print(f"- {escape(sanitize(caveat, MAX_SENTENCE_LENGTH))}", highlight=False)


def split_table(table: TextTable, width: int) -> tuple[TextTable, ...]:
    """Split a table by columns to fit a width; each part repeats the first column.

    Headings may wrap between words, cells may not.
    """
    columns = [
        [heading, *cells] for heading, *cells in zip(table.headings, *table.rows, strict=True)
    ]
    first, parts, remaining = columns[0], [[columns[0]]], width - _compute_width(columns[0])
    for column in columns[1:]:
        if _compute_width(column) > remaining and len(parts[-1]) > 1:
            parts.append([first])
            remaining = width - _compute_width(first)
        parts[-1].append(column)
        remaining -= _compute_width(column)
    return tuple(_build_table(table.title if part is parts[0] else "", part) for part in parts)


def _compute_width(column: Sequence[str]) -> int:
    """Return the width of a column in a terminal, in characters."""
    heading, *cells = column
    return max(len(text) for text in (*heading.split(), *cells)) + COLUMN_PADDING


def _build_table(title: str, columns: Sequence[Sequence[str]]) -> TextTable:
    rows = tuple(zip(*(cells for _, *cells in columns), strict=True))
    return TextTable(title, tuple(heading for heading, *_ in columns), rows)


def _render_table(table: TextTable) -> Table:
    drawn = Table(title=escape(table.title) or None, title_justify="left", box=SIMPLE_HEAD)
    for column in zip(table.headings, *table.rows, strict=True):
        drawn.add_column(
            escape(column[0]), overflow="fold", width=_compute_width(column) - COLUMN_PADDING
        )
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn
