"""Show a sweep: live lines on a terminal, plain lines elsewhere.

All of it is read from the jobs' folders, so it does not matter where the jobs run.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from fedquorum.rule import Goal
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID
from rich.table import Column

from conf.schema.settings import get_evaluation_metric
from server_app.display import (
    PLAIN_SECONDS,
    DisplaySpec,
    TruncatedColumn,
    can_show_live,
    format_round,
    format_time_left,
)
from server_app.sweep_jobs import Job, JobStatus

POLL_SECONDS = 0.5
MIN_WIDTH_FOR_BARS = 130
FINAL_STATUSES = ("completed", "failed", "interrupted")


class SweepDisplay:
    """Watches jobs until they end; use as a context manager.

    Parameters
    ----------
    console : Console
        Where to; live lines where it is a terminal, otherwise a plain line for every job that
        ends, and one at least every ten seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self.left: Callable[[], str] | None = None
        """Says what is left, where a budget and no number of jobs ends them; None for a sweep."""
        self._watched: list[_JobMonitor] = []
        self._before = 0
        self._started = self._last_line = time.monotonic()
        self._progress = Progress(
            TruncatedColumn("{task.description}"),
            *([BarColumn()] if console.width >= MIN_WIDTH_FOR_BARS else []),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TruncatedColumn("{task.fields[state]}"),
            console=console,
            disable=not can_show_live(console),
            redirect_stdout=False,  # the output of a job in this process is redirected already
            redirect_stderr=False,
        )
        self._bar = self._progress.add_task("sweep", total=None, visible=False, state="")
        self._bars: dict[Job, TaskID] = {}
        self._showing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.show()
        self._progress.stop()

    def add(self, jobs: Sequence[Job], completed_before: int, total: int) -> None:
        """Watch jobs that are to be run; ``completed_before`` others need not; of ``total``."""
        self._watched = [*self._watched, *map(_JobMonitor, jobs)]
        self._before += completed_before
        self._total = total

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.show()

    def show(self) -> None:
        """Show how far the jobs are now."""
        with self._showing:
            self._refresh()

    def _refresh(self) -> None:
        for watched in self._watched:
            if watched.status not in FINAL_STATUSES:
                watched.refresh()
                if watched.status in FINAL_STATUSES:
                    self._print_plain(f"{watched.job} {watched.outcome_text}")
                self._show_bar(watched)
        self._progress.update(
            self._bar,
            description="study" if self.left else "sweep",
            total=None if self.left else self._total,
            completed=self._num_ended,
            visible=bool(self._total),
            state=self._format_summary(),
        )
        if time.monotonic() - self._last_line >= PLAIN_SECONDS:
            running = [w for w in self._watched if w.status == "running"]
            rounds = [f"job {w.job.number} round {w.round}/{w.job.rounds}" for w in running]
            words = "  ".join((self._format_summary(), *rounds)).strip()
            if words and (running or not self.left):
                self._print_plain(words)

    def _show_bar(self, monitor: "_JobMonitor") -> None:
        job = monitor.job
        if monitor.status == "running":
            if job not in self._bars:
                self._bars[job] = self._progress.add_task(
                    f"  {job}", total=job.rounds, visible=False, state=""
                )
            self._progress.update(
                self._bars[job], completed=monitor.round, visible=True, state=monitor.words
            )
        elif job in self._bars:
            self._progress.remove_task(self._bars.pop(job))

    def _print_plain(self, text: str) -> None:
        if not can_show_live(self._console):
            self._last_line = time.monotonic()
            of = "" if self.left else f"/{self._total}"
            line = f"[{self._num_ended}{of}] {text.strip()}".rstrip()
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    @property
    def _num_ended(self) -> int:
        return self._before + sum(watched.status in FINAL_STATUSES for watched in self._watched)

    def _format_summary(self) -> str:
        counts = Counter[str](watched.status for watched in self._watched)
        names = ("failed", "interrupted", "running")
        words = [f"{counts[name]} {name}" for name in names if counts[name]]
        seconds = time.monotonic() - self._started
        words.append(
            self.left() if self.left else format_time_left(seconds, self._compute_fraction())
        )
        return ", ".join(word for word in words if word)

    def _compute_fraction(self) -> float:
        """Return the share of the rounds to be run here that are done.

        Jobs that are not chosen yet have as many rounds as the others.
        """
        to_come = self._total - self._before - len(self._watched)
        mean = fmean([watched.job.rounds for watched in self._watched] or [0])
        rounds = sum(watched.rounds_to_run for watched in self._watched) + to_come * mean
        return sum(watched.rounds_done for watched in self._watched) / rounds if rounds else 0.0


class _JobMonitor:
    """A job, and what was last seen of it; reads only what its rounds have added since."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.status: JobStatus = "waiting"
        self.round = 0
        self.words = ""
        self._offset = 0
        self._read_rounds()
        self._first = self.round  # it goes on after this one, which was not run just now

    @property
    def rounds_done(self) -> int:
        """Rounds run here so far."""
        return self.round - self._first

    @property
    def rounds_to_run(self) -> int:
        """Rounds that it runs here in all; a job that failed runs no more of them."""
        return self.rounds_done if self.status in FINAL_STATUSES else self.job.rounds - self._first

    @property
    def outcome_text(self) -> str:
        """How it ended, in words that do not say the status twice."""
        if self.status == "completed" and self.job.has_more_rounds:
            return f"round {self.round} of {self.job.planned_rounds}  {self.words}"
        said = self.words.startswith(self.status)
        return self.words if said else f"{self.status}  {self.words}"

    def refresh(self) -> None:
        state = self.job.read_state()
        if state.status in ("running", "completed"):
            self._read_rounds()
        if state.reason:
            self.words = state.reason
        self.status = state.status

    def _format_record(self, record: Mapping[str, Any]) -> str:
        composed = self.job.composed
        if composed is None:
            return ""
        # The jobs of one sweep are compared, so all of them tell of the same clients.
        metric = get_evaluation_metric(composed.settings)
        return format_round(record, DisplaySpec(metric, Goal.AVERAGE))

    def _read_rounds(self) -> None:
        path = self.job.directory / "rounds.jsonl"
        try:
            with path.open("rb") as file:
                anew = os.fstat(file.fileno()).st_size < self._offset
                if anew:  # from its checkpoint, or from the beginning
                    self._offset = self.round = 0
                file.seek(self._offset)
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return
        if lines:
            self._offset += sum(len(line) + 1 for line in lines)
            last: Mapping[str, Any] = json.loads(lines[-1])
            self.round, self.words = int(last["round"]), self._format_record(last)
        if anew:
            self._first = self.round
