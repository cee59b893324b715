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

from benchmarks.book.chapters import Sweeps
from benchmarks.book.kept import KeptRun, append_kept, kept, read_kept, words_of
from server_app.job import run_words, words_going_on
from server_app.sweep import choices_of

KEPT = "runs"
"""The folder in docs/results of what is kept of runs."""

_NAME_DIGITS = 12


@dataclass(frozen=True)
class Job:
    """One run of a chapter.

    Parameters
    ----------
    chapter : str
        The chapter's name.
    words : tuple of str
        After ``fedquorum``.
    numbers : callable
        Returns the raw numbers that are kept of it.
    """

    chapter: str
    words: tuple[str, ...]
    numbers: Callable[[Run], Mapping[str, Any]]

    def folder(self, runs: Path) -> Path:
        """Return where it runs: a folder that its words name, in that of the chapter."""
        digest = hashlib.sha256(" ".join(self.words).encode()).hexdigest()
        return runs / self.chapter / digest[:_NAME_DIGITS]

    def __str__(self) -> str:
        return f"{self.chapter}: fedquorum {' '.join(self.words)}"


def jobs_of(chapter: Sweeps) -> tuple[Job, ...]:
    """Return the runs of a chapter, the first seed of every method before the second of any."""
    found = [words for sweep in chapter.sweeps for words in _combinations(sweep)]
    return tuple(Job(chapter.name, words, chapter.numbers) for words in sorted(found, key=seed_of))


def kept_of(chapter: Sweeps, results: Path) -> tuple[KeptRun, ...]:
    """Return what is kept of a chapter's runs; lines of words that it no longer has are passed."""
    declared = {job.words for job in jobs_of(chapter)}
    runs = read_kept(path_of(chapter.name, results))
    return tuple(run for run in runs if run.words in declared)


def path_of(name: str, results: Path) -> Path:
    """Return the file of a chapter's runs."""
    return results / KEPT / f"{name}.ndjson"


def waiting(chapters: Sequence[Sweeps], results: Path) -> tuple[Job, ...]:
    """Return the runs of chapters of which nothing is kept, in their order."""
    return tuple(
        job
        for chapter in chapters
        for done in [words_of(kept_of(chapter, results))]
        for job in jobs_of(chapter)
        if job.words not in done
    )


def run_queue(
    jobs: Sequence[Job],
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
        under_way: dict[Future[KeptRun], Job] = {}
        while to_come or under_way:
            while to_come and not failure and len(under_way) < at_a_time and time.monotonic() < end:
                job = to_come.pop()
                under_way[pool.submit(run_job, job, runs)] = job
            if not under_way:
                break
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                job = under_way.pop(future)
                failure = failure or future.exception()
                if future.exception():
                    continue
                append_kept(path_of(job.chapter, results), future.result())
                print(f"{len(to_come) + len(under_way)} to come; kept {job}", flush=True)
                if commits:
                    _commit(job, path_of(job.chapter, results))
    if failure:
        raise failure
    return len(to_come)


def run_job(job: Job, runs: Path) -> KeptRun:
    """Run a job, or go on with it, and return what is kept of it.

    Raises
    ------
    FedQuorumError
        If it cannot start, or did not complete.
    """
    folder = job.folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    run_words(words_going_on(job.words, folder), folder)
    run = load_run(folder)
    return kept(run, job.words, job.numbers(run))


def _combinations(sweep: Sequence[str]) -> Iterator[tuple[str, ...]]:
    parsed = OverridesParser.create().parse_overrides(list(sweep))
    yield from product(*map(choices_of, parsed))


def seed_of(words: Sequence[str]) -> int:
    """Return the seed of a run from its words, 0 if they name none."""
    return next((int(w.removeprefix("seed=")) for w in words if w.startswith("seed=")), 0)


def _commit(job: Job, path: Path) -> None:
    subprocess.run(["git", "add", "--", path], cwd=path.parent, check=True)
    title = f"Keep a run of the chapter {job.chapter}"
    words = f"fedquorum {' '.join(job.words)}"
    subprocess.run(
        ["git", "commit", "-q", "-m", title, "-m", words, "--", path], cwd=path.parent, check=True
    )
