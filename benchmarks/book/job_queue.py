"""The queue of the book's runs: what is kept already is not run again, by any machine.

Every run that completes is kept at once, so that a queue may be stopped at any time. One that was
broken off goes on from its checkpoint where its folder is still there.
"""

import hashlib
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
from server_app.job import build_resume_overrides, run_overrides
from server_app.sweep import expand_sweep_override

LOG_FOLDER = "runs"
"""The folder in docs/results of what is kept of runs."""

_NAME_DIGITS = 12


@dataclass(frozen=True)
class ChapterJob:
    """One run of a chapter.

    Parameters
    ----------
    chapter : str
        The chapter's name.
    overrides : tuple of str
        After ``fedquorum``.
    numbers : callable
        Returns the raw numbers that are kept of it.
    """

    chapter: str
    overrides: tuple[str, ...]
    numbers: Callable[[Run], Mapping[str, Any]]

    def get_folder(self, runs: Path) -> Path:
        """Return where it runs: a folder that its words name, in that of the chapter."""
        digest = hashlib.sha256(" ".join(self.overrides).encode()).hexdigest()
        return runs / self.chapter / digest[:_NAME_DIGITS]

    def __str__(self) -> str:
        return f"{self.chapter}: fedquorum {' '.join(self.overrides)}"


def list_jobs(chapter: SweepChapter) -> tuple[ChapterJob, ...]:
    """Return the runs of a chapter, the first seed of every method before the second of any."""
    found = [words for sweep in chapter.sweeps for words in _expand_sweep(sweep)]
    return tuple(
        ChapterJob(chapter.name, words, chapter.numbers) for words in sorted(found, key=get_seed)
    )


def read_chapter_runs(chapter: SweepChapter, results: Path) -> tuple[LoggedRun, ...]:
    """Return what is kept of a chapter's runs; lines of words that it no longer has are passed."""
    declared = {job.overrides for job in list_jobs(chapter)}
    runs = read_run_log(get_log_path(chapter.name, results))
    return tuple(run for run in runs if run.words in declared)


def get_log_path(name: str, results: Path) -> Path:
    """Return the file of a chapter's runs."""
    return results / LOG_FOLDER / f"{name}.ndjson"


def list_pending_jobs(chapters: Sequence[SweepChapter], results: Path) -> tuple[ChapterJob, ...]:
    """Return the runs of chapters of which nothing is kept, in their order."""
    return tuple(
        job
        for chapter in chapters
        for done in [collect_overrides(read_chapter_runs(chapter, results))]
        for job in list_jobs(chapter)
        if job.overrides not in done
    )


def run_queue(
    jobs: Sequence[ChapterJob],
    results: Path,
    runs: Path,
    *,
    at_a_time: int = 1,
    minutes: float | None = None,
    commits: bool = False,
) -> int:
    """Run jobs and keep each when it ends; return how many were left for lack of time.

    Parameters
    ----------
    jobs : sequence of Job
        What is to be run, the most urgent first.
    results : Path
        ``docs/results`` or the like; each run is kept below.
    runs : Path
        The folder of all runs.
    at_a_time : int
        How many processes run jobs.
    minutes : float, optional
        After which none is begun any more.
    commits : bool
        Whether every run kept becomes a commit.

    Raises
    ------
    FedQuorumError
        If a run did not complete, after those under way are kept.
    """
    end = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    to_come = list(reversed(jobs))
    failure: BaseException | None = None
    with ProcessPoolExecutor(at_a_time, get_context("spawn")) as pool:
        under_way: dict[Future[LoggedRun], ChapterJob] = {}
        while to_come or under_way:
            while to_come and not failure and len(under_way) < at_a_time and time.monotonic() < end:
                job = to_come.pop()
                under_way[pool.submit(run_chapter_job, job, runs)] = job
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                job = under_way.pop(future)
                failure = failure or future.exception()
                if future.exception():
                    continue
                add_to_log(get_log_path(job.chapter, results), future.result())
                print(f"{len(to_come) + len(under_way)} to come; kept {job}", flush=True)
                if commits:
                    _commit_run(job, get_log_path(job.chapter, results))
    if failure:
        raise failure
    return len(to_come)


def run_chapter_job(job: ChapterJob, runs: Path) -> LoggedRun:
    """Run a job, or go on with it, and return what is kept of it.

    Raises
    ------
    FedQuorumError
        If it cannot start, or did not complete.
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
    """Return the seed of a run from its words, 0 if they name none."""
    return next((int(w.removeprefix("seed=")) for w in overrides if w.startswith("seed=")), 0)


def _commit_run(job: ChapterJob, path: Path) -> None:
    subprocess.run(["git", "add", "--", path], cwd=path.parent, check=True)
    title = f"Keep a run of the chapter {job.chapter}"
    words = f"fedquorum {' '.join(job.overrides)}"
    subprocess.run(
        ["git", "commit", "-q", "-m", title, "-m", words, "--", path], cwd=path.parent, check=True
    )
