"""Display a sweep: live lines on a terminal, plain lines elsewhere.

The display reads the jobs' folders, so the jobs may run on any machine.
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

from fedquorum.report.terminal import format_time_left
from fedquorum.rules.description import Goal
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID
from rich.table import Column

from conf.schema.settings import get_evaluation_metric
from server_app.runs.display import (
    PLAIN_SECONDS,
    DisplaySpec,
    TruncatedColumn,
    can_show_live,
    format_round,
)
from server_app.sweeps.jobs import Job, JobStatus

POLL_SECONDS = 0.5
MIN_WIDTH_FOR_BARS = 130
FINAL_STATUSES = ("completed", "failed", "interrupted")


class SweepDisplay:
    """Watches jobs until they end; use as a context manager.

    Parameters
    ----------
    console : Console
        The output. A terminal gets live lines; other outputs get a plain line whenever a job ends,
        and at least every ten seconds.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = 0
        self.left: Callable[[], str] | None = None
        """Formats the rest of a study's budget; None for a sweep, which has a number of jobs."""
        self._monitors: list[_JobMonitor] = []
        self._completed_before = 0
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
        self._refresh_lock = threading.Lock()
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
        """Watch jobs that will run.

        ``completed_before`` is the number of jobs that need not run, ``total`` that of all jobs.
        """
        self._monitors = [*self._monitors, *map(_JobMonitor, jobs)]
        self._completed_before += completed_before
        self._total = total

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.show()

    def show(self) -> None:
        """Show the current state of the jobs."""
        with self._refresh_lock:
            self._refresh()

    def _refresh(self) -> None:
        for monitor in self._monitors:
            if monitor.status not in FINAL_STATUSES:
                monitor.refresh()
                if monitor.status in FINAL_STATUSES:
                    self._print_plain(f"{monitor.job} {monitor.outcome_text}")
                self._show_bar(monitor)
        self._progress.update(
            self._bar,
            description="study" if self.left else "sweep",
            total=None if self.left else self._total,
            completed=self._num_ended,
            visible=bool(self._total),
            state=self._format_summary(),
        )
        if time.monotonic() - self._last_line >= PLAIN_SECONDS:
            running = [m for m in self._monitors if m.status == "running"]
            rounds = [f"job {m.job.number} round {m.round}/{m.job.rounds}" for m in running]
            text = "  ".join((self._format_summary(), *rounds)).strip()
            if text and (running or not self.left):
                self._print_plain(text)

    def _show_bar(self, monitor: "_JobMonitor") -> None:
        job = monitor.job
        if monitor.status == "running":
            if job not in self._bars:
                self._bars[job] = self._progress.add_task(
                    f"  {job}", total=job.rounds, visible=False, state=""
                )
            self._progress.update(
                self._bars[job], completed=monitor.round, visible=True, state=monitor.state_text
            )
        elif job in self._bars:
            self._progress.remove_task(self._bars.pop(job))

    def _print_plain(self, text: str) -> None:
        if not can_show_live(self._console):
            self._last_line = time.monotonic()
            total = "" if self.left else f"/{self._total}"
            line = f"[{self._num_ended}{total}] {text.strip()}".rstrip()
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    @property
    def _num_ended(self) -> int:
        ended = sum(monitor.status in FINAL_STATUSES for monitor in self._monitors)
        return self._completed_before + ended

    def _format_summary(self) -> str:
        counts = Counter[str](monitor.status for monitor in self._monitors)
        names = ("failed", "interrupted", "running")
        texts = [f"{counts[name]} {name}" for name in names if counts[name]]
        seconds = time.monotonic() - self._started
        texts.append(
            self.left() if self.left else format_time_left(seconds, self._compute_fraction())
        )
        return ", ".join(text for text in texts if text)

    def _compute_fraction(self) -> float:
        """Return the fraction of this call's rounds that are done.

        Jobs that are not chosen yet are assumed to have the mean number of rounds of the others.
        """
        num_later_jobs = self._total - self._completed_before - len(self._monitors)
        mean = fmean([monitor.job.rounds for monitor in self._monitors] or [0])
        rounds = sum(monitor.rounds_to_run for monitor in self._monitors) + num_later_jobs * mean
        return sum(monitor.rounds_done for monitor in self._monitors) / rounds if rounds else 0.0


class _JobMonitor:
    """The last state read of a job; each refresh reads only the rounds added since."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.status: JobStatus = "waiting"
        self.round = 0
        self.state_text = ""
        self._offset = 0
        self._read_rounds()
        self._first = self.round  # the last round of an earlier call

    @property
    def rounds_done(self) -> int:
        """Number of rounds done in this call."""
        return self.round - self._first

    @property
    def rounds_to_run(self) -> int:
        """Number of rounds that the job runs in this call, without those after a failure."""
        return self.rounds_done if self.status in FINAL_STATUSES else self.job.rounds - self._first

    @property
    def outcome_text(self) -> str:
        """The job's final state, with its status written once."""
        if self.status == "completed" and self.job.has_more_rounds:
            return f"round {self.round} of {self.job.planned_rounds}  {self.state_text}"
        has_status = self.state_text.startswith(self.status)
        return self.state_text if has_status else f"{self.status}  {self.state_text}"

    def refresh(self) -> None:
        state = self.job.read_state()
        if state.status in ("running", "completed"):
            self._read_rounds()
        if state.reason:
            self.state_text = state.reason
        self.status = state.status

    def _format_record(self, record: Mapping[str, Any]) -> str:
        composed = self.job.composed
        if composed is None:
            return ""
        # The jobs of a sweep are compared, so they show the metric of the same clients, or name
        # the clients where masks hide those with priority.
        metric = get_evaluation_metric(composed.settings)
        return format_round(record, DisplaySpec(metric, Goal.AVERAGE, names_group=True))

    def _read_rounds(self) -> None:
        path = self.job.directory / "rounds.jsonl"
        try:
            with path.open("rb") as file:
                restarted = os.fstat(file.fileno()).st_size < self._offset
                if restarted:  # from its checkpoint, or from round 1
                    self._offset = self.round = 0
                file.seek(self._offset)
                *lines, _ = file.read().split(b"\n")
        except OSError:
            return
        if lines:
            self._offset += sum(len(line) + 1 for line in lines)
            last: Mapping[str, Any] = json.loads(lines[-1])
            self.round, self.state_text = int(last["round"]), self._format_record(last)
        if restarted:
            self._first = self.round
