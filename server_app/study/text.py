"""Format a study's result as plain sentences for the terminal and the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedquorum.records.round_record import UNSEEN_GROUP
from fedquorum.report.names import method_title
from fedquorum.rules.decisions import ALONE, FINETUNED
from fedquorum.rules.description import Goal
from fedquorum.rules.metrics import get_metric
from fedquorum.sanitize import sanitize

from server_app.study.methods import FEDPROX, FEDPROX_TITLE
from server_app.study.paired_statistics import (
    DECIDING_PROBABILITY,
    MIN_SEEDS,
    NO_DIFFERENCE,
    NO_USABLE_MODEL,
    UNDECIDED,
    Decision,
    PairedDifference,
)
from server_app.study.result import BudgetUse, MethodResult, StudyResult

GOAL_QUESTIONS = {
    Goal.PRIORITY: "Which method serves the priority clients best?",
    Goal.PARTICIPATION: "Which method copes best with clients that are often unavailable?",
    Goal.FAIRNESS: "Which method helps the clients with the worst models most?",
    Goal.AVERAGE: "Which method is best on average?",
}
GROUP_NAMES = {
    "priority": "the priority clients",
    "non_priority": "the clients without priority",
    "all": "all clients",
    UNSEEN_GROUP: "held-out clients",
    FINETUNED: "clients with a fine-tuned model",
    ALONE: "clients that train alone",
}
PERSONAL_NAMES = {
    "alone": "trained alone",
    "fine-tuned": "the last model trained further on the client's own rows",
}
STATISTIC_NAMES = {
    "worst": "the worst of ",
    "best": "the best of ",
    "worst10": "the worst 10 % of ",
    "best10": "the best 10 % of ",
}
MINUS = "\N{MINUS SIGN}"
MAX_DECIMALS = 6
MINUTE, HOUR = 60.0, 3600.0
MIN_SECONDS_IN_HOURS = 2.0 * HOUR
MIN_WHOLE_MINUTES = 10


@dataclass(frozen=True)
class Unit:
    """The format of a study's numbers.

    Parameters
    ----------
    metric : str
        The metric's name in sentences, such as ``accuracy``.
    unit : str
        ``points`` for fractions, which are written in percent; else the metric's unit, often empty.
    factor : float
        The factor from a value to its display.
    digits : int
        The number of decimals, chosen so that the margin has two digits.
    higher_is_better : bool
        Whether a positive difference of the metric is an improvement.
    """

    metric: str
    unit: str
    factor: float
    digits: int
    higher_is_better: bool

    @classmethod
    def for_metric(cls, metric: str, margin: float) -> "Unit":
        """Build the unit of a metric; ``margin`` is the largest difference that counts as none."""
        spec = get_metric(metric)
        name, _, unit = spec.title.partition(", ")
        margin *= spec.scale
        digits = 1 - math.floor(math.log10(margin)) if margin > 0 else 2
        return cls(
            sanitize(name),
            "points" if spec.is_fraction else unit,
            spec.scale,
            min(MAX_DECIMALS, max(0, digits)),
            spec.higher_is_better,
        )

    @property
    def percent_or_unit(self) -> str:
        """The unit of a value, not of a difference."""
        return "%" if self.unit == "points" else self.unit

    @property
    def sign(self) -> float:
        """1 if higher is better, otherwise -1: a signed difference is positive if better."""
        return 1.0 if self.higher_is_better else -1.0

    def format_number(self, value: float, *, signed: bool = False) -> str:
        """Format a value or a difference without its unit; "-" for NaN."""
        if math.isnan(value):
            return "-"
        text = f"{self.factor * value:.{self.digits}f}"
        if float(text) == 0:
            return text.removeprefix("-")
        plus = "+" if signed else ""
        return text.replace("-", MINUS) if value < 0 else f"{plus}{text}"

    def format_amount(self, value: float) -> str:
        """Format the size of a difference with its unit, such as "1 point", without final zeros."""
        text = self.format_number(abs(value))
        text = text.rstrip("0").rstrip(".") if "." in text else text
        unit = "point" if (text, self.unit) == ("1", "points") else self.unit
        return f"{text} {unit}".rstrip()

    def format_interval(self, low: float, high: float, *, signed: bool = False) -> str:
        """Format an interval, such as "0.9 to 3.7"."""
        return (
            f"{self.format_number(low, signed=signed)} to {self.format_number(high, signed=signed)}"
        )


def get_unit(result: StudyResult) -> Unit:
    """Return the unit of a study's metric."""
    return Unit.for_metric(result.metric, result.min_effect)


def format_method_name(name: str) -> str:
    """Return a method's display name."""
    return FEDPROX_TITLE if name == FEDPROX else sanitize(method_title(name))


def format_question(result: StudyResult) -> str:
    """Return the study's question."""
    return GOAL_QUESTIONS[Goal(result.goal)]


