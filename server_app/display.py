"""What a person sees: a live line on a terminal, plain lines elsewhere, a table at the end."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from fedquorum.records.round_record import RoundRecord, groups_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_SECONDS = 10.0


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
    """

    def __init__(self, console: Console, rounds: int, title: str) -> None:
        self._console = console
        self._rounds = rounds
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
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
        state = describe(vars(record))
        self._progress.update(self._task, completed=record.round, state=state)
        now = time.monotonic()
        self._measured += 1
        if self._measured == 0:
            self._since = now  # the first round makes what the others use, and tells nothing
        due = now - self._last_line >= PLAIN_SECONDS or record.round in (1, self._rounds)
        if not self._console.is_terminal and due:
            self._last_line = now
            # A run that goes on after an interruption did not run its first rounds just now.
            fraction = self._measured / max(1, self._measured + self._rounds - record.round)
            left = time_left(now - self._since, fraction)
            line = f"{self._title}  round {record.round}/{self._rounds}  {state}  {left}".rstrip()
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def describe(record: Mapping[str, Any]) -> str:
    """Return one round, by the fields of ``RoundRecord`` or of its line, in a few words."""
    loss, test = record["global_loss"], record["test"]
    words = [] if loss is None or math.isnan(loss) else [f"loss {loss:.4f}"]
    if test and (priority := test["priority"]):
        accuracy = priority["accuracy"]
        words.append(f"test {_percent(math.nan if accuracy is None else accuracy)}")
    words.append(f"admitted {record['admitted']} of {record['asked']} asked")
    return "  ".join(words)


def time_left(seconds: float, fraction: float) -> str:
    """Return what is left after ``seconds`` for a fraction of the work, "" if nothing tells."""
    if not 0.0 < fraction < 1.0:
        return ""
    return f"{timedelta(seconds=round(seconds * (1.0 - fraction) / fraction))} left"


@dataclass(frozen=True)
class Totals:
    """The rounds of a run so far, in as much memory as one round takes.

    Parameters
    ----------
    rounds, empty : int
        How many rounds there were, and how many of them counted no update.
    admitted, transferred : int
        Updates admitted and bytes sent both ways, in all rounds.
    seconds : float
        How long all rounds took.
    theta, with_theta : float, int
        The sum of theta, and of how many rounds.
    state_bytes : int
        The server's state beside the model, after the last round.
    loss : float or None
        The last F(w) that was measured.
    test : mapping or None
        The last evaluation of test parts.
    """

    rounds: int = 0
    empty: int = 0
    admitted: int = 0
    transferred: int = 0
    seconds: float = 0.0
    theta: float = 0.0
    with_theta: int = 0
    state_bytes: int = 0
    loss: float | None = None
    test: Mapping[str, Mapping[str, float] | None] | None = None

    def after(self, record: RoundRecord) -> Self:
        """Return the totals with one round more."""
        return replace(
            self,
            rounds=self.rounds + 1,
            empty=self.empty + (record.admitted == 0),
            admitted=self.admitted + record.admitted,
            transferred=self.transferred + record.bytes_down + record.bytes_up,
            seconds=self.seconds + record.seconds,
            theta=self.theta + (record.theta or 0.0),
            with_theta=self.with_theta + (record.theta is not None),
            state_bytes=record.state_bytes,
            loss=self.loss if math.isnan(record.global_loss) else record.global_loss,
            test=record.test or self.test,
        )


def final_table(
    totals: Totals, title: str, metric: str, privacy: Mapping[str, Any] | None = None
) -> Table:
    """Return the end of a run as a table.

    Parameters
    ----------
    totals : Totals
        All rounds.
    title : str
        What ran.
    metric : str
        What the spread over clients is of.
    privacy : mapping, optional
        What the manifest says of differential privacy, empty without it.
    """
    table = Table(title=title, show_header=True, title_justify="left")
    table.add_column("")
    test = totals.test or {}
    groups = groups_of(totals.test)
    for group in groups:
        table.add_column(group.replace("_", "-"), justify="right")
    whole = ("",) * (len(groups) - 1)  # what is said of the run stands in the last column
    for name, key, shown in _test_rows(test, metric):
        values = [test.get(group) or {} for group in groups]
        table.add_row(name, *(shown(each.get(key, math.nan)) for each in values))
    table.add_section()
    if totals.loss is not None:
        table.add_row("training loss F(w), last measured", f"{totals.loss:.4f}")
    admitted = totals.admitted / totals.rounds
    table.add_row("updates admitted per round", *whole, f"{admitted:.1f}")
    if totals.with_theta:
        table.add_row("theta_T", *whole, f"{totals.theta / totals.with_theta:.3f}")
    if totals.state_bytes:
        megabytes = totals.state_bytes / 1e6
        table.add_row("megabytes of server state beside the model", *whole, f"{megabytes:.3g}")
    if totals.empty:
        table.add_row("empty rounds", *whole, str(totals.empty))
    if privacy:
        table.add_row(
            f"epsilon for delta {privacy['delta']:.3g}", *whole, f"{float(privacy['epsilon']):.4g}"
        )
        table.add_row("private releases", *whole, str(privacy["releases"]))
    table.add_row("rounds", *whole, str(totals.rounds))
    table.add_row("seconds per round", *whole, f"{totals.seconds / totals.rounds:.3f}")
    table.add_row("megabytes, both ways", *whole, f"{totals.transferred / 1e6:.1f}")
    return table


def _test_rows(
    test: Mapping[str, Mapping[str, float] | None], metric: str
) -> Iterator[tuple[str, str, Callable[[float], str]]]:
    """Yield what is told of the groups of clients: in words, its name, and how it is shown."""
    if not test:
        return
    show = _number if metric == "loss" else _percent
    yield f"test {metric} (by data)", metric, show
    yield "  average over clients", "average", show
    yield "  worst client", "worst", show
    yield "  best client", "best", show
    if any("appeal" in (values or {}) for values in test.values()):
        yield "clients satisfied", "appeal", _percent
        yield "  accuracy of preferred models", "preferred_accuracy", _percent


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
