"""Writing the book from the texts, the data of what was measured, and the papers' numbers."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from benchmarks.book.chapters import CHAPTERS, Chapter, Sweeps
from benchmarks.book.claims import (
    Verdict,
    claim_table,
    headline_table,
    judged,
    lacking_list,
)
from benchmarks.book.declared import CLAIMS
from benchmarks.book.measured import Measurement, in_spans, read_measurement
from benchmarks.book.measuring import PICTURED

TEXTS, RESULTS, IMAGES = "book", "results", "images"
FIRST = "introduction"
# Where the tables go. What follows was written for the numbers of this day and commit.
TABLES = re.compile(r"<!-- tables(?: of (\S+), (.+))? -->\n*")
HEADLINES = re.compile(r"(<!-- claims -->\n).*(<!-- end of claims -->)", re.DOTALL)
CLAIMS_TEXT = "claims"
CLAIMED = "The papers' claims"


def write_book(docs: Path, *, quick: bool) -> str:
    """Return the book as Markdown.

    Parameters
    ----------
    docs : Path
        The folder with ``book/NAME.md``, ``results/NAME.json`` and ``images/NAME.png``.
    quick : bool
        Whether the numbers are those of the quick book: then what the texts conclude from the full
        one is left out, and the commands are the quick ones.
    """
    first = (docs / TEXTS / f"{FIRST}.md").read_text(encoding="utf-8").strip()
    if quick:
        first = "# The quick book\n\nTwo rounds and one seed of everything: no result, a check."
    chapters = [chapter.quickly() for chapter in CHAPTERS] if quick else CHAPTERS
    parts = (_chapter(chapter, docs, quick=quick) for chapter in chapters)
    claims = () if quick else (_claims(docs),)
    return "\n\n".join([first, *claims, *("\n\n".join(part) for part in parts)]) + "\n"


def with_headlines(readme: str, docs: Path) -> str:
    """Return the README with its table of claims written anew from the book's numbers.

    Raises
    ------
    ValueError
        If the README lacks one of the two comments between which the table stands.
    """
    table = headline_table(_verdicts(docs), "docs/results.md#the-papers-claims")
    written, count = HEADLINES.subn(lambda found: f"{found[1]}\n{table}\n{found[2]}", readme)
    if count != 1:
        raise ValueError("README.md must have <!-- claims --> and <!-- end of claims --> once")
    return written


def _verdicts(docs: Path) -> list[Verdict]:
    known = {path.stem: path for path in (docs / RESULTS).glob("*.json")}
    found = {name: read_measurement(path) for name, path in known.items()}
    return [judged(claim, found.get(claim.chapter)) for claim in CLAIMS]


def _claims(docs: Path) -> str:
    """Return the first section: all claims, and which of them are not measured."""
    verdicts = _verdicts(docs)
    links = {chapter.name: anchor(chapter.title) for chapter in CHAPTERS}
    return "\n\n".join(
        (
            f"## {CLAIMED}",
            (docs / TEXTS / f"{CLAIMS_TEXT}.md").read_text(encoding="utf-8").strip(),
            claim_table(verdicts, links),
            "### Not measured",
            lacking_list(verdicts),
        )
    )


def anchor(heading: str) -> str:
    """Return GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _chapter(chapter: Chapter, docs: Path, *, quick: bool) -> Iterator[str]:
    text = (docs / TEXTS / f"{chapter.name}.md").read_text(encoding="utf-8")
    before, date, commit, after = TABLES.split(text, maxsplit=1)
    yield f"## {chapter.title}"
    yield before.strip()
    yield f"```bash\n{_commands(chapter, quick=quick)}\n```"
    path = docs / RESULTS / f"{chapter.name}.json"
    if not path.exists():
        yield "*Not measured yet.*"
        return
    measured = read_measurement(path)
    yield measured.origin()
    yield from _tables(chapter, measured)
    if (docs / IMAGES / f"{chapter.name}.png").exists():
        seeds = ", ".join(map(str, PICTURED))
        yield f"![{chapter.title}: over rounds]({IMAGES}/{chapter.name}.png)\n\n*Seeds {seeds}.*"
    if not quick and after.strip():
        if (date, commit) != (measured.date, measured.commit):
            yield f"*What follows was written for the numbers of {date}, {commit}.*"
        yield after.strip()


def _commands(chapter: Chapter, *, quick: bool) -> str:
    sweeps = chapter.sweeps if isinstance(chapter, Sweeps) else ()
    lines = [shlex.join(["fedquorum", "-m", *map(_short, words)]) for words in sweeps]
    again = "--quick" if quick else f"--run {chapter.name}"
    return "\n".join([*lines, f"python -m benchmarks.book {again}"])


def _short(word: str) -> str:
    """Return a sweep's word, with many seeds as Hydra's range, whose end is not part of it."""
    if not word.startswith("seed="):
        return word
    return in_spans(word, ",", lambda first, last: f"range({first},{last + 1})")


def _tables(chapter: Chapter, measured: Measurement) -> Iterator[str]:
    for table in measured.tables.values():
        if table.rows:
            yield table.markdown()
    if isinstance(chapter, Sweeps) and chapter.published is not None:
        for table in chapter.published(measured.tables).values():
            if any(any(cell is not None for cell in row[1:]) for row in table.rows):
                yield table.markdown()
