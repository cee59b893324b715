"""What a person sees: a live line on a terminal, plain lines elsewhere, a table at the end."""

import math
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from fedquorum.records.round_record import TEST_GROUPS, RoundRecord
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


def final_table(
    records: list[RoundRecord], title: str, metric: str, privacy: Mapping[str, Any] | None = None
) -> Table:
    """Return the end of a run as a table.

    Parameters
    ----------
    records : list of RoundRecord
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
    for group in TEST_GROUPS:
        table.add_column(group.replace("_", "-"), justify="right")
    whole = ("",) * (len(TEST_GROUPS) - 1)  # what is said of the run stands in the last column
    tests = [record.test for record in records if record.test]
    if tests:
        show = _number if metric == "loss" else _percent
        for name, key in (
            (f"test {metric} (by data)", metric),
            ("  average over clients", "average"),
            ("  worst client", "worst"),
            ("  best client", "best"),
        ):
            groups = [tests[-1][group] or {} for group in TEST_GROUPS]
            table.add_row(name, *(show(values.get(key, math.nan)) for values in groups))
    thetas = [record.theta for record in records if record.theta is not None]
    table.add_section()
    losses = [record.global_loss for record in records if not math.isnan(record.global_loss)]
    if losses:
        table.add_row("training loss F(w), last measured", f"{losses[-1]:.4f}")
    table.add_row(
        "updates admitted per round", *whole, f"{_mean([r.admitted for r in records]):.1f}"
    )
    if thetas:
        table.add_row("theta_T", *whole, f"{_mean(thetas):.3f}")
    if records[-1].state_bytes:
        megabytes = records[-1].state_bytes / 1e6
        table.add_row("megabytes of server state beside the model", *whole, f"{megabytes:.3g}")
    empty = sum(record.admitted == 0 for record in records)
    if empty:
        table.add_row("empty rounds", *whole, str(empty))
    if privacy:
        table.add_row(
            f"epsilon for delta {privacy['delta']:.3g}", *whole, f"{float(privacy['epsilon']):.4g}"
        )
        table.add_row("private releases", *whole, str(privacy["releases"]))
    table.add_row("rounds", *whole, str(len(records)))
    table.add_row("seconds per round", *whole, f"{_mean([r.seconds for r in records]):.3f}")
    megabytes = sum(r.bytes_down + r.bytes_up for r in records) / 1e6
    table.add_row("megabytes, both ways", *whole, f"{megabytes:.1f}")
    return table


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
