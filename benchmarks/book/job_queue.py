"""The queue of the book's runs. No machine repeats a logged run.

Every run is logged as soon as it completes, so a queue can be stopped at any time. An interrupted
run resumes from its checkpoint if its folder still exists.
"""

import hashlib
import math
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedquorum.records.reader import Run, load_run
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks.book.chapters import SweepChapter
from benchmarks.book.runs_log import (
    LoggedRun,
    add_to_log,
    build_log_entry,
    collect_overrides,
    read_run_log,
)
from server_app.runs.job import build_resume_overrides, run_overrides
from server_app.sweeps.sweep import expand_sweep_override

LOG_FOLDER = "runs"
"""The folder of logged runs in docs/results."""

_NAME_DIGITS = 12


@dataclass(frozen=True)
class ChapterJob:
    """One run of a chapter.

    Parameters
    ----------
    chapter : str
        The chapter's name.
    overrides : tuple of str
        The command line after ``fedquorum``.
    numbers : callable
        Returns the raw numbers to log.
    """

    chapter: str
    overrides: tuple[str, ...]
    numbers: Callable[[Run], Mapping[str, Any]]

    def get_folder(self, runs: Path) -> Path:
        """Return the run's folder, named by a hash of its overrides, below ``runs``/chapter."""
        digest = hashlib.sha256(" ".join(self.overrides).encode()).hexdigest()
        return runs / self.chapter / digest[:_NAME_DIGITS]

    def __str__(self) -> str:
        return f"{self.chapter}: fedquorum {' '.join(self.overrides)}"


def list_jobs(chapter: SweepChapter) -> tuple[ChapterJob, ...]:
    """Return the runs of a chapter, the first seed of every method before the second of any."""
    expanded = [overrides for sweep in chapter.sweeps for overrides in _expand_sweep(sweep)]
    return tuple(
        ChapterJob(chapter.name, overrides, chapter.numbers)
        for overrides in sorted(expanded, key=get_seed)
    )


def read_chapter_runs(chapter: SweepChapter, results: Path) -> tuple[LoggedRun, ...]:
    """Return the logged runs of a chapter, except those whose overrides it does not declare."""
    declared = {job.overrides for job in list_jobs(chapter)}
    runs = read_run_log(get_log_path(chapter.name, results))
    return tuple(run for run in runs if run.words in declared)


def find_complete_look(chapter: SweepChapter, results: Path) -> SweepChapter | None:
    """Return the chapter with the most seeds of which all runs are logged, None if none has all.

    Numbers of seeds between two planned looks do not count: no claim is judged there.
    """
    runs = read_run_log(get_log_path(chapter.name, results))
    most = len({run.seed for run in runs})
    beyond = (most,) if most > chapter.looks[-1] else ()
    for num_seeds in reversed((*chapter.looks, *beyond)):
        look = chapter.with_seeds(num_seeds)
        if not list_pending_jobs([look], results):
            return look
    return None


def get_log_path(name: str, results: Path) -> Path:
    """Return the log file of a chapter."""
    return results / LOG_FOLDER / f"{name}.ndjson"


def list_pending_jobs(chapters: Sequence[SweepChapter], results: Path) -> tuple[ChapterJob, ...]:
    """Return the runs of chapters that are not logged yet, in their order."""
    return tuple(
        job
        for chapter in chapters
        for logged in [collect_overrides(read_chapter_runs(chapter, results))]
        for job in list_jobs(chapter)
        if job.overrides not in logged
    )


def run_queue(
    jobs: Sequence[ChapterJob],
    results: Path,
    runs: Path,
    *,
    at_a_time: int = 1,
    deadline: float = math.inf,
    commits: bool = False,
) -> int:
    """Run jobs and log each when it ends; return how many were left for lack of time.

    Parameters
    ----------
    jobs : sequence of ChapterJob
        The most urgent job first.
    results : Path
        The folder of results, such as ``docs/results``, with the log files below it.
    runs : Path
        The folder of all runs.
    at_a_time : int
        The number of processes that run jobs.
    deadline : float
        Start no run after this time of the monotonic clock.
    commits : bool
        Whether to commit every logged run.

    Raises
    ------
    FedQuorumError
        If a run did not complete, after the running ones are logged.
    """
    pending = list(reversed(jobs))
    failure: BaseException | None = None
    with ProcessPoolExecutor(at_a_time, get_context("spawn")) as pool:
        running: dict[Future[LoggedRun], ChapterJob] = {}
        while pending or running:
            while (
                pending and not failure and len(running) < at_a_time and time.monotonic() < deadline
            ):
                job = pending.pop()
                running[pool.submit(run_chapter_job, job, runs)] = job
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                failure = failure or future.exception()
                if future.exception():
                    continue
                add_to_log(get_log_path(job.chapter, results), future.result())
                print(f"{len(pending) + len(running)} runs left; logged {job}", flush=True)
                if commits:
                    _commit_run(job, get_log_path(job.chapter, results))
    if failure:
        raise failure
    return len(pending)


def run_chapter_job(job: ChapterJob, runs: Path) -> LoggedRun:
    """Run or resume a job, and return its log entry.

    Raises
    ------
    FedQuorumError
        If the run cannot start, or did not complete.
    """
    folder = job.get_folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    run_overrides(build_resume_overrides(job.overrides, folder), folder)
    run = load_run(folder)
    return build_log_entry(run, job.overrides, job.numbers(run))


def _expand_sweep(sweep: Sequence[str]) -> Iterator[tuple[str, ...]]:
    parsed = OverridesParser.create().parse_overrides(list(sweep))
    yield from product(*map(expand_sweep_override, parsed))


def get_seed(overrides: Sequence[str]) -> int:
    """Return the seed of a run, 0 if the overrides have none."""
    return next(
        (int(item.removeprefix("seed=")) for item in overrides if item.startswith("seed=")), 0
    )


def _commit_run(job: ChapterJob, path: Path) -> None:
    subprocess.run(["git", "add", "--", path], cwd=path.parent, check=True)
    title = f"Log a run of the chapter {job.chapter}"
    body = f"fedquorum {' '.join(job.overrides)}"
    subprocess.run(
        ["git", "commit", "-q", "-m", title, "-m", body, "--", path], cwd=path.parent, check=True
    )