def describe_score_clients(result: StudyResult) -> str:
    """Name the clients of the score, such as "the worst 10 % of all clients"."""
    return describe_score_group(result.metric_key.removeprefix("test."))


def describe_score_group(score: str) -> str:
    """Name the clients of a score, given by its dotted key below ``test``."""
    group, _, statistic = score.partition(".")
    return f"{STATISTIC_NAMES.get(statistic, '')}{GROUP_NAMES[group]}"


def get_compared_methods(result: StudyResult) -> tuple[MethodResult, ...]:
    """Return the compared methods, the baseline first."""
    return tuple(method for method in result.methods if not method.left_out)


def count_seeds(result: StudyResult) -> int:
    """Count the seeds that all compared methods completed."""
    return min((len(method.runs) for method in get_compared_methods(result)), default=0)


def format_percent(fraction: float) -> str:
    """Format a fraction in percent with at most three digits."""
    return f"{100 * fraction:.3g} %"


def format_duration(unit: str, amount: float) -> str:
    """Format an amount of a budget, such as "20 minutes" or "1,200 rounds"."""
    if unit == "rounds":
        return f"{amount:,.0f} rounds"
    if amount < 2 * MINUTE:
        return f"{amount:.0f} seconds"
    if amount < MIN_SECONDS_IN_HOURS:
        minutes = amount / MINUTE
        return (
            f"{minutes:.0f} minutes" if minutes >= MIN_WHOLE_MINUTES else f"{minutes:.2g} minutes"
        )
    return f"{amount / HOUR:.1f} hours"


