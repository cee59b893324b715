"""What a study says, in plain words: for the terminal and for the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedquorum.intake import shown
from fedquorum.metrics import metric_called
from fedquorum.records.round_record import UNSEEN_GROUP
from fedquorum.rule import Question

from server_app.naming import method_title
from server_app.study.answer import Answer, MethodResult, Spent
from server_app.study.decision import FEWEST_SEEDS, NO_DIFFERENCE, UNDECIDED, Comparison, Decision

QUESTIONS = {
    Question.PRIORITY: "Which method serves the priority clients best?",
    Question.PARTICIPATION: "Which method copes best with clients that are often away?",
    Question.FAIRNESS: "Which method helps the clients with the worst models most?",
    Question.AVERAGE: "Which method is best on average?",
}
GROUPS = {
    "priority": "the priority clients",
    "non_priority": "the clients without priority",
    "all": "all clients",
    UNSEEN_GROUP: "held-out clients",
}
STATISTICS = {
    "worst": "the worst of ",
    "best": "the best of ",
    "worst10": "the worst 10 % of ",
    "best10": "the best 10 % of ",
}
MINUS = "\N{MINUS SIGN}"
MOST_DIGITS = 6
MINUTE, HOUR = 60.0, 3600.0
LONG_MINUTES = 2.0 * HOUR
FEW_MINUTES = 10


@dataclass(frozen=True)
class Unit:
    """How numbers of a study's metric are written.

    Parameters
    ----------
    metric : str
        The metric's name in sentences, such as ``accuracy``.
    unit : str
        ``points`` of shares, which are written in percent; of others their unit, often empty.
    factor : float
        What a value is multiplied by.
    digits : int
        Decimals: so many that the margin has two digits.
    higher_is_better : bool
        Whether a positive difference of the metric is an improvement.
    """

    metric: str
    unit: str
    factor: float
    digits: int
    higher_is_better: bool

    @classmethod
    def of(cls, metric: str, margin: float) -> "Unit":
        """Return the unit of a metric, where this is the largest difference that makes none."""
        measured = metric_called(metric)
        name, _, unit = measured.title.partition(", ")
        margin *= measured.factor
        digits = 1 - math.floor(math.log10(margin)) if margin > 0 else 2
        return cls(
            shown(name),
            "points" if measured.is_share else unit,
            measured.factor,
            min(MOST_DIGITS, max(0, digits)),
            measured.higher_is_better,
        )

    @property
    def sign(self) -> float:
        """1 where higher is better, otherwise -1: differences are positive where better."""
        return 1.0 if self.higher_is_better else -1.0

    def number(self, value: float, *, signed: bool = False) -> str:
        """Return a number of the metric, or a difference, without its unit; "-" for NaN."""
        if math.isnan(value):
            return "-"
        text = f"{self.factor * value:.{self.digits}f}"
        if float(text) == 0:
            return text.removeprefix("-")
        plus = "+" if signed else ""
        return text.replace("-", MINUS) if value < 0 else f"{plus}{text}"

    def amount(self, value: float) -> str:
        """Return the size of a difference with its unit, such as "1 point"; zeros are left out."""
        text = self.number(abs(value))
        text = text.rstrip("0").rstrip(".") if "." in text else text
        unit = "point" if (text, self.unit) == ("1", "points") else self.unit
        return f"{text} {unit}".rstrip()

    def interval(self, low: float, high: float, *, signed: bool = False) -> str:
        """Return an interval's ends, such as "0.9 to 3.7"."""
        return f"{self.number(low, signed=signed)} to {self.number(high, signed=signed)}"


def unit_of(answer: Answer) -> Unit:
    """Return the unit of a study's metric."""
    return Unit.of(answer.metric, answer.min_effect)


def title(name: str) -> str:
    """Return a method's name for people."""
    return shown(method_title(name))


def question_words(answer: Answer) -> str:
    """Return the study's question."""
    return QUESTIONS[Question(answer.goal)]


def whose(answer: Answer) -> str:
    """Return on whose test parts the score is measured, such as "the worst 10 % of all clients"."""
    return clients_of(answer.metric_key.removeprefix("test."))


def clients_of(score: str) -> str:
    """Return whose score it is, by its dotted key below ``test``."""
    group, _, statistic = score.partition(".")
    return f"{STATISTICS.get(statistic, '')}{GROUPS[group]}"


def compared(answer: Answer) -> tuple[MethodResult, ...]:
    """Return the methods that were compared, the baseline first."""
    return tuple(method for method in answer.methods if not method.left_out)


def num_seeds(answer: Answer) -> int:
    """Return with how many seeds all methods ran."""
    return min((len(method.runs) for method in compared(answer)), default=0)


def percent(share: float) -> str:
    """Return a share in whole percent or, where it is none, with a decimal."""
    return f"{100 * share:.3g} %"


def duration(unit: str, amount: float) -> str:
    """Return an amount of a budget, such as "20 minutes" or "1,200 rounds"."""
    if unit == "rounds":
        return f"{amount:,.0f} rounds"
    if amount < 2 * MINUTE:
        return f"{amount:.0f} seconds"
    if amount < LONG_MINUTES:
        minutes = amount / MINUTE
        return f"{minutes:.0f} minutes" if minutes >= FEW_MINUTES else f"{minutes:.2g} minutes"
    return f"{amount / HOUR:.1f} hours"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# --- the verdict ------------------------------------------------------------------------------


