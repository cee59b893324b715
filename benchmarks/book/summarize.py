"""Summarize the logged runs of a chapter, and draw its picture."""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedquorum.records.provenance import find_commit
from fedquorum.records.reader import load_run

from benchmarks.book.chapters import DirectChapter, SweepChapter
from benchmarks.book.job_queue import ChapterJob, get_seed, list_jobs
from benchmarks.book.results import ChapterResult
from benchmarks.book.runs_log import LoggedRun, shorten_commit
from server_app.provenance import CODE_PATHS, SOURCE_ROOT


def measure_directly(chapter: DirectChapter) -> ChapterResult:
    """Measure a chapter without runs."""
    started = time.perf_counter()
    tables = chapter.measure()
    seconds = time.perf_counter() - started
    today = datetime.now(UTC).date().isoformat()
    return ChapterResult(
        today,
        shorten_commit(find_commit(SOURCE_ROOT, CODE_PATHS) or ""),
        chapter.seeds,
        "",
        seconds,
        "",
        tables,
    )


def summarize_runs(chapter: SweepChapter, runs: Sequence[LoggedRun]) -> ChapterResult:
    """Build the result of a chapter from its logged runs."""
    seeds = sorted({run.seed for run in runs})
    # A run of one round is there for its clients alone, so its rounds are not the chapter's.
    rounds = sorted({run.rounds for run in runs if run.rounds > 1} or {1})
    return ChapterResult(
        date=max(run.started for run in runs)[: len("2026-01-01")],
        commit=", ".join(sorted({run.commit for run in runs})),
        seeds=f"seed{'s' if len(seeds) > 1 else ''} {_join_numbers(seeds)}",
        rounds=f"{_join_numbers(rounds) if len(rounds) < MAX_LISTED else _span(rounds)} rounds",
        seconds=round(sum(run.seconds for run in runs), 1),
        note="",
        tables=chapter.tables(runs),
    )


MAX_LISTED = 6
"""Fewer different numbers of rounds are listed; runs that end by a clock have one each."""


def _span(rounds: Sequence[int]) -> str:
    return f"{rounds[0]:,} to {rounds[-1]:,}"


PICTURE_SEEDS = (1, 2, 3)
"""The seeds of a picture. The log has no curves, so a picture is drawn from whole runs."""


def select_picture_jobs(chapter: SweepChapter) -> tuple[ChapterJob, ...]:
    """Return the runs that the chapter's picture shows, none if it has no picture."""
    jobs = list_jobs(chapter) if chapter.picture else ()
    return tuple(job for job in jobs if get_seed(job.overrides) in PICTURE_SEEDS)


def draw_chapter_picture(chapter: SweepChapter, folder: Path) -> bytes | None:
    """Return the chapter's picture as PNG, None if it has no picture or a run is missing."""
    if chapter.picture is None:
        return None
    directories = {job.overrides: job.get_folder(folder) for job in select_picture_jobs(chapter)}
    if not all((directory / "manifest.json").exists() for directory in directories.values()):
        return None
    return chapter.picture({words: load_run(path) for words, path in directories.items()})


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
