"""The table of claims: what it reads, and what it concludes from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.book.chapters import CHAPTERS
from benchmarks.book.claims import (
    NOT_MEASURED,
    NOT_REPRODUCED,
    ONE_SEED,
    REPRODUCED,
    CellLocator,
    Claim,
    format_claim_table,
    format_headline_table,
    format_missing_list,
    judge_claim,
)
from benchmarks.book.claims_data import CLAIMS
from benchmarks.book.render import format_anchor, replace_headlines
from benchmarks.book.results import (
    Cell,
    ChapterResult,
    ResultTable,
    SeedStatistic,
    read_chapter_result,
)

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PLACE = CellLocator("differences", "ours( .*)? - theirs", "end.*")
CLAIM = Claim("A, Figure 1", "Ours is above theirs.", "curves", "chapter", PLACE)


def make_chapter_result(*rows: tuple[Cell, ...]) -> ChapterResult:
    """Return a chapter with one table of differences."""
    table = ResultTable(("difference", "half (5)", "end (10)"), rows)
    return ChapterResult("d", "c", "seeds 1, 2, 3", "10 rounds", None, "", {"differences": table})


@pytest.mark.parametrize(
    ("cell", "sign", "words"),
    [
        # The one-sided 5 % point of t with 3 degrees of freedom is 2.353, of a mean of 4 half that.
        (SeedStatistic(1.18, 1.0, 4, 4), 1, REPRODUCED),
        (SeedStatistic(1.17, 1.0, 4, 4), 1, f"{NOT_REPRODUCED}, within the noise of 4 seeds"),
        (SeedStatistic(-1.18, 1.0, 0, 4), 1, f"{NOT_REPRODUCED}, the opposite"),
        (SeedStatistic(-1.18, 1.0, 0, 4), -1, REPRODUCED),
        (SeedStatistic(0.0, 0.0, 0, 4), 1, f"{NOT_REPRODUCED}, no difference in any of 4 seeds"),
        (SeedStatistic(9.0, None, 1, 1), 1, ONE_SEED),
        (None, 1, NOT_MEASURED),
    ],
)
def test_a_verdict_is_of_the_spread_over_seeds(cell: Cell, sign: int, words: str) -> None:
    """By Student's t, on the side that the claim names; with one seed there is none."""
    claim = replace(CLAIM, sign=sign)
    verdict = judge_claim(claim, make_chapter_result(("ours (x=1) - theirs", None, cell)))
    assert verdict.format_verdict() == words


def test_a_claim_needs_seeds_that_pair() -> None:
    """A cell that is no difference seed by seed, or that is not there, decides nothing."""
    assert (
        judge_claim(
            CLAIM, make_chapter_result(("ours - theirs", None, SeedStatistic(5.0, 0.1)))
        ).format_verdict()
        == NOT_MEASURED
    )
    assert (
        judge_claim(
            CLAIM, make_chapter_result(("others", None, SeedStatistic(5.0, 0.1, 3, 3)))
        ).format_verdict()
        == NOT_MEASURED
    )
    elsewhere = replace(CLAIM, locator=CellLocator("elsewhere", ".*", ".*"))
    assert (
        judge_claim(elsewhere, make_chapter_result(("ours", None, None))).format_verdict()
        == NOT_MEASURED
    )
    assert judge_claim(CLAIM, None).format_verdict() == NOT_MEASURED


def test_the_tables_say_all_there_is() -> None:
    """The measured number, what was measured instead, the link, and why something is missing."""
    done = judge_claim(
        replace(CLAIM, setup="other data", headline=True),
        make_chapter_result(("ours - theirs", None, SeedStatistic(2.0, 0.5, 3, 3))),
    )
    missing = judge_claim(Claim("B", "Nothing.", "-", missing_reason="No data."), None)
    table = format_claim_table([done, missing], {"chapter": "its-title"}).splitlines()
    assert table[2] == (
        "| A, Figure 1 | Ours is above theirs. | curves | 2.00 ± 0.50 (3/3); other data | 3, 10 | "
        f"{REPRODUCED} | [chapter](#its-title) |"
    )
    assert table[3] == f"| B | Nothing. | - | - | - | {NOT_MEASURED} | - |"
    assert format_missing_list([done, missing]) == "- B: Nothing. *No data.*"
    short = format_headline_table([done, missing], "book.md")
    assert short.splitlines()[2].endswith(f" | {REPRODUCED} | 1 of 1 |")
    assert "| B |" not in short
    assert "Of 2 claims 1 are measured, and 1 of these reproduced" in short


def test_the_seeds_counted_are_those_that_agree() -> None:
    """A fall in all seeds is a claim in all seeds, though no difference is above 0."""
    fall = judge_claim(
        replace(CLAIM, sign=-1),
        make_chapter_result(("ours - theirs", None, SeedStatistic(-2.0, 1, 1, 4))),
    )
    assert " -2.00 ± 1.00 (3/4) " in format_claim_table([fall], {"chapter": ""})
    same = judge_claim(
        replace(CLAIM, sign=-1),
        make_chapter_result(("ours - theirs", None, SeedStatistic(0.0, 0.0, 0, 4))),
    )
    assert " 0.00 ± 0.00 (0/4) " in format_claim_table([same], {"chapter": ""})


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (SeedStatistic(-0.0026, 0.0083, 1, 3), "-0.0026 ± 0.0083 (1/3)"),
        (SeedStatistic(0.001, 1.3652, 1, 3), "0.00 ± 1.37 (1/3)"),
        (SeedStatistic(0.0, 0.0, 0, 3), "0.00 ± 0.00 (0/3)"),
    ],
)
def test_as_many_digits_as_a_difference_and_its_spread_need(
    number: SeedStatistic, told: str
) -> None:
    verdict = judge_claim(CLAIM, make_chapter_result(("ours - theirs", None, number)))
    assert f" {told} " in format_claim_table([verdict], {"chapter": ""})


def test_a_claim_says_where_or_why_not() -> None:
    """Without a place in the book, and without a reason, it could never be judged."""
    with pytest.raises(ValueError, match="needs a chapter and a place"):
        Claim("A", "B.", "-")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.claim}")
def test_every_claim_finds_its_cell_or_says_why_not(claim: Claim) -> None:
    """A chapter's new row names would silently make a measured claim an unmeasured one."""
    path = DOCS / "results" / f"{claim.chapter}.json"
    found = read_chapter_result(path) if claim.chapter and path.exists() else None
    assert judge_claim(claim, found).difference is not None or claim.missing_reason
    assert claim.chapter in {"", *(chapter.name for chapter in CHAPTERS)}
    assert claim.claim.endswith(".")


def test_every_claim_is_declared_once() -> None:
    """Paper and words tell them apart."""
    names = [(claim.paper, claim.claim) for claim in CLAIMS]
    assert len(set(names)) == len(names)


def test_the_readme_has_the_books_claims() -> None:
    """Its table is written by the same command, not by hand."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == replace_headlines(readme, DOCS)
    papers = [claim.paper.partition(",")[0] for claim in CLAIMS]
    main = [claim.paper.partition(",")[0] for claim in CLAIMS if claim.headline]
    assert sorted(main) == sorted(set(papers))
    with pytest.raises(ValueError, match="must have <!-- claims -->"):
        replace_headlines("no table", DOCS)


def test_links_lead_to_the_chapters() -> None:
    """As GitHub makes anchors of headings."""
    assert format_anchor("FedAU on Fashion-MNIST (paper: Table 2 has other data)") == (
        "fedau-on-fashion-mnist-paper-table-2-has-other-data"
    )
