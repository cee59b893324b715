"""Tests of the claims: cells, verdicts and tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.book.chapters import CHAPTERS
from benchmarks.book.claims import (
    NOT_MEASURED,
    ONE_SEED,
    CellLocator,
    Claim,
    Verdict,
    format_claim_table,
    format_missing_list,
    format_undecided_list,
    judge_claims,
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
LOCATOR = CellLocator("differences", "ours( .*)? - theirs", "end.*")
CLAIM = Claim("A, Figure 1", "Ours is above theirs.", "curves", "chapter", LOCATOR)
COMMAND = "python -m benchmarks.book --run chapter"
ONE_SEED_CELL = SeedStatistic(9.0, None, 1, 1)
REPRODUCED, CONTRADICTED, UNDECIDED = "**reproduced**", "**contradicted**", "**undecided**"


def judge_claim(claim: Claim, result: ChapterResult | None) -> Verdict:
    """Return the verdict on the only claim of its figure."""
    (verdict,) = judge_claims([claim], {} if result is None else {claim.chapter: result})
    return verdict


def make_chapter_result(*rows: tuple[Cell, ...]) -> ChapterResult:
    """Return a chapter with one table of differences."""
    table = ResultTable(("difference", "half (5)", "end (10)"), rows)
    return ChapterResult("d", "c", "seeds 1, 2, 3", "10 rounds", None, "", {"differences": table})


@pytest.mark.parametrize(
    ("cell", "sign", "expected"),
    [
        # The one-sided 4 % point of t with 3 degrees of freedom is 2.605, and half that for a mean
        # of 4 seeds.
        (SeedStatistic(1.31, 1.0, 4, 4), 1, REPRODUCED),
        (SeedStatistic(1.30, 1.0, 4, 4), 1, f"{UNDECIDED}, about 5 seeds would decide"),
        (SeedStatistic(0.01, 1.0, 4, 4), 1, f"{UNDECIDED}, more than 100 seeds would decide"),
        (SeedStatistic(-1.31, 1.0, 0, 4), 1, f"{CONTRADICTED}, the opposite"),
        (SeedStatistic(-1.31, 1.0, 0, 4), -1, REPRODUCED),
        (SeedStatistic(0.0, 0.0, 0, 4), 1, f"{UNDECIDED}, no difference in any of 4 seeds"),
        (ONE_SEED_CELL, 1, ONE_SEED),
        (None, 1, NOT_MEASURED),
    ],
)
def test_a_verdict_follows_from_the_spread(cell: Cell, sign: int, expected: str) -> None:
    """Student's t decides on the claimed side of 0; one seed gives no verdict."""
    claim = replace(CLAIM, sign=sign)
    verdict = judge_claim(claim, make_chapter_result(("ours (x=1) - theirs", None, cell)))
    assert verdict.format_verdict() == expected


@pytest.mark.parametrize("sign", [1, -1])
def test_the_published_size_counts_in_the_same_setup_alone(sign: int) -> None:
    """A difference on other data may be smaller without contradicting the paper."""
    claim = replace(CLAIM, sign=sign, published_difference=sign * 6.0)
    result = make_chapter_result(("ours - theirs", None, SeedStatistic(sign * 0.1, 1.0, 9, 9)))
    verdict = judge_claim(claim, result).format_verdict()
    assert verdict == f"{CONTRADICTED}, far smaller than published"
    elsewhere = judge_claim(replace(claim, setup="other data"), result).format_verdict()
    assert elsewhere.startswith(UNDECIDED)


def test_the_claims_of_one_figure_are_judged_together() -> None:
    """A claim that passes alone needs a stronger difference beside a second one."""
    cell = SeedStatistic(1.31, 1.0, 4, 4)
    row = ("ours - theirs", None, cell)
    nothing = ("others - theirs", None, SeedStatistic(0.1, 1.0, 2, 4))
    other = replace(CLAIM, claim="O.", locator=CellLocator("differences", "others.*", "end.*"))
    results = {"chapter": make_chapter_result(row, nothing)}
    together = judge_claims([CLAIM, other], results)
    assert together[0].format_verdict().startswith(UNDECIDED)
    apart = judge_claims([CLAIM, replace(other, paper="A, Figure 2")], results)
    assert apart[0].format_verdict() == REPRODUCED


def test_a_claim_needs_a_paired_difference() -> None:
    """A missing cell, or one that is not paired by seed, gives no verdict."""
    unpaired = make_chapter_result(("ours - theirs", None, SeedStatistic(5.0, 0.1)))
    other_row = make_chapter_result(("others", None, SeedStatistic(5.0, 0.1, 3, 3)))
    for result in (unpaired, other_row, None):
        assert judge_claim(CLAIM, result).format_verdict() == NOT_MEASURED
    elsewhere = replace(CLAIM, locator=CellLocator("elsewhere", ".*", ".*"))
    result = make_chapter_result(("ours", None, None))
    assert judge_claim(elsewhere, result).format_verdict() == NOT_MEASURED


