"""Claims of papers, and the verdicts of the book's numbers.

This module has no measured numbers: a claim names the chapter and the cell of its number.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.book.results import (
    SECONDS_PER_HOUR,
    Cell,
    ChapterResult,
    ResultTable,
    SeedStatistic,
)
from benchmarks.book.verdicts import (
    MAX_SEEDS,
    MIN_SEEDS,
    Judgment,
    Outcome,
    PairedDifferences,
    judge_family,
)

NOT_MEASURED = "not measured"
ONE_SEED = "no verdict: one seed"
MORE_SEEDS = 20
"""The seeds that a reader with more time should measure of a chapter that has fewer."""


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
    published_difference : float, optional
        The paper's number in the unit of the cell; None if it has curves only.
    is_in_points : bool
        Whether the cell is in percentage points.
    missing_reason : str
        Why there is no measurement; used only while the cell is missing.
    """

    paper: str
    claim: str
    published: str
    chapter: str = ""
    locator: CellLocator | None = None
    sign: int = 1
    setup: str = ""
    published_difference: float | None = None
    is_in_points: bool = True
    missing_reason: str = ""

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
    planned_looks : tuple of int
        The numbers of seeds at which the claim is judged.
    rounds : str
        The length of the runs, in words.
    judgment : Judgment, optional
        None with fewer than two seeds.
    """

    claim: Claim
    difference: SeedStatistic | None = None
    seeds: int = 0
    planned_looks: tuple[int, ...] = ()
    rounds: str = ""
    judgment: Judgment | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the difference has at least two seeds."""
        return self.judgment is not None

    @property
    def is_undecided(self) -> bool:
        """Whether more seeds may decide the claim."""
        return self.judgment is not None and self.judgment.outcome is Outcome.UNDECIDED

    def format_seeds(self) -> str:
        """Return the number of seeds, and how many are planned if an undecided claim has fewer."""
        planned = max(self.planned_looks, default=0)
        has_more = self.is_undecided and planned > self.seeds
        return f"{self.seeds} of {planned}" if has_more else f"{self.seeds}"

    def format_verdict(self) -> str:
        """Return the verdict in words."""
        difference, judgment = self.difference, self.judgment
        if judgment is None:
            return NOT_MEASURED if difference is None else ONE_SEED
        words = f"**{judgment.outcome}**"
        if judgment.outcome is Outcome.UNDECIDED:
            return f"{words}, {self._format_missing_seeds(judgment)}"
        if judgment.is_far_smaller:
            return f"{words}, far smaller than published"
        return f"{words}, the opposite" if judgment.outcome is Outcome.CONTRADICTED else words

    def _format_missing_seeds(self, judgment: Judgment) -> str:
        difference = self.difference
        if difference is not None and difference.mean == 0.0 and not difference.sd:
            return f"no difference in any of {self.seeds} seeds"
        if judgment.seeds_to_decide is None:
            return f"more than {MAX_SEEDS} seeds would decide"
        return f"about {judgment.seeds_to_decide} seeds would decide"


