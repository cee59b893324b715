"""Tests of what the book says to practitioners: effects, the line of each paper, failed claims."""

from pathlib import Path

import pytest

from benchmarks.book.chapters import CHAPTERS
from benchmarks.book.claims import CellLocator, Claim, judge_claims
from benchmarks.book.claims_data import CLAIMS
from benchmarks.book.practice import (
    PRACTICES,
    Effect,
    format_effect_table,
    format_practice_table,
    list_failed_claims,
)
from benchmarks.book.render import format_anchor
from benchmarks.book.results import (
    ChapterResult,
    ResultTable,
    SeedStatistic,
    read_chapter_result,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = {path.stem: read_chapter_result(path) for path in (DOCS / "results").glob("*.json")}
LOCATOR = CellLocator("differences", "ours - theirs", "end")


def make_result(statistic: SeedStatistic) -> ChapterResult:
    """Return a chapter with one difference."""
    table = ResultTable(("difference", "end"), (("ours - theirs", statistic),))
    tables = {"differences": table}
    return ChapterResult("2026-11-28", "abc", "seeds 1 to 5", "10 rounds", None, "", tables)


@pytest.mark.parametrize(
    "effect",
    [effect for practice in PRACTICES for effect in practice.effects],
    ids=lambda effect: f"{effect.chapter}: {effect.compared}",
)
def test_every_effect_is_measured(effect: Effect) -> None:
    """Renamed rows of a chapter would silently lose an effect."""
    found = effect.find(RESULTS)
    assert found.seeds is not None
    assert found.seeds >= 3
    assert effect.chapter in {chapter.name for chapter in CHAPTERS}


def test_an_effect_without_number_is_an_error() -> None:
    """One seed is no number: it has no interval."""
    effect = Effect("data", "ours against theirs", "chapter", LOCATOR)
    with pytest.raises(KeyError, match="chapter has no number for data"):
        effect.find({"chapter": make_result(SeedStatistic(1.0))})


def test_intervals_are_those_of_a_t_test() -> None:
    """Of 10 seeds with mean 0.54 and deviation 0.72: 0.54 +- 1.833 x 0.72 / sqrt(10)."""
    links = {chapter.name: format_anchor(chapter.title) for chapter in CHAPTERS}
    rows = format_effect_table(RESULTS, links).splitlines()[2:]
    assert len(rows) == sum(len(practice.effects) for practice in PRACTICES)
    (row,) = (
        one
        for one in rows
        if "Fashion-MNIST, all clients | FedALIGN against the priority clients alone" in one
    )
    cell = RESULTS["fedalign-fmnist"].tables["differences"]
    statistic = next(r for r in cell.rows if r[0] == "fedalign - priority only")[-1]
    assert isinstance(statistic, SeedStatistic)
    assert statistic.sd is not None
    half = 1.833113 * statistic.sd / 10**0.5
    low, high = statistic.mean - half, statistic.mean + half
    assert f"| {statistic.mean:+.1f} ({low:+.1f} to {high:+.1f}), 10 seeds |" in row


def test_there_is_a_line_for_each_paper() -> None:
    """The claims of each paper are counted in its line alone."""
    verdicts = judge_claims(CLAIMS, RESULTS)
    table, end = format_practice_table(RESULTS, verdicts, "book.md").split("\n\n")
    lines = table.splitlines()[2:]
    papers = {claim.paper.partition(",")[0] for claim in CLAIMS}
    assert {line.split(" | ")[0].removeprefix("| ") for line in lines} == papers
    counts = [
        [int(n) for n in line.removesuffix(" |").split(" | ")[-1].split(" / ")] for line in lines
    ]
    assert sum(map(sum, counts)) == sum(v.is_measured for v in verdicts)
    assert end.startswith(f"Of {len(CLAIMS)} claims {sum(map(sum, counts))} are measured: ")


def test_failed_claims_are_contradicted_or_far_smaller() -> None:
    """A claim that holds, or that is open, is no failed one."""
    claims = [
        Claim("A, 1", "Ours is above.", "curves", "up", LOCATOR),
        Claim("B, 1", "Ours is above theirs.", "curves", "down", LOCATOR),
        Claim("C, 1", "Ours is 9 above.", "9", "up", LOCATOR, published_difference=9.0),
    ]
    results = {
        "up": make_result(SeedStatistic(1.0, 0.1, 5, 5)),
        "down": make_result(SeedStatistic(-1.0, 0.1, 0, 5)),
    }
    assert list(list_failed_claims(judge_claims(claims, results))) == [
        "- B, 1: Ours is above theirs. **contradicted**, the opposite",
        "- C, 1: Ours is 9 above. **reproduced**, far smaller than published",
    ]
