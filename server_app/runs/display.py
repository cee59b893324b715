"""Display a run: a live line on a terminal, plain lines elsewhere, and a table at the end."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import median_low
from types import TracebackType
from typing import Any, Self

from fedquorum.contrib import REPORTED_METRICS
from fedquorum.records.callback import FinishedRound, RunCallback
from fedquorum.records.round_record import (
    FREE_GROUP,
    OPTIONAL_GROUPS,
    TEST_GROUPS,
    RoundRecord,
    format_coverage,
)
from fedquorum.report.names import CLIENTS_ONCE, NOT_WITH_MASKS
from fedquorum.report.terminal import format_time_left
from fedquorum.rules.description import Goal
from fedquorum.rules.metrics import AVERAGE_PRECISION, METRICS, get_metric
from rich.console import Console
from rich.filesize import decimal
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
"""Between two plain lines: a log of a run of an hour has some 360."""

NUMBERS_WIDTH = 80
"""Width of the numbers in a live line: rounds, time left, loss, metric, updates."""

MIN_BAR_WIDTH, MAX_BAR_WIDTH = 10, 40

STATISTICS = (
    ("average", "average over clients"),
    ("worst", "worst client"),
    ("best", "best client"),
)
MISSING = "-"
FAIRNESS_STATISTICS = (
    ("worst10", "worst 10 %"),
    ("best10", "best 10 %"),
    ("std", "standard deviation"),
    ("gini", "Gini"),
)
MIN_FRACTIONAL, MAX_FRACTIONAL = 5e-5, 1e3
"""Numbers from the second on, such as errors of prices, have one decimal; below the first, four
decimals would all be 0."""

FRACTION_STATISTICS = ("gini", *(key for numbers in REPORTED_METRICS for key in numbers.labels))
PRIORITY_GOALS = (Goal.PRIORITY, Goal.AVERAGE)
"""The goals of methods with priority clients, and of the average they are compared with."""


@dataclass(frozen=True)
class DisplaySpec:
    """The facts of a run that determine which statistics to show.

    Parameters
    ----------
    metric : str
        The setting ``evaluation.metric``.
    goal : Goal
        The goal of the run's method.
    num_clients : int
        The number of clients, for the statistics of participation.
    priority : frozenset of int
        The ids of the priority clients, whose updates the final table counts separately.
    constant_accuracy : mapping of str to float
        The test accuracy of always guessing the largest class, by group of clients.
    end_seconds : float, optional
        The simulated seconds at which the run ends whatever its rounds.
    has_masks : bool
        Whether only the nodes know the results of single clients.
    by_data : bool
        Whether the clients' training data weight the means over them.
    names_group : bool
        Whether the line of a round says which clients are tested, if not those with priority.
    """

    metric: str
    goal: Goal
    num_clients: int = 0
    priority: frozenset[int] = frozenset()
    constant_accuracy: Mapping[str, float] = field(default_factory=dict)
    end_seconds: float | None = None
    has_masks: bool = False
    by_data: bool = True
    names_group: bool = False

    @cached_property
    def metric_name(self) -> str:
        """The metric's display name, such as RMSE."""
        return get_metric(self.metric).name

    @cached_property
    def is_fraction(self) -> bool:
        """Whether the metric is a fraction, shown in percent."""
        return get_metric(self.metric).is_fraction

    def select_groups(self, test: Mapping[str, Any]) -> Sequence[str]:
        """Return the test groups to show: all clients, or both priority groups for their goals.

        Held-out clients and the mean model come last.
        """
        evaluated = [group for group in TEST_GROUPS if test.get(group)]
        optional = [group for group in OPTIONAL_GROUPS if test.get(group)]
        if "non_priority" in evaluated and self.goal in PRIORITY_GOALS:
            return evaluated + optional
        # Beside the free clients, no other group is one of all.
        return optional if FREE_GROUP in optional else evaluated[-1:] + optional

    @property
    def statistics(self) -> Sequence[tuple[str, str]]:
        """The statistics over clients to show, each with its name."""
        return (*STATISTICS, *(FAIRNESS_STATISTICS if self.goal is Goal.FAIRNESS else ()))

    def format_test(self, values: Mapping[str, float] | None) -> str:
        """Return the test metric of a group, and of how many clients it is if some have none."""
        text = self.format_metric(self.metric, (values or {}).get(self.metric))
        coverage = format_coverage(values or {})
        return f"{text} ({coverage})" if coverage and text != MISSING else text

    def format_metric(self, name: str, value: float | None) -> str:
        """Return the metric, or a statistic of it over clients, as text."""
        if value is None or math.isnan(value):
            return MISSING
        in_percent = name in FRACTION_STATISTICS or self.is_fraction
        if in_percent:
            return f"{value:.1%}"
        if 0 < abs(value) < MIN_FRACTIONAL:
            return f"{value:.2g}"
        return f"{value:.4f}" if abs(value) < MAX_FRACTIONAL else f"{value:,.1f}"


