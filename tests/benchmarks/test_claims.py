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
    Claim,
    Place,
    claim_table,
    headline_table,
    judged,
    lacking_list,
)
from benchmarks.book.declared import CLAIMS
from benchmarks.book.measured import Cell, Measurement, Number, Table, read_measurement
from benchmarks.book.writing import anchor, with_headlines

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PLACE = Place("differences", "ours( .*)? - theirs", "end.*")
CLAIM = Claim("A, Figure 1", "Ours is above theirs.", "curves", "chapter", PLACE)


def measured(*rows: tuple[Cell, ...]) -> Measurement:
    """Return a chapter with one table of differences."""
    table = Table(("difference", "half (5)", "end (10)"), rows)
    return Measurement("d", "c", "seeds 1, 2, 3", "10 rounds", None, "", {"differences": table})


@pytest.mark.parametrize(
    ("cell", "sign", "words"),
    [
        # The one-sided 5 % point of t with 3 degrees of freedom is 2.353, of a mean of 4 half that.
        (Number(1.18, 1.0, 4, 4), 1, REPRODUCED),
        (Number(1.17, 1.0, 4, 4), 1, f"{NOT_REPRODUCED}, within the noise of 4 seeds"),
        (Number(-1.18, 1.0, 0, 4), 1, f"{NOT_REPRODUCED}, the opposite"),
        (Number(-1.18, 1.0, 0, 4), -1, REPRODUCED),
        (Number(0.0, 0.0, 0, 4), 1, f"{NOT_REPRODUCED}, no difference in any of 4 seeds"),
        (Number(9.0, None, 1, 1), 1, ONE_SEED),
        (None, 1, NOT_MEASURED),
    ],
)
def test_a_verdict_is_of_the_spread_over_seeds(cell: Cell, sign: int, words: str) -> None:
    """By Student's t, on the side that the claim names; with one seed there is none."""
    claim = replace(CLAIM, sign=sign)
    verdict = judged(claim, measured(("ours (x=1) - theirs", None, cell)))
    assert verdict.words() == words


def test_a_claim_needs_seeds_that_pair() -> None:
    """A cell that is no difference seed by seed, or that is not there, decides nothing."""
    assert (
        judged(CLAIM, measured(("ours - theirs", None, Number(5.0, 0.1)))).words() == NOT_MEASURED
    )
    assert judged(CLAIM, measured(("others", None, Number(5.0, 0.1, 3, 3)))).words() == NOT_MEASURED
    elsewhere = replace(CLAIM, place=Place("elsewhere", ".*", ".*"))
    assert judged(elsewhere, measured(("ours", None, None))).words() == NOT_MEASURED
    assert judged(CLAIM, None).words() == NOT_MEASURED


def test_the_tables_say_all_there_is() -> None:
    """The measured number, what was measured instead, the link, and why something is missing."""
    done = judged(
        replace(CLAIM, here="other data", headline=True),
        measured(("ours - theirs", None, Number(2.0, 0.5, 3, 3))),
    )
    missing = judged(Claim("B", "Nothing.", "-", lacking="No data."), None)
    table = claim_table([done, missing], {"chapter": "its-title"}).splitlines()
    assert table[2] == (
        "| A, Figure 1 | Ours is above theirs. | curves | 2.00 ± 0.50 (3/3); other data | 3, 10 | "
        f"{REPRODUCED} | [chapter](#its-title) |"
    )
    assert table[3] == f"| B | Nothing. | - | - | - | {NOT_MEASURED} | - |"
    assert lacking_list([done, missing]) == "- B: Nothing. *No data.*"
    short = headline_table([done, missing], "book.md")
    assert "| B |" not in short
    assert "Of 2 claims 1 are measured, and 1 of these reproduced" in short


def test_the_seeds_counted_are_those_that_agree() -> None:
    """A fall in all seeds is a claim in all seeds, though no difference is above 0."""
    fall = judged(replace(CLAIM, sign=-1), measured(("ours - theirs", None, Number(-2.0, 1, 1, 4))))
    assert " -2.00 ± 1.00 (3/4) " in claim_table([fall], {"chapter": ""})
    same = judged(
        replace(CLAIM, sign=-1), measured(("ours - theirs", None, Number(0.0, 0.0, 0, 4)))
    )
    assert " 0.00 ± 0.00 (0/4) " in claim_table([same], {"chapter": ""})


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (Number(-0.0026, 0.0083, 1, 3), "-0.0026 ± 0.0083 (1/3)"),
        (Number(0.001, 1.3652, 1, 3), "0.00 ± 1.37 (1/3)"),
        (Number(0.0, 0.0, 0, 3), "0.00 ± 0.00 (0/3)"),
    ],
)
def test_as_many_digits_as_a_difference_and_its_spread_need(number: Number, told: str) -> None:
    verdict = judged(CLAIM, measured(("ours - theirs", None, number)))
    assert f" {told} " in claim_table([verdict], {"chapter": ""})


def test_a_claim_says_where_or_why_not() -> None:
    """Without a place in the book, and without a reason, it could never be judged."""
    with pytest.raises(ValueError, match="needs a chapter and a place"):
        Claim("A", "B.", "-")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.claim}")
def test_every_claim_finds_its_cell_or_says_why_not(claim: Claim) -> None:
    """A chapter's new row names would silently make a measured claim an unmeasured one."""
    path = DOCS / "results" / f"{claim.chapter}.json"
    found = read_measurement(path) if claim.chapter and path.exists() else None
    assert judged(claim, found).difference is not None or claim.lacking
    assert claim.chapter in {"", *(chapter.name for chapter in CHAPTERS)}
    assert claim.claim.endswith(".")


def test_every_claim_is_declared_once() -> None:
    """Paper and words tell them apart."""
    names = [(claim.paper, claim.claim) for claim in CLAIMS]
    assert len(set(names)) == len(names)


def test_the_readme_has_the_books_claims() -> None:
    """Its table is written by the same command, not by hand."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == with_headlines(readme, DOCS)
    with pytest.raises(ValueError, match="must have <!-- claims -->"):
        with_headlines("no table", DOCS)


def test_links_lead_to_the_chapters() -> None:
    """As GitHub makes anchors of headings."""
    assert anchor("FedAU on Fashion-MNIST (paper: Table 2 has other data)") == (
        "fedau-on-fashion-mnist-paper-table-2-has-other-data"
    )
