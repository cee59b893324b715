"""Choose what the queue measures next: seeds for undecided claims, the cheapest decision first."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.book.chapters import SweepChapter
from benchmarks.book.job_queue import (
    ChapterJob,
    find_complete_look,
    list_pending_jobs,
    read_chapter_runs,
)
from benchmarks.book.results import SECONDS_PER_HOUR


@dataclass(frozen=True)
class NextLook:
    """The runs that are missing until the claims of a chapter are judged again.

    Parameters
    ----------
    chapter : SweepChapter
        The chapter with the seeds of that look.
    jobs : tuple of ChapterJob
        The missing runs.
    seconds : float
        How long they take on one core, by the logged runs; 0 if there are none.
    """

    chapter: SweepChapter
    jobs: tuple[ChapterJob, ...]
    seconds: float

    def __str__(self) -> str:
        hours = self.seconds / SECONDS_PER_HOUR
        cost = f", about {hours:.1f} hours of one core" if hours else ""
        runs, seeds = len(self.jobs), self.chapter.num_seeds
        return f"{self.chapter.name}: {runs} runs until {seeds} seeds{cost}"


def find_next_look(
    chapter: SweepChapter, results: Path, *, is_undecided: bool, min_seeds: int = 0
) -> NextLook | None:
    """Return a chapter's next look, None if it needs no more runs.

    Parameters
    ----------
    chapter : SweepChapter
    results : Path
        The folder of results, with the logs below it.
    is_undecided : bool
        Whether one of its claims is undecided; otherwise only the first look is measured.
    min_seeds : int
        Take the looks up to this number in any case, and one at it if it is beyond the plan.
    """
    done = find_complete_look(chapter, results)
    num_done = done.num_seeds if done else 0
    least = max(chapter.looks[0], min_seeds)
    wanted = [seeds for seeds in chapter.looks if is_undecided or seeds <= least]
    wanted += [min_seeds] if min_seeds > chapter.looks[-1] else []
    num_seeds = next((seeds for seeds in wanted if seeds > num_done), None)
    if num_seeds is None:
        return None
    look = chapter.with_seeds(num_seeds)
    jobs = list_pending_jobs([look], results)
    logged = [run.seconds for run in read_chapter_runs(look, results)]
    return NextLook(look, jobs, len(jobs) * statistics.mean(logged) if logged else 0.0)