@dataclass(frozen=True)
class RunTotals:
    """The running totals of a run's rounds, whose size does not grow with the rounds.

    Parameters
    ----------
    rounds, empty_rounds : int
        Number of rounds, and number of rounds without an admitted update.
    admitted, transferred_bytes : int
        Updates admitted, and bytes sent both ways, in all rounds.
    seconds : float
        Duration of all rounds.
    theta_sum, rounds_with_theta : float, int
        The sum of theta, and the number of rounds with a theta.
    state_bytes : int
        The server's state beside the model, after the last round.
    loss : float or None
        The last F(w) that was evaluated.
    test : mapping or None
        The last evaluation on the test split.
    weight_error : float or None
        The last error of the estimated participation weights.
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
        """Return the totals with one more round."""
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


NO_TOTALS = RunTotals()


class Display(RunCallback):
    """Shows each round when it ends, and adds up the run's totals.

    Parameters
    ----------
    console : Console
        The output. A terminal gets a live line, other outputs a plain line every ten seconds.
    rounds : int
        Number of rounds of the run.
    title : str
        The method and its data.
    spec : DisplaySpec
        Determines which statistics to show.
    totals : RunTotals
        The totals of the earlier rounds of a resumed run; later also of the rounds shown.
    """

    def __init__(
        self,
        console: Console,
        rounds: int,
        title: str,
        spec: DisplaySpec,
        totals: RunTotals = NO_TOTALS,
    ) -> None:
        self.totals = totals
        self._console = console
        self._spec = spec
        self._rounds = rounds
        self._progress = Progress(
            *_build_live_columns(console.width, len(title)),
            console=console,
            disable=not can_show_live(console),
        )
        self._task = self._progress.add_task(title, total=spec.end_seconds or rounds, state="")
        self._title = title
        self._last_line = -PLAIN_SECONDS
        self._timing_start = 0.0
        self._timed_rounds = -1  # rounds since then

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

    def end_round(self, finished: FinishedRound) -> None:
        """Show one round, and add it to the totals."""
        self.totals = self.totals.add_round(finished.record)
        self.show(finished.record)

    def show(self, record: RoundRecord) -> None:
        """Show one round."""
        state, end = format_round(vars(record), self._spec), self._spec.end_seconds
        clock, done = record.simulated_seconds or 0.0, f"round {record.round}/{self._rounds}"
        rounds_left: float = self._rounds - record.round
        if end is not None:
            done = f"round {record.round}, {clock:,.0f}/{end:,.0f} simulated s"
            rounds_left = min(
                rounds_left, max(0.0, record.round * (end - clock) / max(clock, 1e-9))
            )
        completed = record.round if end is None else min(clock, end)
        self._progress.update(self._task, completed=completed, state=state)
        now = time.monotonic()
        self._timed_rounds += 1
        if self._timed_rounds == 0:
            self._timing_start = now  # the first round is not timed, because it also sets up caches
        due = now - self._last_line >= PLAIN_SECONDS or record.round in (1, self._rounds)
        if not can_show_live(self._console) and due:
            self._last_line = now
            # Only rounds of this process count: a resumed run has earlier ones.
            fraction = self._timed_rounds / max(1.0, self._timed_rounds + rounds_left)
            time_left = format_time_left(now - self._timing_start, fraction)
            numbers = f"{done}  {state}  {time_left}"
            line = f"{self._title}  {numbers}".rstrip()
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def can_show_live(console: Console) -> bool:
    """Say whether a console can rewrite its last line; a file and TERM=dumb cannot."""
    return console.is_terminal and not console.is_dumb_terminal


class TruncatedColumn(ProgressColumn):
    """A text column that is truncated, never wrapped, so that the other columns fit.

    Parameters
    ----------
    text : str
        A format string with the field ``task``, such as ``"{task.description}"``.
    """

    def __init__(self, text: str) -> None:
        super().__init__(Column(no_wrap=False))  # rich narrows only columns that may wrap
        self._text = text

    def render(self, task: Task) -> Text:
        """Return the text, truncated to one line."""
        return Text(self._text.format(task=task), no_wrap=True, overflow="ellipsis")


def _build_live_columns(width: int, title: int) -> Iterator[ProgressColumn]:
    """Yield the columns of a live line; on a narrow terminal only the numbers."""
    available = width - NUMBERS_WIDTH
    if available > title:
        yield TextColumn("{task.description}", table_column=Column(no_wrap=True))
    bar_width = available - title - 2
    if bar_width >= MIN_BAR_WIDTH:
        yield BarColumn(min(bar_width, MAX_BAR_WIDTH), table_column=Column(no_wrap=True))
    yield MofNCompleteColumn(table_column=Column(no_wrap=True))
    yield TimeRemainingColumn(table_column=Column(no_wrap=True))
    yield TruncatedColumn("{task.fields[state]}")


def format_round(record: Mapping[str, Any], spec: DisplaySpec) -> str:
    """Summarize one round in one line.

    ``record`` has the fields of ``RoundRecord``. The test metric is the first number of the final
    table.
    """
    loss, test = record["global_loss"], record["test"]
    words = [] if loss is None or math.isnan(loss) else [f"loss {loss:.4f}"]
    words += [
        f"test {spec.metric_name}{_describe_group(group, test, spec)} "
        f"{spec.format_test(test[group])}{_describe_free(group, test)}"
        for group in spec.select_groups(test or {})[:1]
    ]
    words.append(f"admitted {record['admitted']} of {record['selected']} selected")
    return "  ".join(words)


def _describe_group(group: str, test: Mapping[str, Any], spec: DisplaySpec) -> str:
    """Return of which clients the metric is, in a line beside those of other runs."""
    if not spec.names_group or group in ("priority", FREE_GROUP) or test.get("priority"):
        return ""
    return f" of {group.replace('_', '-')} clients"


def _describe_free(group: str, test: Mapping[str, Any]) -> str:
    """Return how many clients were evaluated, if the others trained meanwhile; else empty."""
    return f" of {test[group]['evaluated']} free clients" if group == FREE_GROUP else ""


def build_final_table(
    totals: RunTotals,
    title: str,
    spec: DisplaySpec,
    privacy: Mapping[str, Any] | None = None,
    admission_counts: Mapping[int, int] | None = None,
    *,
    failed: str = "",
) -> Table:
    """Return the results of a run as a table, with the statistics of its method's goal.

    Parameters
    ----------
    totals : RunTotals
        The totals of all rounds.
    title : str
        The method and its data.
    spec : DisplaySpec
        Determines which statistics to show.
    privacy : mapping, optional
        The manifest's entry for differential privacy; empty without it.
    admission_counts : mapping of int to int, optional
        Number of rounds that admitted each client's update; clients without any are left out.
    failed : str
        How many clients failed; empty if none did.
    """
    groups = spec.select_groups(totals.test or {}) or ("all",)
    table = Table(title=title, show_header=True, title_justify="left")
    table.add_column("")
    for group in groups:
        table.add_column(group.replace("_", "-"), justify="right")
    if totals.test:
        _add_test_rows(table, spec, {group: totals.test[group] or {} for group in groups})
    table.add_section()
    if totals.loss is not None:
        table.add_row("training loss F(w), last measured", f"{totals.loss:.4f}")
    table.add_row(
        "updates admitted per round",
        *_format_admitted(totals, spec, groups, admission_counts or {}),
    )
    if failed:
        table.add_row("clients failed", *("",) * (len(groups) - 1), failed)
    for name, text in _list_run_statistics(totals, spec, privacy or {}, admission_counts or {}):
        table.add_row(name, *("",) * (len(groups) - 1), text)  # of no group: in the last column
    return table


def _add_test_rows(
    table: Table, spec: DisplaySpec, groups: Mapping[str, Mapping[str, float]]
) -> None:
    """Add the results on the test splits, of each group of clients."""
    tested = [*groups.values()]
    name = f"test {spec.metric_name}, {'by data' if spec.by_data else CLIENTS_ONCE}"
    table.add_row(name, *(spec.format_test(values) for values in tested))
    if spec.metric == "accuracy" and spec.constant_accuracy:
        constants = [spec.constant_accuracy.get(group) for group in groups]
        name = "  always guessing the largest class"
        table.add_row(name, *(spec.format_metric("accuracy", one) for one in constants))
    if spec.has_masks:
        table.add_row("  single clients", *(NOT_WITH_MASKS for _ in tested))
    for key, name in () if spec.has_masks else spec.statistics:
        cells = (spec.format_metric(key, values.get(key)) for values in tested)
        table.add_row(f"  {name}", *cells)
    companions = {"r2", AVERAGE_PRECISION} - {spec.metric}
    for key in sorted(companions.intersection(chain.from_iterable(tested))):
        cells = (spec.format_metric(key, values.get(key)) for values in tested)
        table.add_row(f"test {METRICS[key].name}, by data", *cells)
    for key, name in _list_report_statistics(tested):
        table.add_row(name, *(spec.format_metric(key, values.get(key)) for values in tested))


def _list_report_statistics(tested: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yield the metrics that the rules' reports added to a round, each with its label."""
    for numbers in REPORTED_METRICS:
        if any(key in values for key in numbers.labels for values in tested):
            first, *others = numbers.labels.items()
            yield first
            yield from ((key, f"  {label}") for key, label in others)


