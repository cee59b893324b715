"""Which methods a study compares, and where their parameters are looked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from fedquorum.errors import SettingsError
from fedquorum.named import NAMED, Named
from fedquorum.rule import Question
from fedquorum.search import Among, Around, Between
from fedquorum.server_optimizer import SERVER_OPTIMIZERS

from conf import Settings
from conf.options import nearest, options
from server_app.study.settings import StudySettings

FEDPROX = "fedprox"
SEARCHED = ("client", "strategy", "server_optimizer")
"""The settings in which a study looks for better values; learning rates come first."""

Searched = Between | Among


@dataclass(frozen=True)
class Method:
    """One method.

    Parameters
    ----------
    name : str
        Its name in the verdict: the strategy's, and what goes with it.
    words : tuple of str
        What makes it, as Hydra overrides.
    summary : str
        What it does, in one line.
    """

    name: str
    words: tuple[str, ...]
    summary: str


def methods_of(study: StudySettings) -> tuple[Method, ...]:
    """Return what a study compares, the plain baseline first.

    Raises
    ------
    SettingsError
        If a method that was named is none.
    """
    baseline = _plain(study.asked) if study.baseline is None else _named("baseline", study.baseline)
    if study.methods is None:
        others = [*_answering(study.asked)]
    else:
        others = [_named("methods", phrase) for phrase in study.methods]
    return (baseline, *(one for one in dict.fromkeys(others) if one.words != baseline.words))


def _plain(question: Question) -> Method:
    return next(_strategy(named) for named in NAMED.values() if question in named.plain_for)


def _answering(question: Question) -> Iterator[Method]:
    """Yield the strategies that say they answer a question.

    Of the question of averages those are few: there the server optimizers and FedProx come with the
    plain strategy.
    """
    yield from (_strategy(named) for named in NAMED.values() if named.answers == question)
    if question == Question.AVERAGE:
        plain = _plain(question)
        _, *adaptive = SERVER_OPTIMIZERS.values()
        for rule in adaptive:
            word = f"server_optimizer={rule.key}"
            yield Method(f"{plain.name} {word}", (*plain.words, word), rule.summary)
        summary = "FedProx: a proximal term keeps the clients' models near the server's."
        yield Method(FEDPROX, (*plain.words, "client.proximal_mu=0.01"), summary)


def _strategy(named: Named) -> Method:
    return Method(named.key, (f"strategy={named.key}",), named.summary)


def _named(setting: str, phrase: str) -> Method:
    """Return the method of a phrase: a strategy, and settings that go with it."""
    strategy, *words = phrase.split()
    known = options("strategy")
    if strategy not in known:
        raise SettingsError(
            f"{setting} must begin with a strategy ({', '.join(known)}), got {strategy}"
            + nearest(strategy, known)
        )
    if wrong := [word for word in words if "=" not in word]:
        raise SettingsError(
            f"{setting} must have settings KEY=VALUE after a strategy, got {wrong[0]}"
        )
    summary = NAMED[strategy].summary if strategy in NAMED and not words else ""
    return Method(phrase, (f"strategy={strategy}", *words), summary)


def space_of(settings: Settings, fixed: Sequence[str]) -> dict[str, Searched]:
    """Return where better values are looked for, by setting.

    These are the parameters whose declarations say so. One that was given by the user is left as
    it is, and so is one whose value lies outside of where it is looked for: such a value, as 0 for
    a term that is off, is a choice.

    Parameters
    ----------
    settings : Settings
        Those of the method, with its values so far.
    fixed : sequence of str
        The settings that the user gave.
    """
    found = {}
    for group in SEARCHED:
        for key, value, search in _searchable(getattr(settings, group), group):
            space = _around(value, search) if isinstance(search, Around) else search
            if key not in fixed and _contains(space, value):
                found[key] = space
    return found


def _searchable(node: Any, parent: str) -> Iterator[tuple[str, Any, Any]]:
    for item in fields(node):
        key, value = f"{parent}.{item.name}", getattr(node, item.name)
        if is_dataclass(value):
            yield from _searchable(value, key)
        elif item.metadata.get("search") is not None:
            yield key, value, item.metadata["search"]


def _around(value: Any, search: Around) -> Between:
    return Between(value / search.factor, value * search.factor)


def _contains(space: Searched, value: Any) -> bool:
    if isinstance(space, Among):
        return value in space.choices
    return isinstance(value, int | float) and space.low <= value <= space.high


def values_in(settings: Settings, space: Mapping[str, Searched]) -> dict[str, Any]:
    """Return the values that settings have where better ones are looked for."""
    found = {}
    for key in space:
        node: Any = settings
        for name in key.split("."):
            node = getattr(node, name)
        found[key] = node
    return found
