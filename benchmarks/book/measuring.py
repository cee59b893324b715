"""Measuring a chapter: its sweeps are run, or gone on with, and read back."""

import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fedquorum.records.reader import Run, read_runs

from benchmarks.book.chapters import Chapter, Direct, Sweeps
from benchmarks.book.measured import Measurement
from server_app.command_line import main as fedquorum
from server_app.drawing import DPI
from server_app.provenance import commit
from server_app.report.experiment import experiments_of
from server_app.report.figures import draw
from server_app.report.groups import group_runs

COMMIT_LETTERS = 7


def measure(chapter: Chapter, folder: Path, jobs: int) -> tuple[Measurement, bytes | None]:
    """Return what a chapter measures, and its picture as PNG where it has one.

    Parameters
    ----------
    chapter : Chapter
        What to measure.
    folder : Path
        Where its runs are, or are to be; what is completed there is not run again.
    jobs : int
        Runs at a time.

    Raises
    ------
    RunError
        If a record is damaged, or there is none.
    SweepUnfinished
        As ``fedquorum -m``, if not all runs completed; it is the end of the process.
    """
    if isinstance(chapter, Direct):
        begin = time.perf_counter()
        tables = chapter.measure()
        seconds = time.perf_counter() - begin
        today = datetime.now(UTC).date().isoformat()
        code = _short(commit() or "")
        return Measurement(today, code, chapter.seeds, "", seconds, "", tables), None
    for number, words in enumerate(chapter.sweeps, start=1):
        _sweep([f"hydra.sweep.dir={folder / str(number)}", f"engine.jobs={jobs}", *words])
    runs = [run for run in read_runs([folder])[0] if run.status == "completed"]
    return _summary(chapter, runs), _picture(chapter, runs)


def _sweep(words: Sequence[str]) -> None:
    with _arguments(["fedquorum", "-m", *words]):
        fedquorum()


@contextmanager
def _arguments(words: list[str]) -> Iterator[None]:
    """Let Hydra, which reads the command line, find these words there."""
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def _summary(chapter: Sweeps, runs: Sequence[Run]) -> Measurement:
    seeds = sorted({run.seed for run in runs})
    lengths = sorted({len(run.rounds) for run in runs})
    commits = sorted({_commit_of(run) for run in runs})
    return Measurement(
        date=max(run.started for run in runs)[: len("2026-01-01")],
        commit=", ".join(commits),
        seeds=f"seed{'s' if len(seeds) > 1 else ''} {_words(seeds)}",
        rounds=f"{_words(lengths)} rounds",
        seconds=sum(record.seconds for run in runs for record in run.rounds),
        note="",
        tables=chapter.tables(runs),
    )


def _picture(chapter: Sweeps, runs: Sequence[Run]) -> bytes | None:
    if not chapter.picture:
        return None
    (experiment,) = experiments_of(group_runs(runs))
    (chart,) = (one for one in experiment.charts if one.name == chapter.picture)
    out = io.BytesIO()
    draw(chart).savefig(out, format="png", dpi=DPI)
    return out.getvalue()


def _commit_of(run: Run) -> str:
    manifest = json.loads((run.directory / "manifest.json").read_text())
    return _short(manifest.get("commit") or "")


def _short(commit: str) -> str:
    """Return a commit in few letters; that the sources were changed stays told."""
    letters, dash, changed = commit.partition("-")
    return f"{letters[:COMMIT_LETTERS]}{dash}{changed}" or "an unknown commit"


def _words(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