def _format_admitted(
    totals: RunTotals, spec: DisplaySpec, groups: Sequence[str], admission_counts: Mapping[int, int]
) -> Iterator[str]:
    """Yield the mean number of updates admitted per round, for each group."""
    priority_updates = sum(rounds for k, rounds in admission_counts.items() if k in spec.priority)
    updates = {
        "priority": priority_updates,
        "non_priority": sum(admission_counts.values()) - priority_updates,
        "all": totals.admitted,
    }
    counted_groups = updates if spec.priority and admission_counts else ("all",)
    for group in groups:
        yield f"{updates[group] / totals.rounds:.1f}" if group in counted_groups else ""


def _list_run_statistics(
    totals: RunTotals,
    spec: DisplaySpec,
    privacy: Mapping[str, Any],
    admission_counts: Mapping[int, int],
) -> Iterator[tuple[str, str]]:
    """Yield the statistics of the whole run, each with its name."""
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
    """Yield the statistics of the clients' participation, each with its name."""
    counts = sorted((*admission_counts.values(), *(0,) * (num_clients - len(admission_counts))))
    yield "clients whose updates counted", f"{len(admission_counts)} of {num_clients}"
    yield "  rounds of the rarest client", f"{counts[0]} of {totals.rounds}"
    yield "  rounds of the median client", f"{median_low(counts)} of {totals.rounds}"
    yield "  rounds of the most frequent client", f"{counts[-1]} of {totals.rounds}"
    if totals.weight_error is not None:
        yield "error of the participation weights, last", f"{totals.weight_error:.4f}"