def join_words(names: Sequence[str]) -> str:
    """Join names for a sentence: "a", "a and b", "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# --- the verdict ------------------------------------------------------------------------------


def format_verdict(result: StudyResult) -> str:
    """Format the verdict in one or a few plain sentences."""
    return capitalize(" ".join(filter(None, [_describe_verdict(result), _describe_rivals(result)])))


def _describe_rivals(result: StudyResult) -> str:
    """Say that personal models are better than every method; empty if they are not."""
    rivals = result.rivals
    if rivals is None or rivals.decision is None or not rivals.beats_all:
        return ""
    best = next(one for one in rivals.decision.differences if one.method in rivals.beats_all)
    scope = ", on these test rows" if result.row_weights else ""
    return (
        f"But personal models beat every method here{scope}: "
        f"{PERSONAL_NAMES[best.method]}, "
        f"{_describe_difference(result, best, 'its')} "
        f"({_format_evidence(result, rivals.decision, best)})."
    )


def capitalize(sentence: str) -> str:
    """Capitalize the first letter of a sentence, and no other."""
    return f"{sentence[:1].upper()}{sentence[1:]}"


def _describe_verdict(result: StudyResult) -> str:
    decision = result.decision
    if decision is None:
        return _describe_too_few_seeds(result)
    if decision.verdict == NO_USABLE_MODEL:
        return _describe_no_usable_model(result, decision)
    if result.baseline == decision.verdict:
        return _describe_no_improvement(result, decision)
    if decision.verdict == NO_DIFFERENCE:
        if any(one.low < -result.min_effect for one in decision.differences):
            return _describe_no_improvement(result, decision)
        return (
            f"For {describe_score_clients(result)}, keep {format_method_name(result.baseline)}: "
            f"{_describe_scope(result)}, no method differs from it by more than "
            f"{_format_margin(result)} ({_format_intervals(result, decision)})."
        )
    is_open = decision.verdict == UNDECIDED
    return (_describe_undecided if is_open else _describe_winner)(result, decision)


def _describe_no_usable_model(result: StudyResult, decision: Decision) -> str:
    """Say that no method is surely better than guessing, with both scores and what would help."""
    unit = get_unit(result)
    means = {
        method.name: fmean(unit.sign * run.score for run in method.runs)
        for method in get_compared_methods(result)
    }
    best = max(means, key=means.__getitem__)
    in_unit = f" {unit.percent_or_unit}".rstrip()
    guess, score = fmean(result.guessing), unit.sign * means[best]
    return (
        f"For {describe_score_clients(result)}, no common model is usable: "
        f"{_describe_scope(result)}, none is surely better than guessing "
        f"({_format_intervals(result, decision)}). Guessing has {unit.metric} "
        f"{unit.format_number(guess)}{in_unit}, and the best method, {format_method_name(best)}, "
        f"{unit.format_number(score)}{in_unit}. More rows for each client, more rounds or another "
        "model would help."
    )


def _describe_winner(result: StudyResult, decision: Decision) -> str:
    one = next(c for c in decision.differences if c.method == decision.verdict)
    first = (
        f"For {describe_score_clients(result)}, use {format_method_name(one.method)}: "
        f"{_describe_scope(result)}, {_describe_difference(result, one, 'its')} "
        f"({_format_evidence(result, decision, one)})."
    )
    others = [format_method_name(name) for name in result.not_distinguished if name != one.method]
    return (
        f"{first} The scores do not distinguish it from {join_words(others)}." if others else first
    )


def _describe_undecided(result: StudyResult, decision: Decision) -> str:
    one, baseline = decision.best, format_method_name(result.baseline)
    ahead = "" if one.difference > 0 else f"no method comes out ahead of {baseline}, and "
    first = (
        f"Undecided for {describe_score_clients(result)}, so keep {baseline} for now: "
        f"{ahead}{_describe_difference(result, one)}"
    )
    evidence = _format_evidence(result, decision, one)
    then = _describe_seeds_needed(result, decision)
    if one.high > result.min_effect:
        scope = _describe_scope(result)
        return f"{first}, but {scope} this may be chance ({evidence}). {then}"
    open_one = max(decision.differences, key=lambda other: other.high)
    return (
        f"{first} ({evidence}), but {format_method_name(open_one.method)} may be up to "
        f"{get_unit(result).format_amount(open_one.high)} better "
        f"({_format_evidence(result, decision, open_one)}). {then}"
    )


def _describe_no_improvement(result: StudyResult, decision: Decision) -> str:
    """Describe methods that are not better, but may be worse by more than the margin."""
    below = [
        format_method_name(one.method)
        for one in decision.differences
        if one.low < -result.min_effect
    ]
    baseline, clients = format_method_name(result.baseline), describe_score_clients(result)
    return (
        f"For {clients}, keep {baseline}: {_describe_scope(result)}, no method is better by more "
        f"than {_format_margin(result)} ({_format_intervals(result, decision)}), and "
        f"{join_words(below)} may be worse by more than that."
    )


def _describe_scope(result: StudyResult) -> str:
    """Name the rows for which the verdict holds."""
    if result.seed_draws.data:
        return "on new data"
    return "on new rows of these clients" if result.holds_for_new_rows else "on these test rows"


def _format_intervals(result: StudyResult, decision: Decision) -> str:
    return f"{format_percent(result.confidence)} intervals, {decision.seeds} seeds"


def _describe_seeds_needed(result: StudyResult, decision: Decision) -> str:
    budget_use = result.spent
    needed, chance = decision.seeds_to_decide, format_percent(DECIDING_PROBABILITY)
    if needed is None:
        more = ": more rows of these clients would" if result.holds_for_new_rows else ""
        return f"No number of seeds would decide it with a probability of {chance}{more}."
    budget = (
        "" if budget_use.to_decide is None else f", a budget of {_format_budget_needed(budget_use)}"
    )
    return (
        f"About {needed:,} seeds instead of {decision.seeds} would decide it with a probability of "
        f"{chance}{budget}."
    )


def _format_budget_needed(budget_use: BudgetUse) -> str:
    needed = format_duration(budget_use.unit, budget_use.to_decide or 0.0)
    return f"about {needed} instead of {format_duration(budget_use.unit, budget_use.amount)}"


def _describe_too_few_seeds(result: StudyResult) -> str:
    if len(get_compared_methods(result)) == 1:
        return (
            f"Undecided: no method is left to compare with {format_method_name(result.baseline)}."
        )
    seeds, spent = count_seeds(result), result.spent
    budget = (
        ""
        if spent.to_decide is None
        else f" A budget of {_format_budget_needed(spent)} is enough for that."
    )
    return (
        f"Undecided: the budget was enough for {seeds} seed{'s' if seeds != 1 else ''} of every "
        f"method, and a verdict needs {MIN_SEEDS}.{budget}"
    )


def _describe_difference(
    result: StudyResult, difference: PairedDifference, possessive: str = ""
) -> str:
    """Describe a difference, such as "FedALIGN's accuracy is 2.3 points above FedAvg's"."""
    unit = get_unit(result)
    baseline = to_possessive(format_method_name(result.baseline))
    above = (difference.difference > 0) == unit.higher_is_better
    size = f"{unit.format_number(abs(difference.difference))} {unit.unit}".rstrip()
    method = possessive or to_possessive(format_method_name(difference.method))
    if difference.difference == 0:
        return f"{method} {unit.metric} differs from {baseline} by {size}"
    side = "above" if above else "below"
    return f"{method} {unit.metric} is {size} {side} {baseline}"


def to_possessive(name: str) -> str:
    """Return the possessive: "FedAvg's", or "FedAvg on priority clients'" after an s."""
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def _format_evidence(result: StudyResult, decision: Decision, difference: PairedDifference) -> str:
    interval = get_unit(result).format_interval(difference.low, difference.high)
    return (
        f"{format_percent(result.confidence)} interval {interval}, "
        f"ahead in {difference.ahead} of {decision.seeds} seeds"
    )


def _format_margin(result: StudyResult) -> str:
    unit = get_unit(result)
    return f"{unit.format_amount(result.min_effect)} of {unit.metric}"
