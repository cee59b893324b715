"""Show a run: a live line on a terminal, plain lines elsewhere, a table at the end."""

import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median_low
from types import TracebackType
from typing import Any, Self

from fedquorum.contrib import REPORTED_METRICS
from fedquorum.metrics import get_metric
from fedquorum.records.round_record import OPTIONAL_GROUPS, TEST_GROUPS, RoundRecord
from fedquorum.rule import Goal
from rich.console import Console
from rich.filesize import decimal
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

PLAIN_SECONDS = 10.0
NUMBERS_WIDTH = 80
"""Columns that the numbers of a live line take: rounds, time left, loss, metric, updates."""

SHORTEST_BAR, LONGEST_BAR = 10, 40

STATISTICS = (
    ("average", "average over clients"),
    ("worst", "worst client"),
    ("best", "best client"),
)
FAIRNESS_STATISTICS = (
    ("worst10", "worst 10 %"),
    ("best10", "best 10 %"),
    ("std", "standard deviation"),
    ("gini", "Gini"),
)
FRACTION_STATISTICS = ("gini", *(key for numbers in REPORTED_METRICS for key in numbers.labels))
PRIORITY_GOALS = (Goal.PRIORITY, Goal.AVERAGE)
"""The questions of methods that know priority, and of the average that these are compared with."""


@dataclass(frozen=True)
class DisplaySpec:
    """The subject of a run, which determines the numbers to show.

    Parameters
    ----------
    metric : str
        The setting ``evaluation.metric``.
    goal : Question
        What its method answers.
    num_clients : int
        The number of clients, where the table tells how often they take part.
    priority : frozenset of int
        The ids of the priority clients, where the table tells their updates from the others'.
    """

    metric: str
    goal: Goal
    num_clients: int = 0
    priority: frozenset[int] = frozenset()

    @property
    def metric_name(self) -> str:
        """The metric as people call it, such as RMSE."""
        return get_metric(self.metric).name

    def select_groups(self, test: Mapping[str, Any]) -> Sequence[str]:
        """Return the groups whose test parts are shown: all, or by priority if that is compared.

        Clients that never train, and the mean model, come last where there are any.
        """
        measured = [group for group in TEST_GROUPS if test.get(group)]
        more = [group for group in OPTIONAL_GROUPS if test.get(group)]
        if "non_priority" in measured and self.goal in PRIORITY_GOALS:
            return measured + more
        return measured[-1:] + more

    @property
    def statistics(self) -> Sequence[tuple[str, str]]:
        """The statistics over clients that are shown, each with its name."""
        return (*STATISTICS, *(FAIRNESS_STATISTICS if self.goal is Goal.FAIRNESS else ()))

    def format_metric(self, name: str, value: float | None) -> str:
        """Return the metric, or a statistic of it over clients, as text."""
        if value is None or math.isnan(value):
            return "-"
        share = name in FRACTION_STATISTICS or get_metric(self.metric).is_fraction
        return f"{value:.1%}" if share else f"{value:.4f}"


class Display:
    """Shows the rounds as they end.

    Parameters
    ----------
    console : Console
        Where to; a live line where it is a terminal, otherwise a plain line every ten seconds.
    rounds : int
        Rounds of the run.
    title : str
        What runs.
    about : About
        By which its numbers are chosen.
    """

    def __init__(self, console: Console, rounds: int, title: str, about: DisplaySpec) -> None:
        self._console = console
        self._about = about
        self._rounds = rounds
        self._progress = Progress(
            *_build_live_columns(console.width, len(title)),
            console=console,
            disable=not can_show_live(console),
        )
        self._task = self._progress.add_task(title, total=rounds, state="")
        self._title = title
        self._last_line = -PLAIN_SECONDS
        self._since = 0.0
        self._measured = -1  # rounds since then

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, record: RoundRecord) -> None:
        """Show one round."""
        state = format_round(vars(record), self._about)
        self._progress.update(self._task, completed=record.round, state=state)
        now = time.monotonic()
        self._measured += 1
        if self._measured == 0:
            self._since = now  # the first round makes what the others use, and tells nothing
        due = now - self._last_line >= PLAIN_SECONDS or record.round in (1, self._rounds)
        if not can_show_live(self._console) and due:
            self._last_line = now
            # A run that goes on after an interruption did not run its first rounds just now.
            fraction = self._measured / max(1, self._measured + self._rounds - record.round)
            left = format_time_left(now - self._since, fraction)
            line = f"{self._title}  round {record.round}/{self._rounds}  {state}  {left}".rstrip()
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def can_show_live(console: Console) -> bool:
    """Say whether a console can change its last line, as a file and TERM=dumb cannot."""
    return console.is_terminal and not console.is_dumb_terminal


