"""What Hydra says of a mistake, in one line: the setting, what is allowed, and the value."""

import re
import shlex
from collections.abc import Callable, Sequence

from hydra.errors import OverrideParseException

from conf.options import PARTS, nearest, options

SettingsAt = Callable[[Sequence[str], str], Sequence[str]]

_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (
        r"Could not find 'hydra/(\w+)/([^']+)'",
        lambda m: (
            f"hydra/{m[1]} must be one of {', '.join(options(f'hydra/{m[1]}'))} or of an installed "
            f"Hydra plugin's, got {m[2]!r}" + nearest(m[2], options(f"hydra/{m[1]}"))
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
        r"Error parsing override '([^'=]+)'\s+missing EQUAL",
        lambda m: f"a setting is given as NAME=VALUE, got {m[1]!r} without a value",
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
        lambda m: f"{m[1]} must be one value ([..] for a list, -m for a sweep), got {m[2]}",
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
    """Say in one line what Hydra says in several: the setting, what is allowed, the value.

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
    if match := _UNKNOWN.search(text):
        return _unknown_key(match[1] or match[2], words, settings_at)
    for pattern, explanation in _EXPLANATIONS:
        if match := re.search(pattern, text):
            return explanation(match)
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    return " ".join(text.split())


def not_a_setting(parent: str, name: str, known: Sequence[str]) -> str:
    """Return that ``parent`` has no setting of a name, and which it has."""
    place = f"{parent} has" if parent else "there are"
    key = f"{parent}.{name}" if parent else name
    return f"{key} is not a setting; {place} {', '.join(known) or 'none'}, got {name!r}" + nearest(
        name, known
    )


def _unreadable(word: str) -> str:
    """Return how to write a word whose value has letters or signs that Hydra does not read."""
    key, equals, value = word.partition("=")
    if not equals or not key.isascii():
        return f"a setting is given as NAME=VALUE, got {word!r}"
    word = f"{key}={_quoted(value)}"
    typed = "" if set(value) & set('{"') else f": type {shlex.quote(word)}"
    return (
        f"{key} must be in quotes if it has letters such as é or signs such as ( and =, got "
        f"{value}{typed}"
    )


def _quoted(value: str) -> str:
    """Return a text, or each text of a list, in quotes."""
    if not value.startswith("["):
        return f'"{value}"'
    texts = (text.strip().strip("'") for text in value.strip("[]").split(","))
    return f"[{','.join(map(_quoted, texts))}]"


def _not_an_option(group: str, name: str) -> str:
    known = options(group)
    elsewhere = [other for other in PARTS if group in PARTS and name in options(other)]
    hint = f" ({elsewhere[0]} has it)" if elsewhere else nearest(name, known)
    return f"{group} must be one of {', '.join(known)}, got {name!r}{hint}"


def _unknown_key(key: str, words: Sequence[str], settings_at: SettingsAt) -> str:
    if key in PARTS:
        return f"{key} is of strategy=composed only, got another strategy"
    setting_words = [word for word in words if _sets(word, key)]
    others = [word for word in words if word not in setting_words]
    parent, _, name = key.rpartition(".")
    chosen = [word for word in others if word.startswith(f"{parent}=")]
    if chosen and not setting_words:
        return f"{key} is set by the experiment, but {chosen[-1]} has no such setting"
    return not_a_setting(parent, name, settings_at(others, parent) if setting_words else ())


def _sets(word: str, key: str) -> bool:
    """Say whether a word sets ``key``, by itself or in a mapping; ``strategy=fedau`` does not."""
    target, _, value = word.lstrip("+~").partition("=")
    return key == target or (value.startswith("{") and key.startswith(f"{target}."))
