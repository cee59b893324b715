"""Write the book from its texts, the measured results and the papers' numbers."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from benchmarks.book.chapters import CHAPTERS, Chapter, SweepChapter
from benchmarks.book.claims import (
    Verdict,
    format_claim_table,
    format_missing_list,
    format_undecided_list,
    judge_claims,
)
from benchmarks.book.claims_data import CLAIMS
from benchmarks.book.practice import (
    format_effect_table,
    format_practice_table,
    list_failed_claims,
)
from benchmarks.book.results import ChapterResult, collapse_ranges, read_chapter_result
from benchmarks.book.summarize import PICTURE_SEEDS

TEXTS, RESULTS, IMAGES = "book", "results", "images"
INTRODUCTION = "introduction"
# Marks where the tables go. The text below it was written for the results of this day and commit.
TABLES_COMMENT = re.compile(r"<!-- tables(?: of (\S+), (.+))? -->\n*")
HEADLINES_COMMENT = re.compile(r"(<!-- claims -->\n).*(<!-- end of claims -->)", re.DOTALL)
CLAIMS_TEXT = "claims"
UNDECIDED_TEXT = "undecided"
PRACTICE_TEXT = "practice"
PRACTICE_HEADING = "What to try"
CLAIMS_HEADING = "The papers' claims"
CLAIMS_ALT = "Each measured claim: difference with its 90 % interval, published number, verdict"


def format_book(docs: Path, *, quick: bool) -> str:
    """Return the book as Markdown.

    Parameters
    ----------
    docs : Path
        The folder with ``book/NAME.md``, ``results/NAME.json`` and ``images/NAME.png``.
    quick : bool
        Whether the numbers are those of the quick book. It omits the conclusions, which hold for
        the full book, and prints the quick commands.
    """
    introduction = (docs / TEXTS / f"{INTRODUCTION}.md").read_text(encoding="utf-8").strip()
    if quick:
        introduction = (
            "# The quick book\n\nTwo rounds and one seed of everything: no result, a check."
        )
    chapters = [chapter.make_quick() for chapter in CHAPTERS] if quick else CHAPTERS
    parts = (_format_chapter(chapter, docs, quick=quick) for chapter in chapters)
    claims = () if quick else (_format_practice(docs), _format_claims(docs))
    return "\n\n".join([introduction, *claims, *("\n\n".join(part) for part in parts)]) + "\n"


def replace_headlines(readme: str, docs: Path) -> str:
    """Return the README with its table of claims rewritten from the book's numbers.

    Raises
    ------
    ValueError
        If the README lacks one of the two comments around the table.
    """
    book = f"docs/results.md#{format_anchor(PRACTICE_HEADING)}"
    table = format_practice_table(_read_results(docs), read_verdicts(docs), book)
    written, count = HEADLINES_COMMENT.subn(
        lambda match: f"{match[1]}\n{table}\n{match[2]}", readme
    )
    if count != 1:
        raise ValueError("README.md must have <!-- claims --> and <!-- end of claims --> once")
    return written


def read_verdicts(docs: Path) -> tuple[Verdict, ...]:
    """Return the verdicts on all claims, from the chapters' results."""
    looks = {c.name: c.looks for c in CHAPTERS if isinstance(c, SweepChapter)}
    return judge_claims(CLAIMS, _read_results(docs), looks)


def _read_results(docs: Path) -> dict[str, ChapterResult]:
    return {path.stem: read_chapter_result(path) for path in (docs / RESULTS).glob("*.json")}


def _format_practice(docs: Path) -> str:
    """Return the first section: when each method helps, and which claims did not hold up."""
    links = {chapter.name: format_anchor(chapter.title) for chapter in CHAPTERS}
    return "\n\n".join(
        (
            f"## {PRACTICE_HEADING}",
            (docs / TEXTS / f"{PRACTICE_TEXT}.md").read_text(encoding="utf-8").strip(),
            format_effect_table(_read_results(docs), links),
            "Claims that did not hold up:",
            "\n".join(list_failed_claims(read_verdicts(docs))),
        )
    )


def _format_claims(docs: Path) -> str:
    """Return the section of all claims, and a list of those without a measurement."""
    verdicts = read_verdicts(docs)
    links = {chapter.name: format_anchor(chapter.title) for chapter in CHAPTERS}
    return "\n\n".join(
        (
            f"## {CLAIMS_HEADING}",
            (docs / TEXTS / f"{CLAIMS_TEXT}.md").read_text(encoding="utf-8").strip(),
            f"![{CLAIMS_ALT}]({IMAGES}/claims.png)",
            format_claim_table(verdicts, links),
            "### Undecided",
            (docs / TEXTS / f"{UNDECIDED_TEXT}.md").read_text(encoding="utf-8").strip(),
            format_undecided_list(verdicts, _read_results(docs), links),
            "### Not measured",
            format_missing_list(verdicts),
        )
    )


def format_anchor(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _format_chapter(chapter: Chapter, docs: Path, *, quick: bool) -> Iterator[str]:
    text = (docs / TEXTS / f"{chapter.name}.md").read_text(encoding="utf-8")
    before, date, commit, after = TABLES_COMMENT.split(text, maxsplit=1)
    yield f"## {chapter.title}"
    yield before.strip()
    path = docs / RESULTS / f"{chapter.name}.json"
    result = read_chapter_result(path) if path.exists() else None
    if result and isinstance(chapter, SweepChapter):
        chapter = chapter.with_seeds(result.num_seeds)
    yield f"```bash\n{_format_commands(chapter, quick=quick)}\n```"
    if result is None:
        yield "*Not measured yet.*"
        return
    yield result.describe_origin()
    yield from _format_tables(chapter, result)
    if (docs / IMAGES / f"{chapter.name}.png").exists():
        seeds = ", ".join(map(str, PICTURE_SEEDS))
        yield f"![{chapter.title}]({IMAGES}/{chapter.name}.png)\n\n*Seeds {seeds}.*"
    if not quick and after.strip():
        if (date, commit) != (result.date, result.commit):
            yield f"*What follows was written for the numbers of {date}, {commit}.*"
        yield after.strip()


def _format_commands(chapter: Chapter, *, quick: bool) -> str:
    sweeps = chapter.sweeps if isinstance(chapter, SweepChapter) else ()
    lines = [
        shlex.join(["fedquorum", "-m", *map(_shorten_seeds, overrides)]) for overrides in sweeps
    ]
    option = "--quick" if quick else f"--run {chapter.name}"
    return "\n".join([*lines, f"python -m benchmarks.book {option}"])


def _shorten_seeds(override: str) -> str:
    """Write four or more consecutive seeds as Hydra's range, whose end is exclusive."""
    if not override.startswith("seed="):
        return override
    return collapse_ranges(override, ",", lambda first, last: f"range({first},{last + 1})")


def _format_tables(chapter: Chapter, result: ChapterResult) -> Iterator[str]:
    for table in result.tables.values():
        if table.rows:
            yield table.to_markdown()
    if isinstance(chapter, SweepChapter) and chapter.published is not None:
        for table in chapter.published(result.tables).values():
            if any(any(cell is not None for cell in row[1:]) for row in table.rows):
                yield table.to_markdown()