def test_tables_have_numbers_setups_links_and_reasons() -> None:
    """A row has the number, the setup and the link; the list has the reason of a missing one."""
    done = judge_claim(
        replace(CLAIM, setup="other data"),
        make_chapter_result(("ours - theirs", None, SeedStatistic(2.0, 0.5, 3, 3))),
    )
    missing = judge_claim(Claim("B", "Nothing.", "-", missing_reason="No data."), None)
    table = format_claim_table([done, missing], {"chapter": "its-title"}).splitlines()
    assert table[2] == (
        "| A, Figure 1 | Ours is above theirs. | curves | 2.00 ± 0.50 (3/3); other data | 3, 10 | "
        f"{REPRODUCED} | [chapter](#its-title) |"
    )
    assert table[3] == f"| B | Nothing. | - | - | - | {NOT_MEASURED} | - |"
    one_seed = judge_claim(CLAIM, make_chapter_result(("ours - theirs", None, ONE_SEED_CELL)))
    assert format_missing_list([done, missing, one_seed]).splitlines() == [
        "- B: Nothing. *No data.*",
        f"- A, Figure 1: {CLAIM.claim} *There is one seed only:* `{COMMAND} --seeds 20`",
    ]


@pytest.mark.parametrize(
    ("looks", "seeds", "rest"),
    [
        ((3, 10, 30), "3 of 30", "; 30 seeds take 9.0 hours of one core more: `{}`."),
        ((3,), "3", "; 20 seeds take 5.7 hours of one core more: `{} --seeds 20`."),
        ((), "3", "; 20 seeds take 5.7 hours of one core more: `{} --seeds 20`."),
    ],
)
def test_an_undecided_claim_says_what_would_decide_it(
    looks: tuple[int, ...], seeds: str, rest: str
) -> None:
    """Seeds in the table, and a line for the chapter; a decided claim names no plan."""
    undecided = ("ours - theirs", None, SeedStatistic(0.1, 1.0, 2, 3))
    result = replace(make_chapter_result(undecided), seconds=3600.0)
    verdicts = judge_claims([CLAIM], {"chapter": result}, {"chapter": looks})
    assert verdicts[0].format_seeds() == seeds
    expected = "- [chapter](#title): 1 claim with 3 seeds" + rest.format(COMMAND)
    assert format_undecided_list(verdicts, {"chapter": result}, {"chapter": "title"}) == expected
    decided = make_chapter_result(("ours - theirs", None, SeedStatistic(9.0, 0.1, 3, 3)))
    (verdict,) = judge_claims([CLAIM], {"chapter": decided}, {"chapter": looks})
    assert verdict.format_seeds() == "3"
    assert format_undecided_list([verdict], {"chapter": decided}, {}) == ""


def test_an_undecided_claim_with_all_its_seeds_says_so() -> None:
    """Twenty seeds are all that the book measures, unless more are planned."""
    cell = SeedStatistic(0.1, 1.0, 11, 20)
    seeds = "seeds " + ", ".join(map(str, range(1, 21)))
    result = replace(make_chapter_result(("ours - theirs", None, cell)), seeds=seeds, seconds=1.0)
    verdicts = judge_claims([CLAIM], {"chapter": result})
    assert format_undecided_list(verdicts, {"chapter": result}, {"chapter": "title"}) == (
        "- [chapter](#title): 1 claim with 20 seeds, all that are planned."
    )


def test_counts_are_of_seeds_with_the_claimed_sign() -> None:
    """For a claimed fall, the seeds with a difference below 0 count."""
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
    ("statistic", "expected"),
    [
        (SeedStatistic(-0.0026, 0.0083, 1, 3), "-0.0026 ± 0.0083 (1/3)"),
        (SeedStatistic(0.001, 1.3652, 1, 3), "0.00 ± 1.37 (1/3)"),
        (SeedStatistic(0.0, 0.0, 0, 3), "0.00 ± 0.00 (0/3)"),
    ],
)
def test_small_differences_have_four_digits(statistic: SeedStatistic, expected: str) -> None:
    verdict = judge_claim(CLAIM, make_chapter_result(("ours - theirs", None, statistic)))
    assert f" {expected} " in format_claim_table([verdict], {"chapter": ""})


def test_a_claim_without_cell_or_reason_is_rejected() -> None:
    """Such a claim could never have a verdict."""
    with pytest.raises(ValueError, match="needs a chapter and a locator"):
        Claim("A", "B.", "-")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.paper}: {claim.claim}")
def test_every_claim_has_a_cell_or_a_reason(claim: Claim) -> None:
    """Renamed rows of a chapter would silently lose a measured claim."""
    path = DOCS / "results" / f"{claim.chapter}.json"
    result = read_chapter_result(path) if claim.chapter and path.exists() else None
    assert judge_claim(claim, result).difference is not None or claim.missing_reason
    assert claim.chapter in {"", *(chapter.name for chapter in CHAPTERS)}
    assert claim.claim.endswith(".")


def test_every_claim_is_declared_once() -> None:
    """No two claims share paper and text."""
    names = [(claim.paper, claim.claim) for claim in CLAIMS]
    assert len(set(names)) == len(names)


def test_readme_table_is_up_to_date() -> None:
    """The README's table equals the one written from the book."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == replace_headlines(readme, DOCS)
    with pytest.raises(ValueError, match="must have <!-- claims -->"):
        replace_headlines("no table", DOCS)


def test_anchors_follow_githubs_rule() -> None:
    """GitHub drops punctuation and replaces spaces by hyphens."""
    assert format_anchor("FedAU on Fashion-MNIST (paper: Table 2 has other data)") == (
        "fedau-on-fashion-mnist-paper-table-2-has-other-data"
    )
