"""Say what the chapters mean for somebody who has to choose a method: when it helps, and how much.

This module has no measured numbers: an effect names the chapter and the cell of its number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.book.claims import CellLocator, Verdict, count_outcomes
from benchmarks.book.results import ChapterResult, ResultTable, SeedStatistic
from benchmarks.book.verdicts import Outcome, compute_interval

LAST = "end(?! of).*"
WORST = "worst"


@dataclass(frozen=True)
class Effect:
    """A difference between two methods on some data, in percentage points.

    Parameters
    ----------
    data : str
        The data and its division, in words.
    compared : str
        The method and what it is compared with.
    chapter : str
    locator : CellLocator
    """

    data: str
    compared: str
    chapter: str
    locator: CellLocator

    def find(self, results: Mapping[str, ChapterResult]) -> SeedStatistic:
        """Return the measured difference.

        Raises
        ------
        KeyError
            If the chapter has no such difference with two seeds or more.
        """
        cell = self.locator.find(results[self.chapter].tables)
        if not isinstance(cell, SeedStatistic) or cell.sd is None or cell.seeds is None:
            raise KeyError(f"{self.chapter} has no number for {self.data}: {self.compared}")
        return cell


@dataclass(frozen=True)
class Practice:
    """What the book says about one method.

    Parameters
    ----------
    method : str
        Its name, with which the papers of its claims begin.
    clients : str
        The clients that it is about.
    advice : str
        When it helps and what to try first, in a phrase.
    effects : tuple of Effect
        The differences behind it, that of the README first.
    """

    method: str
    clients: str
    advice: str
    effects: tuple[Effect, ...]


def _build_priority_effect(data: str, chapter: str, row: str, baseline: str) -> Effect:
    locator = CellLocator("differences", f"{row} - {baseline}", LAST)
    against = "FedAvg on all clients" if baseline == "all" else "the priority clients alone"
    return Effect(data, f"FedALIGN against {against}", chapter, locator)


def _build_participation_effect(method: str, row: str, chapter: str, pattern: str) -> Effect:
    return Effect(
        f"Fashion-MNIST, {pattern} participation",
        f"{method} against the mean of the participants",
        chapter,
        CellLocator("differences", f"{row} - average_participating", pattern),
    )


def _build_personal_effect(data: str, compared: str, row: str) -> Effect:
    locator = CellLocator("worst10_differences", row, f"{data}, accuracy")
    return Effect(data, f"{compared} against FedAvg", "answers-personal", locator)


PRACTICES = (
    Practice(
        "FedALIGN",
        "the priority clients",
        "the priority clients' own rows are too few; try them alone first, and FedALIGN beside it",
        (
            _build_priority_effect(
                "MNIST, five shards a client", "fedalign-mnist", "mnist, fedalign", "priority only"
            ),
            _build_priority_effect(
                "Fashion-MNIST, 0.3 of the clients a round",
                "fedalign-fmnist_partial",
                "fedalign",
                "priority only",
            ),
            _build_priority_effect(
                "Fashion-MNIST, all clients", "fedalign-fmnist", "fedalign", "priority only"
            ),
            _build_priority_effect(
                "Fashion-MNIST, all clients", "fedalign-fmnist", "fedalign", "all"
            ),
        ),
    ),
    Practice(
        "FedAU",
        "all clients",
        "clients come and go unlike each other; try it before the plain mean, and MIFA where the "
        "server can hold an update for each client and all come back soon",
        (
            _build_participation_effect("FedAU", "fedau, K = 50", "fedau-fmnist", "bernoulli"),
            _build_participation_effect("FedAU", "fedau, K = 50", "fedau-fmnist", "cyclic"),
            _build_participation_effect("MIFA", "mifa", "answers-participation", "bernoulli"),
            Effect(
                "Fashion-MNIST, cyclic participation",
                "FedAU against MIFA",
                "fedau-fmnist",
                CellLocator("differences", "fedau, K = 50 - mifa", "cyclic"),
            ),
        ),
    ),
    Practice(
        "AAggFF",
        "the worst tenth of the clients",
        "one model must be fair to all; where clients may differ, try fine-tuning first",
        (
            _build_personal_effect("Fashion-MNIST", "AAggFF-D", "aaggff_d"),
            _build_personal_effect("MNIST by writer", "AAggFF-D", "aaggff_d"),
            _build_personal_effect("Fashion-MNIST", "fine-tuned FedAvg", "fedavg, fine-tuned"),
            Effect(
                "spoken digits by speaker",
                "AAggFF-S against FedAvg",
                "aaggff-spoken_digits",
                CellLocator("differences", "aaggff_s - fedavg", WORST),
            ),
            Effect(
                "Berka, AUROC",
                "AAggFF-S against FedAvg",
                "aaggff-berka",
                CellLocator("differences", "aaggff_s - fedavg", WORST),
            ),
        ),
    ),
)
"""What the book says about the method of each paper."""


def format_effect_table(results: Mapping[str, ChapterResult], links: Mapping[str, str]) -> str:
    """Format all effects as Markdown; ``links`` has the anchor of every chapter."""
    rows = tuple(
        (
            practice.clients,
            effect.data,
            effect.compared,
            _format_interval(effect.find(results)),
            f"[{effect.chapter}](#{links[effect.chapter]})",
        )
        for practice in PRACTICES
        for effect in practice.effects
    )
    headings = ("clients", "data", "compared", "difference, points (90 % interval)", "chapter")
    return ResultTable(headings, rows).to_markdown()


def format_practice_table(
    results: Mapping[str, ChapterResult], verdicts: Sequence[Verdict], book: str
) -> str:
    """Format a line for each paper as Markdown; the last line links to ``book``."""
    rows = tuple(
        (
            practice.method,
            practice.advice,
            _format_main_effect(practice, results),
            " / ".join(map(str, count_outcomes(_select_claims(practice, verdicts)).values())),
        )
        for practice in PRACTICES
    )
    headings = ("paper", "helps when", "for example, in points", f"claims: {' / '.join(Outcome)}")
    table = ResultTable(headings, rows).to_markdown()
    measured = sum(v.is_measured for v in verdicts)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(verdicts).items())
    return (
        f"{table}\n\nOf {len(verdicts)} claims {measured} are measured: {counts}; "
        f"[what that means, and all of them]({book})."
    )


def list_failed_claims(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a Markdown line for each claim that is contradicted, or far smaller than published."""
    for verdict in verdicts:
        judgment = verdict.judgment
        if judgment is not None and (
            judgment.outcome is Outcome.CONTRADICTED or judgment.is_far_smaller
        ):
            claim = verdict.claim
            yield f"- {claim.paper}: {claim.claim} {verdict.format_verdict()}"


def _select_claims(practice: Practice, verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.claim.paper.partition(",")[0] == practice.method]


def _format_main_effect(practice: Practice, results: Mapping[str, ChapterResult]) -> str:
    effect = practice.effects[0]
    return f"{effect.data}: {_format_interval(effect.find(results))}, {effect.compared}"


def _format_interval(found: SeedStatistic) -> str:
    assert found.sd is not None, "Effect.find returns differences of two seeds or more"
    assert found.seeds is not None, "Effect.find returns differences of two seeds or more"
    low, high = compute_interval(found.mean, found.sd, found.seeds)
    return f"{found.mean:+.1f} ({low:+.1f} to {high:+.1f}), {found.seeds} seeds"
