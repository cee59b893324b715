"""Claims of papers, and the verdicts of the book's numbers.

This module has no measured numbers: a claim names the chapter and the cell of its number.
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
    """The cell of a chapter's table that decides a claim: a difference paired by seed.

    Parameters
    ----------
    table : str
        The table's name in the chapter's result.
    row : str
        Regular expression for the whole first cell of the row.
    column : str
        Regular expression for the whole heading.
    """

    table: str
    row: str
    column: str

    def find(self, tables: Mapping[str, ResultTable]) -> Cell:
        """Return the cell, None if it does not exist."""
        table = tables.get(self.table)
        if table is None:
            return None
        columns = [i for i, h in enumerate(table.headings) if re.fullmatch(self.column, h)]
        rows = [row for row in table.rows if re.fullmatch(self.row, str(row[0]))]
        return rows[0][columns[0]] if rows and columns else None


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, and the cell of the book that measures it.

    Parameters
    ----------
    paper : str
        The method and the figure, table or theorem: ``FedALIGN, Figure 1``.
    claim : str
        The claim in words, with the two sides of the comparison named.
    published : str
        The paper's number, or ``curves``.
    chapter : str
        The chapter of the book that measures the claim; empty if none does.
    locator : CellLocator, optional
        The deciding cell.
    sign : int
        1 if the paper claims a difference above 0, -1 below 0.
    setup : str
        The setup measured instead of the paper's; empty if it is the paper's.
    missing_reason : str
        Why there is no measurement; used only while the cell is missing.
    headline : bool
        Whether the README shows this claim as the paper's main one.
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
            raise ValueError(
                f"a claim needs a chapter and a locator, or a missing_reason, got {self}"
            )


@dataclass(frozen=True)
class Verdict:
    """The verdict of the book's numbers on a claim.

    Parameters
    ----------
    claim : Claim
    difference : SeedStatistic, optional
        The measured difference; None if there is none yet.
    seeds : int
        The number of seeds behind the difference.
    rounds : str
        The length of the runs, in words.
    """

    claim: Claim
    difference: SeedStatistic | None = None
    seeds: int = 0
    rounds: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether the difference has at least two seeds."""
        return self.difference is not None and self.seeds > 1

    def format_verdict(self) -> str:
        """Return the verdict in words.

        A claim is reproduced if the difference lies on the claimed side of 0, beyond the one-sided
        5 % point of Student's t for its seeds.
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
    """Return the verdict on a claim; ``result`` is that of its chapter, None if not measured."""
    cell = None if result is None or claim.locator is None else claim.locator.find(result.tables)
    if result is None or not isinstance(cell, SeedStatistic) or cell.seeds is None:
        return Verdict(claim)
    return Verdict(claim, cell, cell.seeds, result.rounds.removesuffix(" rounds"))


def format_claim_table(verdicts: list[Verdict], links: Mapping[str, str]) -> str:
    """Format all verdicts as Markdown; ``links`` has the anchor of every chapter."""
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
    """Format the main claim of each paper, with counts of reproduced claims, as Markdown.

    The last line links to ``book``.
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
    reproduced, measured = _count_reproduced(verdicts)
    counts = (
        f"Of {len(verdicts)} claims {measured} are measured, and {reproduced} of these "
        f"reproduced; [all of them, with seeds, rounds and chapters]({book})."
    )
    return f"{table}\n\n{counts}"


def _select_paper(claim: Claim, verdicts: list[Verdict]) -> list[Verdict]:
    """Return the verdicts on all claims of a claim's paper."""
    method = claim.paper.partition(",")[0]
    return [v for v in verdicts if v.claim.paper.partition(",")[0] == method]


def _count_reproduced(verdicts: list[Verdict]) -> tuple[int, int]:
    """Return the number of reproduced and of measured claims."""
    measured = [v for v in verdicts if v.is_measured]
    return sum(v.format_verdict() == REPRODUCED for v in measured), len(measured)


def format_missing_list(verdicts: list[Verdict]) -> str:
    """Return a Markdown list of the claims that are not measured, each with the reason."""
    return "\n".join(_list_missing(verdicts))


def _list_missing(verdicts: list[Verdict]) -> Iterator[str]:
    for verdict in verdicts:
        if not verdict.is_measured:
            claim = verdict.claim
            unmeasured = verdict.difference is None
            reason = claim.missing_reason if unmeasured else "There is one seed only."
            yield f"- {claim.paper}: {claim.claim} *{reason}*"


def _format_difference(verdict: Verdict) -> str:
    """Format the difference, with the number of seeds in which it has the claimed sign."""
    statistic = verdict.difference
    if statistic is None:
        return "-"
    if verdict.claim.sign < 0 and statistic.above is not None and statistic.seeds is not None:
        is_zero = statistic.mean == 0 and not statistic.sd
        above = 0 if is_zero else statistic.seeds - statistic.above
        statistic = replace(statistic, above=above)
    size = max(abs(statistic.mean), statistic.sd or 0)
    digits = 4 if 0 < size < 0.01 else 2  # noqa: PLR2004
    setup = f"; {verdict.claim.setup}" if verdict.claim.setup else ""
    return f"{statistic.format(digits)}{setup}"


def _format_link(chapter: str, links: Mapping[str, str]) -> str:
    return f"[{chapter}](#{links[chapter]})" if chapter else "-"
