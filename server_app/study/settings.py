"""Declare a study's settings: the goal, the budget and optional choices."""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedquorum.errors import ParameterError, SettingsError
from fedquorum.rules.description import Goal
from fedquorum.rules.metrics import Metric
from fedquorum.rules.parameters import (
    NON_NEGATIVE,
    NON_NEGATIVE_INT,
    Flag,
    Interval,
    ListOf,
    OneOf,
    Range,
)
from fedquorum.rules.rule import check_parameters, parameter

from conf.options import format_suggestion
from conf.overrides import to_overrides
from server_app.study.paired_statistics import MIN_SEEDS

STUDY_GOALS = (Goal.PRIORITY, Goal.PARTICIPATION, Goal.FAIRNESS, Goal.AVERAGE)
SECONDS_PER_UNIT = {"s": 1.0, "min": 60.0, "h": 3600.0}
ABSOLUTE_MARGIN = 0.01
RELATIVE_MARGIN = 0.01
"""Default differences that count as none: absolute for metrics that are at most 1, and for others
relative to the baseline's score."""

GOAL_SCORES = {
    Goal.PRIORITY: "priority.{metric}",
    Goal.PARTICIPATION: "all.average",
    Goal.FAIRNESS: "all.worst10",
    Goal.AVERAGE: "all.{metric}",
}
"""The compared number of each goal, by dotted key: the priority clients' mean, the unweighted mean
over clients, the mean of the worst tenth, and the mean by data."""

_REQUIRED = ("goal", "budget")
_BUDGET_PATTERN = re.compile(r"(\d[\d,]*(?:\.\d+)?)\s*(s|min|h|runs|rounds|seconds|minutes|hours)")
_LONG_UNITS = {"seconds": "s", "minutes": "min", "hours": "h"}
"""The units as a study prints them."""


@dataclass(frozen=True)
class Budget:
    """The budget of a study.

    Parameters
    ----------
    text : str
        The budget as given.
    unit : {"seconds", "rounds"}
    amount : float
        The amount in ``unit``.
    """

    text: str
    unit: Literal["seconds", "rounds"]
    amount: float

    @classmethod
    def from_text(cls, text: str, rounds: int) -> "Budget":
        """Parse a budget such as ``20min`` or ``200runs``; a run counts as ``rounds``."""
        found = _BUDGET_PATTERN.fullmatch(text)
        if found is None:
            raise SettingsError(f"budget must be {BudgetText().describe()}, got {text}")
        number, unit = float(found[1].replace(",", "")), _LONG_UNITS.get(found[2], found[2])
        if unit in SECONDS_PER_UNIT:
            return cls(text, "seconds", number * SECONDS_PER_UNIT[unit])
        return cls(text, "rounds", number * (rounds if unit == "runs" else 1))

    def format_amount(self, amount: float) -> str:
        """Format an amount as ``12:30 min`` or ``400 rounds``."""
        return f"{amount:.0f} rounds" if self.unit == "rounds" else format_clock_time(amount)


def format_clock_time(seconds: float) -> str:
    """Format a time as ``12:30 min`` or ``1:02:05 h``."""
    hours, rest = divmod(round(seconds), 3600)
    minutes = f"{rest // 60:02}:{rest % 60:02}"
    return f"{hours}:{minutes} h" if hours else f"{minutes} min"


@dataclass(frozen=True)
class BudgetText(Range):
    """A number and its unit."""

    def describe(self) -> str:
        """Describe the allowed values."""
        return "a number above 0 with s, min, h, runs or rounds, such as 20min or 200runs"

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is a budget."""
        found = _BUDGET_PATTERN.fullmatch(value) if isinstance(value, str) else None
        return found is not None and float(found[1].replace(",", "")) > 0


@dataclass(frozen=True)
class Phrase(Range):
    """A strategy and its settings."""

    def describe(self) -> str:
        """Describe the allowed values."""
        return "a strategy, alone or with settings KEY=VALUE after it, in quotes"

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is a text with a strategy."""
        return isinstance(value, str) and bool(value.split())


@dataclass(frozen=True)
class StudySettings:
    """The settings of a study; see docs/study.md.

    Parameters
    ----------
    goal : str
        ``priority``, ``participation``, ``fairness`` or ``average``.
    budget : str
        Such as ``20min``, ``200runs`` or ``5000rounds``. With a budget in runs or rounds the result
        does not depend on the machine.
    methods : list of str, optional
        The methods to compare with the baseline; None for all that serve the goal.
    baseline : str, optional
        The reference method; None for the goal's default.
    metric_key : str, optional
        The number to compare, by dotted key below ``test`` in ``rounds.jsonl``, such as
        ``priority.worst10``; None for the goal's default.
    trials : int, optional
        The number of trials of each method; None for as many as half of the budget allows, 0 for no
        tuning.
    seeds : int, optional
        The maximum number of seeds; None for as many as the budget allows.
    min_effect : float, optional
        The largest difference that counts as none, in the metric's unit (fractions from 0 to 1);
        None for one point of a fraction and 0.01 of R2, and for a hundredth of the baseline's score
        otherwise.
    confidence : float
        The probability with which all intervals of all looks hold.
    budget_max : str, optional
        The budget up to which the same command may continue the study, in the same kind of unit;
        None for ``budget``. It plans the looks at the scores, see ``server_app.study.looks``.
        The probability with which all intervals hold.
    personal : bool
        Whether to compare the methods with personal models.

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
    budget_max: str | None = parameter(None, BudgetText())
    personal: bool = parameter(True, Flag())

    def __post_init__(self) -> None:
        try:
            check_parameters(self)
        except ParameterError as error:
            is_goal = error.parameter == "goal"
            hint = format_suggestion(str(self.goal), STUDY_GOALS) if is_goal else ""
            raise SettingsError(f"{error}{hint}") from None
        for item in fields(self):
            if item.name in _REQUIRED and getattr(self, item.name) is None:
                allowed = item.metadata["allowed"].describe()
                raise SettingsError(f"{item.name} must be {allowed}, got nothing")

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings that differ from their defaults, as overrides."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = {i.name: values[i.name] for i in fields(self) if values[i.name] != i.default}
        return (f"budget={changed.pop('budget')}", *to_overrides(changed))

    @property
    def goal_kind(self) -> Goal:
        """The goal."""
        return Goal(str(self.goal))

    def resolve_min_effect(self, metric: Metric, baseline: float) -> float:
        """Return ``min_effect``, or its default for the baseline's score ``baseline``."""
        if self.min_effect is not None:
            return self.min_effect
        # R2 has no origin: it is 0 for a model that only knows the mean, and negative for worse.
        if metric.high == 1.0:
            return ABSOLUTE_MARGIN
        return RELATIVE_MARGIN * abs(baseline)

    def resolve_metric_key(self, metric: str) -> str:
        """Return ``metric_key``, or the goal's default for this metric."""
        return self.metric_key or f"{GOAL_SCORES[self.goal_kind].format(metric=metric)}"