def verdict_sentence(answer: Answer) -> str:
    """Return the verdict in one or a few plain sentences."""
    return capital(_verdict(answer))


def capital(sentence: str) -> str:
    """Return a sentence with its first letter as a capital; names elsewhere stay as they are."""
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _verdict(answer: Answer) -> str:
    decision = answer.decision
    if decision is None:
        return _too_few_seeds(answer)
    if answer.baseline == decision.verdict:
        return _nothing_better(answer, decision)
    if decision.verdict == NO_DIFFERENCE:
        if any(one.low < -answer.min_effect for one in decision.comparisons):
            return _nothing_better(answer, decision)
        return (
            f"No method differs from {title(answer.baseline)} by more than {_margin(answer)} "
            f"for {whose(answer)} ({percent(answer.confidence)} intervals, "
            f"{decision.seeds} seeds)."
        )
    if decision.verdict == UNDECIDED:
        return _undecided(answer, decision)
    return _winner(answer, decision)


def _winner(answer: Answer, decision: Decision) -> str:
    one = next(c for c in decision.comparisons if c.method == decision.verdict)
    first = (
        f"{title(one.method)} is best for {whose(answer)}: {_apart(answer, one, 'its')} "
        f"({_evidence(answer, decision, one)})."
    )
    others = [title(name) for name in answer.not_told_apart if name != one.method]
    return f"{first} {listed(others)} cannot be told apart from it." if others else first


def _undecided(answer: Answer, decision: Decision) -> str:
    one, baseline = decision.best, title(answer.baseline)
    ahead = "" if one.difference > 0 else f"no method comes out ahead of {baseline}, and "
    first = f"Undecided for {whose(answer)}: {ahead}{_apart(answer, one)}"
    evidence = _evidence(answer, decision, one)
    then = _to_decide(answer.spent, decision)
    if one.high > answer.min_effect:
        return f"{first}, but this may be chance ({evidence}). {then}"
    open_one = max(decision.comparisons, key=lambda other: other.high)
    return (
        f"{first} ({evidence}), but {title(open_one.method)} may be up to "
        f"{unit_of(answer).amount(open_one.high)} better "
        f"({_evidence(answer, decision, open_one)}). {then}"
    )


def _nothing_better(answer: Answer, decision: Decision) -> str:
    """Return the sentence for methods that are not better, but may be worse than the margin."""
    below = [title(one.method) for one in decision.comparisons if one.low < -answer.min_effect]
    return (
        f"Nothing beats {title(answer.baseline)}: for {whose(answer)}, no method is better by more "
        f"than {_margin(answer)} ({percent(answer.confidence)} intervals, {decision.seeds} seeds), "
        f"and {listed(below)} may be worse by more than that."
    )


def _to_decide(spent: Spent, decision: Decision) -> str:
    needed = decision.seeds_to_decide
    if needed is None:
        return "With these differences no number of seeds would decide it."
    budget = "" if spent.to_decide is None else f", a budget of {_budget(spent)}"
    return f"About {needed:,} seeds instead of {decision.seeds} would decide it{budget}."


def _budget(spent: Spent) -> str:
    more = duration(spent.unit, spent.to_decide or 0.0)
    return f"about {more} instead of {duration(spent.unit, spent.amount)}"


def _too_few_seeds(answer: Answer) -> str:
    if len(compared(answer)) == 1:
        return f"Undecided: no method is left to compare with {title(answer.baseline)}."
    seeds, spent = num_seeds(answer), answer.spent
    budget = "" if spent.to_decide is None else f" A budget of {_budget(spent)} is enough for that."
    return (
        f"Undecided: the budget was enough for {seeds} seed{'s' if seeds != 1 else ''} of every "
        f"method, and a verdict needs {FEWEST_SEEDS}.{budget}"
    )


def _apart(answer: Answer, one: Comparison, possessive: str = "") -> str:
    """Return "FedALIGN's accuracy is 2.3 points above FedAvg's", below where that is so."""
    unit = unit_of(answer)
    above = (one.difference > 0) == unit.higher_is_better
    size = f"{unit.number(abs(one.difference))} {unit.unit}".rstrip()
    method = possessive or possessive_of(title(one.method))
    if one.difference == 0:
        return (
            f"{method} {unit.metric} differs from {possessive_of(title(answer.baseline))} by {size}"
        )
    side = "above" if above else "below"
    return f"{method} {unit.metric} is {size} {side} {possessive_of(title(answer.baseline))}"


def possessive_of(name: str) -> str:
    """Return "FedAvg's", or "FedAvg on priority clients'" of a name that ends with s."""
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def _evidence(answer: Answer, decision: Decision, one: Comparison) -> str:
    interval = unit_of(answer).interval(one.low, one.high)
    return (
        f"{percent(answer.confidence)} interval {interval}, "
        f"ahead in {one.ahead} of {decision.seeds} seeds"
    )


def _margin(answer: Answer) -> str:
    unit = unit_of(answer)
    return f"{unit.amount(answer.min_effect)} of {unit.metric}"
