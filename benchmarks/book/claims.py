"""A claim of a paper, and the verdict that the book's numbers give on it.

Nothing here states a measured number: a claim names the chapter and the cell where one stands.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from benchmarks.book.results import Cell, ChapterResult, ResultTable, SeedStatistic

CONFIDENCE = 0.95
REPRODUCED = "**reproduced**"
NOT_REPRODUCED = "**not reproduced**"
NOT_MEASURED = "not measured"
ONE_SEED = "no verdict: one seed"


@dataclass(frozen=True)
class CellLocator:
    """The cell of a chapter's table that decides a claim: a difference, seed by seed.

    Parameters
    ----------
    table : str
        The table's name in the chapter's data.
    row : str
        Regular expression of the first cell of the row, matched in full.
    column : str
        Regular expression of the heading, matched in full.
    """

    table: str
    row: str
    column: str

    def find(self, tables: Mapping[str, ResultTable]) -> Cell:
        """Return the cell, None if it is not there."""
        table = tables.get(self.table)
        if table is None:
            return None
        columns = [i for i, h in enumerate(table.headings) if re.fullmatch(self.column, h)]
        rows = [row for row in table.rows if re.fullmatch(self.row, str(row[0]))]
        return rows[0][columns[0]] if rows and columns else None


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, and where the book measures it.

    Parameters
    ----------
    paper : str
        The method and the figure, table or theorem: ``FedALIGN, Figure 1``.
    claim : str
        The claim in words, with the two sides of the comparison named.
    published : str
        The paper's number, or ``curves``.
    chapter : str
        The chapter of the book that measures it; empty where none does.
    locator : Place, optional
        The deciding cell.
    sign : int
        1 where the difference is claimed to be above 0, -1 below.
    setup : str
        What was measured instead of the paper's set-up; empty where it is the paper's.
    missing_reason : str
        Why it is not measured; read only as long as the cell is missing.
    headline : bool
        Whether it is the paper's main claim, which the README shows.
    """

    paper: str
    claim: str
    published: str
    chapter: str = ""
    locator: CellLocator | None = None
    sign: int = 1
    setup: str = ""
    missing_reason: str = ""
    headline: bool = False

    def __post_init__(self) -> None:
        if not self.missing_reason and (self.locator is None or not self.chapter):
            raise ValueError(f"a claim needs a chapter and a place, or what is lacking: {self}")


@dataclass(frozen=True)
class Verdict:
    """What the book's numbers say of a claim.

    Parameters
    ----------
    claim : Claim
        The claim.
    difference : Number, optional
        The measured difference; None if there is none yet.
    seeds : int
        How many seeds it is of.
    rounds : str
        The length of its runs, in words.
    """

    claim: Claim
    difference: SeedStatistic | None = None
    seeds: int = 0
    rounds: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether there are at least two seeds to judge by."""
        return self.difference is not None and self.seeds > 1

    def format_verdict(self) -> str:
        """Return the verdict in words.

        Reproduced is a difference in the claimed direction, further from 0 than the one-sided 5 %
        point of Student's t for its seeds.
        """
        difference = self.difference
        if difference is None:
            return NOT_MEASURED
        if self.seeds < 2 or difference.sd is None:  # noqa: PLR2004 - a spread needs two
            return ONE_SEED
        claimed = self.claim.sign * difference.mean
        noise = stdtrit(self.seeds - 1, CONFIDENCE) * difference.sd / math.sqrt(self.seeds)
        if claimed > noise:
            return REPRODUCED
        if claimed < -noise:
            return f"{NOT_REPRODUCED}, the opposite"
        reason = "within the noise of" if difference.sd else "no difference in any of"
        return f"{NOT_REPRODUCED}, {reason} {self.seeds} seeds"


def judge_claim(claim: Claim, result: ChapterResult | None) -> Verdict:
    """Return the verdict on a claim from its chapter's numbers, None where there are none."""
    found = None if result is None or claim.locator is None else claim.locator.find(result.tables)
    if result is None or not isinstance(found, SeedStatistic) or found.seeds is None:
        return Verdict(claim)
    return Verdict(claim, found, found.seeds, result.rounds.removesuffix(" rounds"))


def format_claim_table(verdicts: list[Verdict], links: Mapping[str, str]) -> str:
    """Return the whole table in Markdown; ``links`` has the anchor of every chapter."""
    rows = tuple(
        (
            v.claim.paper,
            v.claim.claim,
            v.claim.published,
            _format_difference(v),
            f"{v.seeds}, {v.rounds or '-'}" if v.difference else "-",
            v.format_verdict(),
            _format_link(v.claim.chapter, links),
        )
        for v in verdicts
    )
    headings = ("paper", "claim", "published", "measured", "seeds, rounds", "verdict", "chapter")
    return ResultTable(headings, rows).to_markdown()


def format_headline_table(verdicts: list[Verdict], book: str) -> str:
    """Return the main claim of each paper in Markdown, and how many of all its claims reproduced.

    Below is a link to the book.
    """
    rows = tuple(
        (
            *(v.claim.paper, v.claim.claim, v.claim.published, _format_difference(v)),
            v.format_verdict(),
            "{} of {}".format(*_count_reproduced(_select_paper(v.claim, verdicts))),
        )
        for v in verdicts
        if v.claim.headline
    )
    headings = ("paper", "main claim", "published", "measured", "verdict", "all claims reproduced")
    table = ResultTable(headings, rows).to_markdown()
    good, measured = _count_reproduced(verdicts)
    counts = (
        f"Of {len(verdicts)} claims {measured} are measured, and {good} of these "
        f"reproduced; [all of them, with seeds, rounds and chapters]({book})."
    )
    return f"{table}\n\n{counts}"


def _select_paper(claim: Claim, verdicts: list[Verdict]) -> list[Verdict]:
    """Return the verdicts on all claims of a claim's paper."""
    method = claim.paper.partition(",")[0]
    return [v for v in verdicts if v.claim.paper.partition(",")[0] == method]


def _count_reproduced(verdicts: list[Verdict]) -> tuple[int, int]:
    """Return how many claims reproduced, and how many are measured."""
    measured = [v for v in verdicts if v.is_measured]
    return sum(v.format_verdict() == REPRODUCED for v in measured), len(measured)


def format_missing_list(verdicts: list[Verdict]) -> str:
    """Return the claims that are not measured, each with the reason, as a Markdown list."""
    return "\n".join(_list_missing(verdicts))


def _list_missing(verdicts: list[Verdict]) -> Iterator[str]:
    for v in (one for one in verdicts if not one.is_measured):
        why = v.claim.missing_reason if v.difference is None else "There is one seed only."
        yield f"- {v.claim.paper}: {v.claim.claim} *{why}*"


def _format_difference(verdict: Verdict) -> str:
    """Return the difference, with the seeds in which it has the claimed sign."""
    number = verdict.difference
    if number is None:
        return "-"
    if verdict.claim.sign < 0 and number.above is not None and number.seeds is not None:
        same = number.mean == 0 and not number.sd
        number = replace(number, above=0 if same else number.seeds - number.above)
    size = max(abs(number.mean), number.sd or 0)
    digits = 4 if 0 < size < 0.01 else 2  # noqa: PLR2004
    where = f"; {verdict.claim.setup}" if verdict.claim.setup else ""
    return f"{number.format(digits)}{where}"


def _format_link(chapter: str, links: Mapping[str, str]) -> str:
    return f"[{chapter}](#{links[chapter]})" if chapter else "-"
