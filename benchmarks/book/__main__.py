"""Writes docs/results.md, and measures what is in it.

    python -m benchmarks.book                      writes the book from docs/results/*.json
    python -m benchmarks.book --run NAME [NAME]    measures these chapters first (or: all)
    python -m benchmarks.book --quick              measures all, small, into a book of its own

Runs are kept in FOLDER/NAME, so that the same command goes on where it was interrupted.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fedquorum.errors import FedQuorumError

from benchmarks.book.chapters import CHAPTERS
from benchmarks.book.measured import write_measurement
from benchmarks.book.measuring import measure
from benchmarks.book.writing import IMAGES, RESULTS, TEXTS, write_book

ROOT = Path(__file__).resolve().parents[2]
ALL = "all"


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says and return the exit status."""
    names = [chapter.name for chapter in CHAPTERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.book", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--run", nargs="+", choices=[*names, ALL], default=[], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="two rounds and one seed of each")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--folder", type=Path, help="of the runs (default: outputs/book)")
    arguments = parser.parse_args(words)
    if arguments.quick and arguments.run:
        parser.error("expected --quick, which measures all, or --run, not both")
    default = Path("outputs") / ("book-quick" if arguments.quick else "book")
    folder = (arguments.folder or default).absolute()
    docs = folder / "docs" if arguments.quick else ROOT / "docs"
    if arguments.quick:
        shutil.copytree(ROOT / "docs" / TEXTS, docs / TEXTS, dirs_exist_ok=True)
    wanted = names if arguments.quick or ALL in arguments.run else arguments.run
    try:
        for chapter in (one for one in CHAPTERS if one.name in wanted):
            print(f"{chapter.name}:", flush=True)
            measured_chapter = chapter.quickly() if arguments.quick else chapter
            measured, picture = measure(measured_chapter, folder / chapter.name, arguments.jobs)
            write_measurement(measured, docs / RESULTS / f"{chapter.name}.json")
            if picture is not None:
                (docs / IMAGES).mkdir(exist_ok=True)
                (docs / IMAGES / f"{chapter.name}.png").write_bytes(picture)
    except FedQuorumError as error:
        print(f"benchmarks.book: {error}", file=sys.stderr)
        return 1
    path = docs / "results.md"
    path.write_text(write_book(docs, quick=arguments.quick), encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
