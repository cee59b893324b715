"""Which methods a study compares, and where their parameters are looked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fedquorum.errors import SettingsError
from fedquorum.named import NAMED_STRATEGIES, StrategyEntry
from fedquorum.rule import Goal
from fedquorum.search import Choices, FloatRange, RelativeRange
from fedquorum.server_optimizer import SERVER_OPTIMIZERS

from conf import Settings
from conf.options import format_suggestion, options
from server_app.study.settings import StudySettings

FEDPROX = "fedprox"
SEARCHED_GROUPS = ("client", "strategy", "server_optimizer")
"""The settings in which a study looks for better values; learning rates come first."""

SearchDimension = FloatRange | Choices


@dataclass(frozen=True)
class StudyMethod:
    """One method.

    Parameters
    ----------
    name : str
        Its name in the verdict: the strategy's, and what goes with it.
    overrides : tuple of str
        What makes it, as Hydra overrides.
    summary : str
        What it does, in one line.
    """

    name: str
    overrides: tuple[str, ...]
    summary: str


def select_methods(study: StudySettings) -> tuple[StudyMethod, ...]:
    """Return what a study compares, the plain baseline first.

    Raises
    ------
    SettingsError
        If a method that was named is none.
    """
    baseline = (
        _get_reference_method(study.goal_kind)
        if study.baseline is None
        else _parse_method("baseline", study.baseline)
    )
    if study.methods is None:
        others = [*_list_goal_methods(study.goal_kind)]
    else:
        others = [_parse_method("methods", phrase) for phrase in study.methods]
    return (
        baseline,
        *(one for one in dict.fromkeys(others) if one.overrides != baseline.overrides),
    )


def _get_reference_method(goal: Goal) -> StudyMethod:
    return next(
        _build_method(named) for named in NAMED_STRATEGIES.values() if goal in named.reference_for
    )


def _list_goal_methods(goal: Goal) -> Iterator[StudyMethod]:
    """Yield the strategies that say they answer a question.

    Of the question of averages those are few: there the server optimizers and FedProx come with the
    plain strategy.
    """
    yield from (_build_method(named) for named in NAMED_STRATEGIES.values() if named.goal == goal)
    if goal == Goal.AVERAGE:
        plain = _get_reference_method(goal)
        _, *adaptive = SERVER_OPTIMIZERS.values()
        for rule in adaptive:
            word = f"server_optimizer={rule.key}"
            yield StudyMethod(f"{plain.name} {word}", (*plain.overrides, word), rule.summary)
        summary = "FedProx: a proximal term keeps the clients' models near the server's."
        yield StudyMethod(FEDPROX, (*plain.overrides, "client.proximal_mu=0.01"), summary)


def _build_method(entry: StrategyEntry) -> StudyMethod:
    return StudyMethod(entry.key, (f"strategy={entry.key}",), entry.summary)


def _parse_method(setting: str, phrase: str) -> StudyMethod:
    """Return the method of a phrase: a strategy, and settings that go with it."""
    strategy, *words = phrase.split()
    known = options("strategy")
    if strategy not in known:
        raise SettingsError(
            f"{setting} must begin with a strategy ({', '.join(known)}), got {strategy}"
            + format_suggestion(strategy, known)
        )
    if wrong := [word for word in words if "=" not in word]:
        raise SettingsError(
            f"{setting} must have settings KEY=VALUE after a strategy, got {wrong[0]}"
        )
    summary = (
        NAMED_STRATEGIES[strategy].summary if strategy in NAMED_STRATEGIES and not words else ""
    )
    return StudyMethod(phrase, (f"strategy={strategy}", *words), summary)


def build_search_space(settings: Settings, user_keys: Sequence[str]) -> dict[str, SearchDimension]:
    """Return where better values are looked for, by setting.

    These are the parameters whose declarations say so. One that was given by the user is left as
    it is, and so is one whose value lies outside of where it is looked for: such a value, as 0 for
    a term that is off, is a choice.

    Parameters
    ----------
    settings : Settings
        Those of the method, with its values so far.
    user_keys : sequence of str
        The settings that the user gave.
    """
    found = {}
    for group in SEARCHED_GROUPS:
        for key, value, search in _find_searchable(getattr(settings, group), group):
            space = (
                _build_range_around(value, search) if isinstance(search, RelativeRange) else search
            )
            if key not in user_keys and _contains(space, value):
                found[key] = space
    return found


def _find_searchable(node: Any, parent: str) -> Iterator[tuple[str, Any, Any]]:
    for item in fields(node):
        key, value = f"{parent}.{item.name}", getattr(node, item.name)
        if is_dataclass(value):
            yield from _find_searchable(value, key)
        elif item.metadata.get("search") is not None:
            yield key, value, item.metadata["search"]


def _build_range_around(value: Any, search: RelativeRange) -> FloatRange:
    return FloatRange(value / search.factor, value * search.factor)


def _contains(space: SearchDimension, value: Any) -> bool:
    if isinstance(space, Choices):
        return value in space.choices
    return isinstance(value, int | float) and space.low <= value <= space.high


def get_current_values(settings: Settings, space: Mapping[str, SearchDimension]) -> dict[str, Any]:
    """Return the values that settings have where better ones are looked for."""
    found = {}
    for key in space:
        node: Any = settings
        for name in key.split("."):
            node = getattr(node, name)
        found[key] = node
    return found