class TruncatedColumn(ProgressColumn):
    """A text that gives way to the other columns of a live line: cut, and never wrapped.

    Parameters
    ----------
    text : str
        Of ``task``, such as ``"{task.description}"``.
    """

    def __init__(self, text: str) -> None:
        super().__init__(Column(no_wrap=False))  # rich narrows only columns that may wrap
        self._text = text

    def render(self, task: Task) -> Text:
        """Return the text on one line."""
        return Text(self._text.format(task=task), no_wrap=True, overflow="ellipsis")


def _build_live_columns(width: int, title: int) -> Iterator[ProgressColumn]:
    """Yield the columns of a live line: on a narrow terminal the numbers alone."""
    room = width - NUMBERS_WIDTH
    if room > title:
        yield TextColumn("{task.description}", table_column=Column(no_wrap=True))
    if room - title - 2 >= SHORTEST_BAR:
        yield BarColumn(min(room - title - 2, LONGEST_BAR), table_column=Column(no_wrap=True))
    yield MofNCompleteColumn(table_column=Column(no_wrap=True))
    yield TimeRemainingColumn(table_column=Column(no_wrap=True))
    yield TruncatedColumn("{task.fields[state]}")


def format_round(record: Mapping[str, Any], spec: DisplaySpec) -> str:
    """Return one round, by the fields of ``RoundRecord`` or of its line, in a few words.

    The test metric is the first number of the final table.
    """
    loss, test = record["global_loss"], record["test"]
    words = [] if loss is None or math.isnan(loss) else [f"loss {loss:.4f}"]
    words += [
        f"test {spec.metric_name} {spec.format_metric(spec.metric, test[group].get(spec.metric))}"
        for group in spec.select_groups(test or {})[:1]
    ]
    words.append(f"admitted {record['admitted']} of {record['selected']} selected")
    return "  ".join(words)


def format_time_left(seconds: float, fraction: float) -> str:
    """Return the time left after ``seconds`` for a fraction of the work, "" if unknown."""
    if not 0.0 < fraction < 1.0:
        return ""
    return f"{timedelta(seconds=round(seconds * (1.0 - fraction) / fraction))} left"


@dataclass(frozen=True)
class RunTotals:
    """The rounds of a run so far, in as much memory as one round takes.

    Parameters
    ----------
    rounds, empty_rounds : int
        How many rounds there were, and how many of them counted no update.
    admitted, transferred_bytes : int
        Updates admitted and bytes sent both ways, in all rounds.
    seconds : float
        How long all rounds took.
    theta_sum, rounds_with_theta : float, int
        The sum of theta, and of how many rounds.
    state_bytes : int
        The server's state beside the model, after the last round.
    loss : float or None
        The last F(w) that was measured.
    test : mapping or None
        The last evaluation of test parts.
    weight_error : float or None
        The last error of the estimates of how often clients take part.
    """

    rounds: int = 0
    empty_rounds: int = 0
    admitted: int = 0
    transferred_bytes: int = 0
    seconds: float = 0.0
    theta_sum: float = 0.0
    rounds_with_theta: int = 0
    state_bytes: int = 0
    loss: float | None = None
    test: Mapping[str, Mapping[str, float] | None] | None = None
    weight_error: float | None = None

    def add_round(self, record: RoundRecord) -> Self:
        """Return the totals with one round more."""
        return replace(
            self,
            rounds=self.rounds + 1,
            empty_rounds=self.empty_rounds + (record.admitted == 0),
            admitted=self.admitted + record.admitted,
            transferred_bytes=self.transferred_bytes + record.bytes_down + record.bytes_up,
            seconds=self.seconds + record.duration_seconds,
            theta_sum=self.theta_sum + (record.theta or 0.0),
            rounds_with_theta=self.rounds_with_theta + (record.theta is not None),
            state_bytes=record.state_bytes,
            loss=self.loss if math.isnan(record.global_loss) else record.global_loss,
            test=record.test or self.test,
            weight_error=self.weight_error if record.weight_error is None else record.weight_error,
        )


def build_final_table(
    totals: RunTotals,
    title: str,
    spec: DisplaySpec,
    privacy: Mapping[str, Any] | None = None,
    admission_counts: Mapping[int, int] | None = None,
) -> Table:
    """Return the results of a run as a table, with the numbers that its method is about.

    Parameters
    ----------
    totals : Totals
        All rounds.
    title : str
        What ran.
    spec : About
        What the run is about.
    privacy : mapping, optional
        What the manifest says of differential privacy, empty without it.
    admission_counts : mapping of int to int, optional
        In how many rounds each client's update counted; others in none.
    """
    groups = spec.select_groups(totals.test or {}) or ("all",)
    table = Table(title=title, show_header=True, title_justify="left")
    table.add_column("")
    for group in groups:
        table.add_column(group.replace("_", "-"), justify="right")
    if totals.test:
        tested = [totals.test[group] or {} for group in groups]
        by_data = (spec.metric, f"test {spec.metric_name}, by data")
        for key, name in (by_data, *((key, f"  {name}") for key, name in spec.statistics)):
            table.add_row(name, *(spec.format_metric(key, values.get(key)) for values in tested))
        for key, name in _list_report_statistics(tested):
            table.add_row(name, *(spec.format_metric(key, values.get(key)) for values in tested))
    table.add_section()
    if totals.loss is not None:
        table.add_row("training loss F(w), last measured", f"{totals.loss:.4f}")
    table.add_row(
        "updates admitted per round",
        *_format_admitted(totals, spec, groups, admission_counts or {}),
    )
    for name, text in _list_run_statistics(totals, spec, privacy or {}, admission_counts or {}):
        table.add_row(name, *("",) * (len(groups) - 1), text)  # of no group: in the last column
    return table


