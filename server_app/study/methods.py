"""Select the methods that a study compares, and the search spaces of their parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fedquorum.errors import SettingsError
from fedquorum.registry import NAMED_STRATEGIES, StrategyEntry
from fedquorum.rules.description import Goal
from fedquorum.rules.parameters import Choices, FloatRange, RelativeRange
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from fedquorum.sanitize import abbreviate

from conf import Settings
from conf.options import format_suggestion, options
from server_app.study.settings import StudySettings

FEDPROX, FEDPROX_TITLE = "fedprox", "FedProx"
SEARCHED_GROUPS = ("client", "strategy", "server_optimizer")
"""The groups of settings that a study tunes; learning rates come first."""

SearchDimension = FloatRange | Choices


@dataclass(frozen=True)
class StudyMethod:
    """A method to compare.

    Parameters
    ----------
    name : str
        The name in the verdict: the strategy with its settings.
    overrides : tuple of str
        The Hydra overrides that define the method.
    summary : str
        A description in one line.
    """

    name: str
    overrides: tuple[str, ...]
    summary: str


def select_methods(study: StudySettings) -> tuple[StudyMethod, ...]:
    """Select the methods of a study, the baseline first.

    Raises
    ------
    SettingsError
        If a named method does not exist.
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
        _build_method(entry) for entry in NAMED_STRATEGIES.values() if goal in entry.reference_for
    )


def _list_goal_methods(goal: Goal) -> Iterator[StudyMethod]:
    """Yield the strategies that declare a goal.

    Few declare the average: for it, server optimizers and FedProx join the reference strategy.
    """
    yield from (_build_method(entry) for entry in NAMED_STRATEGIES.values() if entry.goal == goal)
    if goal == Goal.AVERAGE:
        reference = _get_reference_method(goal)
        _, *adaptive = SERVER_OPTIMIZERS.values()
        for rule in adaptive:
            override = f"server_optimizer={rule.description.key}"
            name = f"{reference.name} {override}"
            yield StudyMethod(name, (*reference.overrides, override), rule.description.summary)
        yield _build_fedprox()


def _build_fedprox() -> StudyMethod:
    return StudyMethod(
        FEDPROX,
        (*_get_reference_method(Goal.AVERAGE).overrides, "client.proximal_mu=0.01"),
        "FedProx: a proximal term keeps the clients' models near the server's.",
    )


def _replace_title(phrase: str) -> str:
    """Return the phrase with the key of its strategy in place of the displayed title."""
    titles = {entry.title: key for key, entry in NAMED_STRATEGIES.items()} | {
        FEDPROX_TITLE: FEDPROX
    }
    for title in sorted(titles, key=len, reverse=True):
        start, rest = phrase[: len(title)], phrase[len(title) :]
        if start.lower() == title.lower() and rest[:1] in {"", " "}:
            return f"{titles[title]}{rest}"
    return phrase


def _build_method(entry: StrategyEntry) -> StudyMethod:
    return StudyMethod(entry.key, (f"strategy={entry.key}",), entry.summary)


def _parse_method(setting: str, phrase: str) -> StudyMethod:
    """Parse a method from a phrase: a strategy and its settings.

    The strategy may be named as a study prints it, such as "FedAvg on priority clients".
    """
    phrase = _replace_title(phrase.strip())
    strategy, *overrides = phrase.split()
    if strategy == FEDPROX:
        fedprox = _build_fedprox()
        return StudyMethod(phrase, (*fedprox.overrides, *overrides), fedprox.summary)
    strategies = options("strategy")
    if strategy not in strategies:
        raise SettingsError(
            f"{setting} must begin with a strategy ({abbreviate(strategies, near=strategy)}), got "
            f"{strategy}" + format_suggestion(strategy, (*strategies, FEDPROX))
        )
    if wrong := [override for override in overrides if "=" not in override]:
        raise SettingsError(
            f"{setting} must have settings KEY=VALUE after a strategy, got {wrong[0]}"
        )
    summary = (
        NAMED_STRATEGIES[strategy].summary if strategy in NAMED_STRATEGIES and not overrides else ""
    )
    return StudyMethod(phrase, (f"strategy={strategy}", *overrides), summary)


def build_search_space(settings: Settings, user_keys: Sequence[str]) -> dict[str, SearchDimension]:
    """Build the search space of a method, by setting.

    It has the parameters that declare one, except those that the user set and those whose value is
    outside of their space: such a value is deliberate, for example 0 for a disabled term.

    Parameters
    ----------
    settings : Settings
        The method's settings.
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
    """Return the current values of the settings in a search space."""
    found = {}
    for key in space:
        node: Any = settings
        for name in key.split("."):
            node = getattr(node, name)
        found[key] = node
    return found
