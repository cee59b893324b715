"""What a chapter says of the runs kept, and its picture."""

import io
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
from server_app.figure_files import DPI
from server_app.provenance import CODE_PATHS, SOURCE_ROOT
from server_app.report.experiment import build_experiments
from server_app.report.matplotlib_charts import draw_figure
from server_app.report.seed_groups import group_runs


def measure_directly(chapter: DirectChapter) -> ChapterResult:
    """Measure a chapter without runs."""
    begin = time.perf_counter()
    tables = chapter.measure()
    seconds = time.perf_counter() - begin
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
    """Return what a chapter says of its runs, of which at least one is kept."""
    seeds = sorted({run.seed for run in runs})
    lengths = sorted({run.rounds for run in runs})
    planned = len(list_jobs(chapter))
    missing = f"{len(runs)} of its {planned} runs so far." if len(runs) < planned else ""
    return ChapterResult(
        date=max(run.started for run in runs)[: len("2026-01-01")],
        commit=", ".join(sorted({run.commit for run in runs})),
        seeds=f"seed{'s' if len(seeds) > 1 else ''} {_join_numbers(seeds)}",
        rounds=f"{_join_numbers(lengths)} rounds",
        seconds=round(sum(run.seconds for run in runs), 1),
        note=missing,
        tables=chapter.tables(runs),
    )


PICTURE_SEEDS = (1, 2, 3)
"""The seeds of a picture. No curves are kept of a run, so a picture is drawn from whole runs."""


def select_picture_jobs(chapter: SweepChapter) -> tuple[ChapterJob, ...]:
    """Return the runs that the chapter's picture shows, none without one."""
    jobs = list_jobs(chapter) if chapter.chart else ()
    return tuple(job for job in jobs if get_seed(job.overrides) in PICTURE_SEEDS)


def draw_chapter_picture(chapter: SweepChapter, folder: Path) -> bytes | None:
    """Return the chapter's picture as PNG; None without one, or where a run is not there."""
    directories = [job.get_folder(folder) for job in select_picture_jobs(chapter)]
    if not chapter.chart or not all((one / "manifest.json").exists() for one in directories):
        return None
    (experiment,) = build_experiments(group_runs(map(load_run, directories)))
    (chart,) = (one for one in experiment.charts if one.name == chapter.chart)
    out = io.BytesIO()
    draw_figure(chart).savefig(out, format="png", dpi=DPI)
    return out.getvalue()


def _join_numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