def _list_report_statistics(tested: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yield the numbers that reports of rules added to a round, and their words."""
    for numbers in REPORTED_METRICS:
        if any(key in values for key in numbers.labels for values in tested):
            first, *others = numbers.labels.items()
            yield first
            yield from ((key, f"  {words}") for key, words in others)


def _format_admitted(
    totals: RunTotals, spec: DisplaySpec, groups: Sequence[str], admission_counts: Mapping[int, int]
) -> Iterator[str]:
    """Yield how many updates counted in a round, of all clients and of those with priority."""
    of_priority = sum(rounds for k, rounds in admission_counts.items() if k in spec.priority)
    updates = {
        "priority": of_priority,
        "non_priority": sum(admission_counts.values()) - of_priority,
        "all": totals.admitted,
    }
    known = updates if spec.priority and admission_counts else ("all",)
    for group in groups:
        yield f"{updates[group] / totals.rounds:.1f}" if group in known else ""


def fit_to_console(table: Table, console: Console, keep: int) -> str:
    """Take the last columns off a table that is wider than the console, and name them.

    Parameters
    ----------
    table : Table
        What to print; it loses its last columns until its cells fit on a line each.
    console : Console
        Where to.
    keep : int
        How many columns stay, whatever their width.

    Returns
    -------
    str
        The headings of the columns that are left out, separated by commas; empty for none.
    """
    anything = console.options.update(max_width=10_000)
    left_out: list[str] = []
    while len(table.columns) > keep and (
        Measurement.get(console, anything, table).maximum > console.width
    ):
        left_out.insert(0, " ".join(str(table.columns.pop().header).split()))
    return ", ".join(left_out)


def format_final_message(directory: Path) -> str:
    """Return where a run's results are, and the two commands that show more of them."""
    return f"Results in {directory}\n{format_next_commands(directory)}"


def format_next_commands(directory: Path) -> str:
    """Return the two commands that show more of the runs in a folder."""
    quoted = shlex.quote(str(directory))
    return (
        f"  figures and tables    fedquorum report {quoted}\n"
        f"  replay all decisions  fedquorum audit {quoted}"
    )


def _list_run_statistics(
    totals: RunTotals,
    spec: DisplaySpec,
    privacy: Mapping[str, Any],
    admission_counts: Mapping[int, int],
) -> Iterator[tuple[str, str]]:
    """Yield what is told of a run as a whole, each number with its name."""
    if spec.goal is Goal.PARTICIPATION:
        yield from _list_participation(totals, spec.num_clients, admission_counts)
    if spec.goal is Goal.PRIORITY and totals.rounds_with_theta:
        yield "theta_T, mean of 1 / (1 + A)", f"{totals.theta_sum / totals.rounds_with_theta:.3f}"
    if totals.state_bytes:
        yield "server state beside the model", decimal(totals.state_bytes)
    if totals.empty_rounds:
        yield "rounds without any update", str(totals.empty_rounds)
    if privacy:
        yield f"epsilon for delta {privacy['delta']:.3g}", f"{float(privacy['epsilon']):.4g}"
        yield "private releases", str(privacy["releases"])
    yield "rounds", str(totals.rounds)
    yield "seconds per round", f"{totals.seconds / totals.rounds:.3f}"
    yield "data sent, both ways", decimal(totals.transferred_bytes)


def _list_participation(
    totals: RunTotals, num_clients: int, admission_counts: Mapping[int, int]
) -> Iterator[tuple[str, str]]:
    """Yield how often clients took part, each number with its name."""
    often = sorted((*admission_counts.values(), *(0,) * (num_clients - len(admission_counts))))
    yield "clients whose updates counted", f"{len(admission_counts)} of {num_clients}"
    yield "  rounds of the rarest client", f"{often[0]} of {totals.rounds}"
    yield "  rounds of the median client", f"{median_low(often)} of {totals.rounds}"
    yield "  rounds of the most frequent client", f"{often[-1]} of {totals.rounds}"
    if totals.weight_error is not None:
        yield "error of the participation weights, last", f"{totals.weight_error:.4f}"
