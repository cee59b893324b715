"""What a study is asked: the goal, the budget, and what may be said beside them."""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedquorum.errors import ParameterError, SettingsError
from fedquorum.metrics import Metric
from fedquorum.parameters import NON_NEGATIVE, NON_NEGATIVE_INT, Interval, ListOf, OneOf, Range
from fedquorum.rule import Goal, check_parameters, parameter

from conf.options import format_suggestion
from conf.overrides import to_overrides
from server_app.study.paired_statistics import MIN_SEEDS

STUDY_GOALS = (Goal.PRIORITY, Goal.PARTICIPATION, Goal.FAIRNESS, Goal.AVERAGE)
SECONDS_PER_UNIT = {"s": 1.0, "min": 60.0, "h": 3600.0}
FRACTION_MARGIN = 0.01
RELATIVE_MARGIN = 0.01
"""Differences that make none, unless the user says otherwise: of shares, and of other metrics as a
part of the baseline's score."""

GOAL_SCORES = {
    Goal.PRIORITY: "priority.{metric}",
    Goal.PARTICIPATION: "all.average",
    Goal.FAIRNESS: "all.worst10",
    Goal.AVERAGE: "all.{metric}",
}
"""What methods are compared by, by dotted key: the mean of the priority clients, the mean over
clients whatever data they have, the mean of the worst tenth, and the mean by data."""

_REQUIRED = ("goal", "budget")
_BUDGET_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|runs|rounds)")


@dataclass(frozen=True)
class Budget:
    """How much a study may take.

    Parameters
    ----------
    text : str
        As it was given.
    unit : {"seconds", "rounds"}
        What is counted.
    amount : float
        How many of them.
    """

    text: str
    unit: Literal["seconds", "rounds"]
    amount: float

    @classmethod
    def from_text(cls, text: str, rounds: int) -> "Budget":
        """Return the budget that ``20min`` or ``200runs`` says, a run being so many rounds."""
        found = _BUDGET_PATTERN.fullmatch(text)
        if found is None:
            raise SettingsError(f"budget must be {BudgetText().describe()}, got {text}")
        number, unit = float(found[1]), found[2]
        if unit in SECONDS_PER_UNIT:
            return cls(text, "seconds", number * SECONDS_PER_UNIT[unit])
        return cls(text, "rounds", number * (rounds if unit == "runs" else 1))

    def format_amount(self, amount: float) -> str:
        """Return an amount in words: ``12:30 min`` or ``400 rounds``."""
        return f"{amount:.0f} rounds" if self.unit == "rounds" else format_clock_time(amount)


def format_clock_time(seconds: float) -> str:
    """Return a time as ``12:30 min`` or ``1:02:05 h``."""
    hours, rest = divmod(round(seconds), 3600)
    minutes = f"{rest // 60:02}:{rest % 60:02}"
    return f"{hours}:{minutes} h" if hours else f"{minutes} min"


@dataclass(frozen=True)
class BudgetText(Range):
    """A number and its unit."""

    def describe(self) -> str:
        """Return the allowed values in words."""
        return "a number above 0 with s, min, h, runs or rounds, such as 20min or 200runs"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is a budget."""
        found = _BUDGET_PATTERN.fullmatch(value) if isinstance(value, str) else None
        return found is not None and float(found[1]) > 0


@dataclass(frozen=True)
class Phrase(Range):
    """A strategy, and settings that go with it."""

    def describe(self) -> str:
        """Return the allowed values in words."""
        return "a strategy, alone or with settings KEY=VALUE after it, in quotes"

    def contains(self, value: object) -> bool:
        """Say whether ``value`` is such a text."""
        return isinstance(value, str) and bool(value.split())


@dataclass(frozen=True)
class StudySettings:
    """What a study is asked; see docs/study.md.

    Parameters
    ----------
    goal : str
        ``priority``, ``participation``, ``fairness`` or ``average``.
    budget : str
        Such as ``20min``, ``200runs`` or ``5000rounds``. With one in runs or rounds the study has
        the same result on every machine.
    methods : list of str, optional
        What is compared with the baseline; None for all that serve the goal.
    baseline : str, optional
        The plain method; None for that of the goal.
    metric_key : str, optional
        What is compared, by dotted key below ``test`` in ``rounds.jsonl``, such as
        ``priority.worst10``; None for that of the goal.
    trials : int, optional
        How many choices of values each method is tried with; None for what half of the budget
        allows, 0 for no tuning.
    seeds : int, optional
        How many seeds are run at most; None for as many as the budget allows.
    min_effect : float, optional
        The largest difference that makes none, in the metric's unit (a share is 0 to 1); None for
        one point of a share, and for a hundredth of the baseline's score of others.
    confidence : float
        The probability with which all intervals hold.

    Raises
    ------
    SettingsError
        If a value is not allowed.
    """

    goal: str | None = parameter(None, OneOf(STUDY_GOALS))
    budget: str | None = parameter(None, BudgetText())
    methods: Any = parameter(None, ListOf(Phrase()))
    baseline: str | None = parameter(None, Phrase())
    metric_key: str | None = None
    trials: int | None = parameter(None, NON_NEGATIVE_INT)
    seeds: int | None = parameter(None, Interval(low=MIN_SEEDS, integer=True))
    min_effect: float | None = parameter(None, NON_NEGATIVE)
    confidence: float = parameter(0.95, Interval(low=0.5, high=1, open_high=True))

    def __post_init__(self) -> None:
        try:
            check_parameters(self)
        except ParameterError as error:
            asked = error.parameter == "goal"
            hint = format_suggestion(str(self.goal), STUDY_GOALS) if asked else ""
            raise SettingsError(f"{error}{hint}") from None
        for item in fields(self):
            if item.name in _REQUIRED and getattr(self, item.name) is None:
                allowed = item.metadata["allowed"].describe()
                raise SettingsError(f"{item.name} must be {allowed}, got nothing")

    @property
    def overrides(self) -> tuple[str, ...]:
        """What was said, as words of the command line."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = {i.name: given[i.name] for i in fields(self) if given[i.name] != i.default}
        return (f"budget={changed.pop('budget')}", *to_overrides(changed))

    @property
    def goal_kind(self) -> Goal:
        """The goal."""
        return Goal(str(self.goal))

    def resolve_min_effect(self, metric: Metric, baseline: float) -> float:
        """Return ``min_effect`` where the baseline scores so much."""
        if self.min_effect is not None:
            return self.min_effect
        return FRACTION_MARGIN if metric.is_fraction else RELATIVE_MARGIN * abs(baseline)

    def resolve_metric_key(self, metric: str) -> str:
        """Return what is compared, by dotted key below ``test``, where this metric is measured."""
        return self.metric_key or f"{GOAL_SCORES[self.goal_kind].format(metric=metric)}"