def judge_claims(
    claims: Sequence[Claim],
    results: Mapping[str, ChapterResult],
    planned_looks: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[Verdict, ...]:
    """Return the verdict on every claim, in their order.

    The claims of one figure or table are judged together. A published number counts only if the
    setup is the paper's: the size of a difference on other data contradicts nothing.

    Parameters
    ----------
    claims : sequence of Claim
    results : mapping of str to ChapterResult
        The measured chapters by name.
    planned_looks : mapping of str to tuple of int, optional
        The numbers of seeds at which the claims of a chapter are judged; only that of its result
        for chapters that are not named.
    """
    looks = planned_looks or {}
    verdicts = [
        replace(
            _find_difference(claim, results.get(claim.chapter)),
            planned_looks=looks.get(claim.chapter, ()),
        )
        for claim in claims
    ]
    families: dict[str, list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if _build_differences(verdict) is not None:
            families.setdefault(verdict.claim.paper, []).append(index)
    for indices in families.values():
        family = [one for i in indices if (one := _build_differences(verdicts[i])) is not None]
        for index, judgment in zip(indices, judge_family(family), strict=True):
            verdicts[index] = replace(verdicts[index], judgment=judgment)
    return tuple(verdicts)


def _find_difference(claim: Claim, result: ChapterResult | None) -> Verdict:
    """Return a claim with its difference, before it is judged."""
    cell = None if result is None or claim.locator is None else claim.locator.find(result.tables)
    if result is None or not isinstance(cell, SeedStatistic) or cell.seeds is None:
        return Verdict(claim)
    return Verdict(claim, cell, cell.seeds, rounds=result.rounds.removesuffix(" rounds"))


def _build_differences(verdict: Verdict) -> PairedDifferences | None:
    """Return the numbers to judge, positive in the claimed direction; None with too few seeds."""
    claim, cell = verdict.claim, verdict.difference
    if cell is None or cell.sd is None or verdict.seeds < MIN_SEEDS:
        return None
    published = None if claim.setup else claim.published_difference
    return PairedDifferences(
        claim.sign * cell.mean,
        cell.sd,
        verdict.seeds,
        None if published is None else claim.sign * published,
        verdict.planned_looks,
    )


def format_claim_table(verdicts: Sequence[Verdict], links: Mapping[str, str]) -> str:
    """Format all verdicts as Markdown; ``links`` has the anchor of every chapter."""
    rows = tuple(
        (
            v.claim.paper,
            v.claim.claim,
            v.claim.published,
            _format_difference(v),
            f"{v.format_seeds()}, {v.rounds or '-'}" if v.difference else "-",
            v.format_verdict(),
            _format_link(v.claim.chapter, links),
        )
        for v in verdicts
    )
    headings = ("paper", "claim", "published", "measured", "seeds, rounds", "verdict", "chapter")
    return ResultTable(headings, rows).to_markdown()


def count_outcomes(verdicts: Sequence[Verdict]) -> dict[Outcome, int]:
    """Return the number of claims with each verdict."""
    counts = Counter(v.judgment.outcome for v in verdicts if v.judgment is not None)
    return {outcome: counts[outcome] for outcome in Outcome}


def format_undecided_list(
    verdicts: Sequence[Verdict], results: Mapping[str, ChapterResult], links: Mapping[str, str]
) -> str:
    """Return a Markdown list of the chapters with undecided claims, and what would decide them."""
    return "\n".join(_list_undecided(verdicts, results, links))


def _list_undecided(
    verdicts: Sequence[Verdict], results: Mapping[str, ChapterResult], links: Mapping[str, str]
) -> Iterator[str]:
    undecided = [verdict for verdict in verdicts if verdict.is_undecided]
    for name, count in Counter(verdict.claim.chapter for verdict in undecided).items():
        verdict = next(verdict for verdict in undecided if verdict.claim.chapter == name)
        result, planned = results[name], max(verdict.planned_looks, default=0)
        seeds = result.num_seeds
        claims = f"{count} claim{'s' if count > 1 else ''}"
        line = f"- {_format_link(name, links)}: {claims} with {seeds} seeds"
        wanted = max(planned, MORE_SEEDS)
        if seeds >= wanted or not result.seconds:
            yield f"{line}, all that are planned."
            continue
        hours = (wanted - seeds) * result.seconds / seeds / SECONDS_PER_HOUR
        option = "" if planned == wanted else f" --seeds {wanted}"
        yield (
            f"{line}; {wanted} seeds take {hours:.1f} hours of one core more: "
            f"`python -m benchmarks.book --run {name}{option}`."
        )


def format_missing_list(verdicts: Sequence[Verdict]) -> str:
    """Return a Markdown list of the claims that are not measured, each with the reason."""
    return "\n".join(_list_missing(verdicts))


def _list_missing(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for verdict in verdicts:
        if not verdict.is_measured:
            claim = verdict.claim
            unmeasured = verdict.difference is None
            if unmeasured:
                yield f"- {claim.paper}: {claim.claim} *{claim.missing_reason}*"
            else:
                command = f"python -m benchmarks.book --run {claim.chapter} --seeds {MORE_SEEDS}"
                yield f"- {claim.paper}: {claim.claim} *There is one seed only:* `{command}`"


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
