"""Write docs/results.md and the README's table of claims, and measure the numbers in both.

    python -m benchmarks.book                      writes the book from docs/results
    python -m benchmarks.book --run NAME [NAME]    measures these chapters first (or: all)
    python -m benchmarks.book --run NAME --seeds N measures at least N seeds
    python -m benchmarks.book --list               prints what --run would measure
    python -m benchmarks.book --picture NAME       makes the runs of a chapter's picture, draws it
    python -m benchmarks.book --quick              measures everything, small, into a separate book

The runs form a queue. Each run that ends is logged in docs/results/runs and is never repeated: the
same command resumes an interrupted queue, also on another machine. A chapter gets the seeds of its
sweeps, and then those of its next planned look while one of its claims is undecided, the cheapest
decision first.
"""

import argparse
import math
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedquorum.errors import FedQuorumError
from fedquorum.records.run_dir import read_manifest_or_empty

from benchmarks.book.chapters import CHAPTERS, Chapter, DirectChapter, SweepChapter
from benchmarks.book.claims_chart import write_claim_charts
from benchmarks.book.job_queue import (
    find_complete_look,
    read_chapter_runs,
    run_chapter_job,
    run_queue,
)
from benchmarks.book.next_looks import NextLook, find_next_look
from benchmarks.book.render import (
    IMAGES,
    RESULTS,
    TEXTS,
    format_book,
    read_verdicts,
    replace_headlines,
)
from benchmarks.book.results import write_chapter_result
from benchmarks.book.summarize import (
    draw_chapter_picture,
    measure_directly,
    select_picture_jobs,
    summarize_runs,
)

ROOT = Path(__file__).resolve().parents[2]
ALL = "all"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    arguments = _parse_arguments(argv)
    quick = arguments.quick
    default = Path("outputs") / ("book-quick" if quick else "book")
    folder = (arguments.folder or default).absolute()
    docs = folder / "docs" if quick else ROOT / "docs"
    if quick:
        shutil.copytree(ROOT / "docs" / TEXTS, docs / TEXTS, dirs_exist_ok=True)
    everything = quick or ALL in arguments.run
    selected = [chapter for chapter in CHAPTERS if everything or chapter.name in arguments.run]
    chapters: list[Chapter] = [chapter.make_quick() if quick else chapter for chapter in selected]
    if arguments.list:
        for look in _find_next_looks(CHAPTERS, docs, arguments.seeds):
            print(look)
        return 0
    try:
        if arguments.picture:
            _draw_picture(arguments.picture, docs, folder)
        num_left = _measure_chapters(chapters, docs, folder, arguments)
    except FedQuorumError as error:
        print(f"benchmarks.book: {error}", file=sys.stderr)
        return 1
    path = docs / "results.md"
    path.write_text(format_book(docs, quick=quick), encoding="utf-8")
    if not quick:
        readme = ROOT / "README.md"
        readme.write_text(replace_headlines(readme.read_text("utf-8"), docs), encoding="utf-8")
        write_claim_charts(read_verdicts(docs), docs / IMAGES)
    print(path if not num_left else f"{path}: {num_left} runs are left; run this command again")
    return 0


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [chapter.name for chapter in CHAPTERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.book", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--run", nargs="+", choices=[*names, ALL], default=[], metavar="NAME")
    parser.add_argument("--picture", choices=[c.name for c in CHAPTERS if _has_picture(c)])
    parser.add_argument("--seeds", type=int, default=0, help="measure at least as many seeds")
    parser.add_argument("--list", action="store_true", help="print what --run all would measure")
    parser.add_argument(
        "--quick", action="store_true", help="two rounds and one seed of each chapter"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--minutes", type=float, help="start no run after this many minutes")
    parser.add_argument("--commit", action="store_true", help="commit every logged run")
    parser.add_argument("--folder", type=Path, help="folder of the runs (default: outputs/book)")
    arguments = parser.parse_args(argv)
    if arguments.quick and arguments.run:
        parser.error("--quick measures all chapters, so it cannot be combined with --run")
    return arguments


def _measure_chapters(
    chapters: Sequence[Chapter], docs: Path, folder: Path, arguments: argparse.Namespace
) -> int:
    """Measure chapters look by look; return the number of runs that are left of the last look."""
    results = docs / RESULTS
    minutes = arguments.minutes
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    for chapter in chapters:
        if isinstance(chapter, DirectChapter):
            write_chapter_result(measure_directly(chapter), results / f"{chapter.name}.json")
        else:
            _write_chapter(chapter, docs, folder)
    while looks := list(_find_next_looks(chapters, docs, arguments.seeds)):
        look = min(looks, key=lambda look: look.seconds)
        print(look, flush=True)
        num_left = run_queue(
            look.jobs,
            results,
            folder,
            at_a_time=arguments.jobs,
            deadline=deadline,
            commits=arguments.commit,
        )
        if num_left:
            return num_left
        _write_chapter(look.chapter, docs, folder)
    return 0


def _find_next_looks(chapters: Sequence[Chapter], docs: Path, min_seeds: int) -> Iterator[NextLook]:
    """Yield the next look of each chapter that needs more runs."""
    undecided = {verdict.claim.chapter for verdict in read_verdicts(docs) if verdict.is_undecided}
    for chapter in chapters:
        if isinstance(chapter, SweepChapter):
            look = find_next_look(
                chapter,
                docs / RESULTS,
                is_undecided=chapter.name in undecided,
                min_seeds=min_seeds,
            )
            if look:
                yield look


def _write_chapter(chapter: SweepChapter, docs: Path, folder: Path) -> None:
    """Write a chapter's numbers, those of its last look whose runs are all logged, and picture."""
    look = find_complete_look(chapter, docs / RESULTS)
    if look is None:
        return
    result = summarize_runs(look, read_chapter_runs(look, docs / RESULTS))
    write_chapter_result(result, docs / RESULTS / f"{chapter.name}.json")
    _write_picture(chapter, docs, folder)


def _draw_picture(name: str, docs: Path, folder: Path) -> None:
    """Make the missing runs of a chapter's picture, and draw it."""
    chapter = next(c for c in CHAPTERS if isinstance(c, SweepChapter) and c.name == name)
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
    return isinstance(chapter, SweepChapter) and chapter.picture is not None


if __name__ == "__main__":
    sys.exit(main())
