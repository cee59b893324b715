"""What a chapter says of the runs kept, and its picture."""

import io
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from fedquorum.records.provenance import commit
from fedquorum.records.reader import load_run

from benchmarks.book.chapters import Direct, Sweeps
from benchmarks.book.kept import KeptRun, short
from benchmarks.book.measured import Measurement
from benchmarks.book.running import Job, jobs_of, seed_of
from server_app.drawing import DPI
from server_app.provenance import CODE, SOURCE
from server_app.report.experiment import experiments_of
from server_app.report.figures import draw
from server_app.report.groups import group_runs


def measured_directly(chapter: Direct) -> Measurement:
    """Measure a chapter without runs."""
    begin = time.perf_counter()
    tables = chapter.measure()
    seconds = time.perf_counter() - begin
    today = datetime.now(UTC).date().isoformat()
    return Measurement(
        today, short(commit(SOURCE, CODE) or ""), chapter.seeds, "", seconds, "", tables
    )


def summary(chapter: Sweeps, runs: Sequence[KeptRun]) -> Measurement:
    """Return what a chapter says of its runs, of which at least one is kept."""
    seeds = sorted({run.seed for run in runs})
    lengths = sorted({run.rounds for run in runs})
    planned = len(jobs_of(chapter))
    missing = f"{len(runs)} of its {planned} runs so far." if len(runs) < planned else ""
    return Measurement(
        date=max(run.started for run in runs)[: len("2026-01-01")],
        commit=", ".join(sorted({run.commit for run in runs})),
        seeds=f"seed{'s' if len(seeds) > 1 else ''} {_words(seeds)}",
        rounds=f"{_words(lengths)} rounds",
        seconds=round(sum(run.seconds for run in runs), 1),
        note=missing,
        tables=chapter.tables(runs),
    )


PICTURED = (1, 2, 3)
"""The seeds of a picture. No curves are kept of a run, so a picture is drawn from whole runs."""


def pictured(chapter: Sweeps) -> tuple[Job, ...]:
    """Return the runs that the chapter's picture shows, none without one."""
    jobs = jobs_of(chapter) if chapter.picture else ()
    return tuple(job for job in jobs if seed_of(job.words) in PICTURED)


def picture(chapter: Sweeps, folder: Path) -> bytes | None:
    """Return the chapter's picture as PNG; None without one, or where a run is not there."""
    directories = [job.folder(folder) for job in pictured(chapter)]
    if not chapter.picture or not all((one / "manifest.json").exists() for one in directories):
        return None
    (experiment,) = experiments_of(group_runs(map(load_run, directories)))
    (chart,) = (one for one in experiment.charts if one.name == chapter.picture)
    out = io.BytesIO()
    draw(chart).savefig(out, format="png", dpi=DPI)
    return out.getvalue()


def _words(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
