"""Writes docs/results.md and the README's table of claims, and measures the numbers in both.

    python -m benchmarks.book                      writes the book from docs/results
    python -m benchmarks.book --run NAME [NAME]    measures these chapters first (or: all)
    python -m benchmarks.book --list               says how many runs each chapter lacks
    python -m benchmarks.book --picture NAME       runs what a chapter's picture shows, and draws it
    python -m benchmarks.book --quick              measures all, small, into a book of its own

A chapter's runs are a queue. What is kept of each is written to docs/results/runs when it ends, and
is never measured again: the same command goes on where it was stopped, on another machine too.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fedquorum.errors import FedQuorumError
from fedquorum.records.run_dir import read_manifest_or_empty

from benchmarks.book.chapters import CHAPTERS, Chapter, DirectChapter, SweepChapter
from benchmarks.book.job_queue import (
    list_jobs,
    list_pending_jobs,
    read_chapter_runs,
    run_chapter_job,
    run_queue,
)
from benchmarks.book.render import IMAGES, RESULTS, TEXTS, format_book, replace_headlines
from benchmarks.book.results import read_chapter_result, write_chapter_result
from benchmarks.book.summarize import (
    draw_chapter_picture,
    measure_directly,
    select_picture_jobs,
    summarize_runs,
)

ROOT = Path(__file__).resolve().parents[2]
ALL = "all"


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit status."""
    arguments = _parse_arguments(argv)
    quick = arguments.quick
    default = Path("outputs") / ("book-quick" if quick else "book")
    folder = (arguments.folder or default).absolute()
    docs = folder / "docs" if quick else ROOT / "docs"
    if quick:
        shutil.copytree(ROOT / "docs" / TEXTS, docs / TEXTS, dirs_exist_ok=True)
    everything = quick or ALL in arguments.run
    wanted = [one for one in CHAPTERS if everything or one.name in arguments.run]
    chapters: list[Chapter] = [one.make_quick() if quick else one for one in wanted]
    if arguments.list:
        _print_progress(CHAPTERS, docs / RESULTS)
        return 0
    try:
        if arguments.picture:
            _draw_picture(arguments.picture, docs, folder)
        left = _measure_chapters(chapters, docs, folder, arguments)
    except FedQuorumError as error:
        print(f"benchmarks.book: {error}", file=sys.stderr)
        return 1
    path = docs / "results.md"
    path.write_text(format_book(docs, quick=quick), encoding="utf-8")
    if not quick:
        readme = ROOT / "README.md"
        readme.write_text(replace_headlines(readme.read_text("utf-8"), docs), encoding="utf-8")
    print(path if not left else f"{path}: {left} runs are left; the same command goes on")
    return 0


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [chapter.name for chapter in CHAPTERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.book", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--run", nargs="+", choices=[*names, ALL], default=[], metavar="NAME")
    parser.add_argument("--picture", choices=[one.name for one in CHAPTERS if _has_picture(one)])
    parser.add_argument("--list", action="store_true", help="the runs that are kept, by chapter")
    parser.add_argument("--quick", action="store_true", help="two rounds and one seed of each")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--minutes", type=float, help="after which no run is begun any more")
    parser.add_argument("--commit", action="store_true", help="make a commit of every run kept")
    parser.add_argument("--folder", type=Path, help="of the runs (default: outputs/book)")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.run:
        parser.error("expected --quick, which measures all, or --run, not both")
    return arguments


def _measure_chapters(
    chapters: Sequence[Chapter], docs: Path, folder: Path, arguments: argparse.Namespace
) -> int:
    """Measure chapters, those made of runs as one queue; return how many runs are left."""
    results = docs / RESULTS
    of_runs = [chapter for chapter in chapters if isinstance(chapter, SweepChapter)]
    for chapter in chapters:
        if isinstance(chapter, DirectChapter):
            write_chapter_result(measure_directly(chapter), results / f"{chapter.name}.json")
    try:
        return run_queue(
            list_pending_jobs(of_runs, results),
            results,
            folder,
            at_a_time=arguments.jobs,
            minutes=arguments.minutes,
            commits=arguments.commit,
        )
    finally:
        for chapter in of_runs:
            _write_chapter(chapter, docs, folder)


def _write_chapter(chapter: SweepChapter, docs: Path, folder: Path) -> None:
    """Write a chapter's numbers from what is kept of its runs, and its picture.

    Until all runs are kept an earlier measurement stands if it has more seeds.
    """
    runs = read_chapter_runs(chapter, docs / RESULTS)
    path = docs / RESULTS / f"{chapter.name}.json"
    if not runs:
        return
    measured = summarize_runs(chapter, runs)
    earlier = read_chapter_result(path).num_seeds if path.exists() else 0
    if len(runs) < len(list_jobs(chapter)) and earlier > measured.num_seeds:
        return
    write_chapter_result(measured, path)
    _write_picture(chapter, docs, folder)


def _draw_picture(name: str, docs: Path, folder: Path) -> None:
    """Run again what a chapter's picture shows, as far as it is not there, and draw it."""
    chapter = next(one for one in CHAPTERS if isinstance(one, SweepChapter) and one.name == name)
    for job in select_picture_jobs(chapter):
        if read_manifest_or_empty(job.get_folder(folder)).get("status") != "completed":
            run_chapter_job(job, folder)
    _write_picture(chapter, docs, folder)


def _write_picture(chapter: SweepChapter, docs: Path, folder: Path) -> None:
    image = draw_chapter_picture(chapter, folder)
    if image is not None:
        (docs / IMAGES).mkdir(exist_ok=True)
        (docs / IMAGES / f"{chapter.name}.png").write_bytes(image)


def _has_picture(chapter: Chapter) -> bool:
    return isinstance(chapter, SweepChapter) and bool(chapter.chart)


def _print_progress(chapters: Sequence[Chapter], results: Path) -> None:
    for chapter in chapters:
        if isinstance(chapter, SweepChapter):
            done = len(read_chapter_runs(chapter, results))
            print(f"{chapter.name}: {done} of {len(list_jobs(chapter))} runs kept")


if __name__ == "__main__":
    sys.exit(main())
