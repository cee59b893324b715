"""Explain in one line what Hydra refuses: the setting, what is allowed, the value, what to type."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields

from hydra.errors import OverrideParseException

from conf.grammar import ungrammatical
from conf.options import GROUPS, PARTS, nearest, options
from conf.schema.register import OPTIONS

SettingsAt = Callable[[Sequence[str], str], Sequence[str]]

_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (
        r"Could not find 'hydra/(\w+)/([^']+)'",
        lambda m: (
            f"hydra/{m[1]} must be one of {', '.join(options(f'hydra/{m[1]}'))}, or an option of "
            f"an installed Hydra plugin, got {m[2]!r}" + nearest(m[2], options(f"hydra/{m[1]}"))
        ),
    ),
    (
        r"Could not find '(strategy/\w+)/([^']+)'",
        lambda m: _not_an_option(m[1], m[2]),
    ),
    (
        r"Could not find '(\w+)/([^']+)'",
        lambda m: _not_an_option(m[1], m[2]),
    ),
    (
        r"Value (.+) of type '\w+' could not be converted to (\w+)\s+full_key: (\S+)",
        lambda m: f"{m[3]} must be {_KINDS.get(m[2], m[2])}, got {m[1]}",
    ),
    (
        r"field '[^']+' is not Optional\s+full_key: (\S+)",
        lambda m: f"{m[1]} must have a value, got null",
    ),
    (
        r"Ambiguous value for argument '([^=]+)=([^']*)'",
        lambda m: _several(m[1], m[2]),
    ),
    (
        r"does not support deletion\s+full_key: (\S+)",
        lambda m: f"{m[1]} must have a value, got ~{m[1]} (type {m[1]}=VALUE)",
    ),
)
_UNKNOWN = re.compile(
    r"Key '[^']+' (?:is not in struct|not in '\w+')\s+full_key: (\S+)"
    r"|Could not override '([^']+)'.*No match in the defaults list",
    re.DOTALL,
)


def explain(
    error: Exception, words: Sequence[str] = (), settings_at: SettingsAt = lambda *_: ()
) -> str:
    """Explain an error of Hydra in one line: the setting, what is allowed, the value.

    Parameters
    ----------
    error : Exception
        Hydra's or OmegaConf's.
    words : sequence of str
        What was composed.
    settings_at : callable
        Returns the names of the settings that words compose to, below a key.
    """
    text = f"{error.__cause__}\n{error}" if error.__cause__ else str(error)
    if isinstance(error, OverrideParseException):
        return ungrammatical(error.override, text)
    if nameless := next((word for word in words if word.startswith("=")), ""):
        return ungrammatical(nameless, text)
    if match := _UNKNOWN.search(text):
        return _unknown_key(match[1] or match[2], words, settings_at)
    for pattern, explanation in _EXPLANATIONS:
        if match := re.search(pattern, text):
            return explanation(match)
    if problem := next(filter(None, map(_not_one_option, words)), ""):
        return problem
    return " ".join(text.split())


def not_a_setting(parent: str, name: str, known: Sequence[str]) -> str:
    """Return the error of an unknown setting below ``parent``: the known ones, and a likely one."""
    place = f"{parent} has" if parent else "there are"
    key = f"{parent}.{name}" if parent else name
    shown = [one for one in known if not one.startswith("_")]
    problem = f"{key} is not a setting; {place} {', '.join(shown) or 'none'}, got {name!r}"
    return problem + (_elsewhere(parent, name) or nearest(name, shown))


def _elsewhere(parent: str, name: str) -> str:
    """Return " (...)" with the options of a group that have a setting, "" if none has it."""
    group = parent.replace(".", "/")
    if (part := f"{group}/{name}") in PARTS:
        return f" (type strategy=composed {part}=NAME)"
    schemas = OPTIONS.get(group, {}) if group in (*GROUPS, *PARTS) else {}
    having = sorted(key for key, made in schemas.items() if name in {f.name for f in fields(made)})
    if not having:
        return ""
    return f" ({group}={', '.join(having)} {'have' if len(having) > 1 else 'has'} it)"


def _not_an_option(group: str, name: str) -> str:
    known = options(group)
    elsewhere = [other for other in PARTS if group in PARTS and name in options(other)]
    hint = f" ({elsewhere[0]} has it)" if elsewhere else nearest(name, known)
    return f"{group} must be one of {', '.join(known)}, got {name!r}{hint}"


def _several(key: str, values: str) -> str:
    """Return that a setting takes one value where several are given, and what to type for them."""
    of_group = key in ("experiment", *GROUPS, *PARTS)
    kind = "one option" if of_group else "one value"
    as_list = "" if of_group else f"'{key}=[{values}]' for a list, or "
    return (
        f"{key} must be {kind}, got {values} (type {as_list}fedquorum -m {key}={values} for a "
        "sweep)"
    )


def _not_one_option(word: str) -> str:
    """Return what is wrong with a word that gives a group another value than an option's name."""
    group, _, value = word.lstrip("+~").partition("=")
    if group not in ("experiment", *GROUPS, *PARTS):
        return ""
    if word.startswith("~"):
        return f"{group} must be one of {', '.join(options(group))}, got {word}"
    if value.startswith("["):
        return _several(group, value.strip("[] ").replace(" ", ""))
    return "" if value in options(group) else _not_an_option(group, value)


def _unknown_key(key: str, words: Sequence[str], settings_at: SettingsAt) -> str:
    if key in PARTS:
        return (
            f"{key} needs strategy=composed, got another strategy (type strategy=composed "
            f"{key}=NAME)"
        )
    setting_words = [word for word in words if _sets(word, key)]
    others = [word for word in words if word not in setting_words]
    parent, _, name = key.rpartition(".")
    chosen = [word for word in others if word.startswith(f"{parent}=")]
    if chosen and not setting_words:
        return f"{key} is set by the experiment, but {chosen[-1]} has no such setting"
    known = settings_at(others, parent) if setting_words or not parent else ()
    return not_a_setting(parent, name, known)


def _sets(word: str, key: str) -> bool:
    """Say whether a word sets ``key``, by itself or in a mapping; ``strategy=fedau`` does not."""
    target, _, value = word.lstrip("+~").partition("=")
    return key == target or (value.startswith("{") and key.startswith(f"{target}."))
