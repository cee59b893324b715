"""Turn settings given in Python into words of the command line, which Hydra's grammar checks."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import PurePath
from typing import Any, get_type_hints

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.intake import shown
from hydra.core.override_parser.types import Override, Transformer

from conf.compose import parse_word, quoted, usual_settings
from conf.options import GROUPS, PARTS
from conf.schema.settings import Settings

_PLAIN = re.compile(r"(?!(null|true|false|inf|nan)$)[a-z_/][\w./-]*", re.ASCII | re.IGNORECASE)
_TYPES = get_type_hints(Settings)
_PLACES = {
    *(item.name for item in fields(Settings) if is_dataclass(_TYPES[item.name])),
    *(part.replace("/", ".") for part in PARTS),
}
"""The settings that have settings below them."""

_AXES = (list, range, np.ndarray)


def words_of(settings: Mapping[str, Any], *, axes: bool = False) -> tuple[str, ...]:
    """Return settings as Hydra overrides that compose to the same values.

    A mapping has settings below its key: ``{"client": {"lr": 0.1}}`` is ``client.lr=0.1``. The key
    ``name`` of a group chooses its option, as in ``{"strategy": {"name": "fedau"}}``.

    Parameters
    ----------
    settings : mapping
        Values by dotted key: None, booleans, numbers, texts, paths, NumPy scalars and arrays, and
        sequences and mappings of these. In a text, ``${...}`` is an interpolation.
    axes : bool
        Whether a list, a range or an array holds the values of a sweep. A tuple is then one value.

    Raises
    ------
    SettingsError
        If a value cannot be a setting.
    """
    return tuple(
        _axis(key, value) if axes and isinstance(value, _AXES) else _word(key, value)
        for key, value in _flat(settings, "")
    )


def words_of_settings(settings: Settings) -> tuple[str, ...]:
    """Return the words that compose to all these settings, without an experiment."""
    given = tuple(_flat(asdict(settings), ""))
    chosen = tuple(_word(key, value) for key, value in given if key in (*GROUPS, *PARTS))
    options = ("experiment=custom", *chosen)
    usual = dict(_flat(usual_settings(options), ""))
    changed = (_word(k, v) for k, v in given if repr(usual.get(k)) != repr(v))
    return (*options, *(word for word in changed if word not in chosen))


def _flat(settings: Mapping[str, Any], parent: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        key = f"{parent}.{name}" if parent else str(name)
        place, _, last = key.rpartition(".")
        group = place.replace(".", "/")
        if isinstance(value, Mapping) and key in _PLACES:
            yield from _flat(value, key)
        elif last == "name" and group in (*GROUPS, *PARTS):
            yield group, value
        else:
            yield key, value


def _axis(key: str, values: Iterable[Any]) -> str:
    texts = [_word(key, value).partition("=")[2] for value in values]
    if not texts:
        raise SettingsError(f"{key} must have at least one value in a sweep, got none")
    return f"{key}={','.join(texts)}"


def _word(key: str, value: Any) -> str:
    plain = _plain_value(key, value)
    word = f"{key}={_text(plain)}"
    if not _means(word, plain):
        raise SettingsError(
            f"{shown(key)} must be a setting, with a value that Hydra's grammar can express, got "
            f"{shown(repr(value))}"
        )
    return word


def swept_values(override: Override) -> tuple[str, ...]:
    """Return the values of a sweep as texts from which Hydra reads the same values.

    Hydra's own texts lose the quotes around what it cannot read without them, such as "Genève".
    """
    return tuple(map(_swept, override.sweep_iterator()))


def _swept(value: Any) -> str:
    text = Transformer.str(value)
    plain = type(value) is str
    return quoted(value) if plain and not _means(f"key={text}", value) else text


def _means(word: str, plain: Any) -> bool:
    """Say whether Hydra reads a value back from a word."""
    try:
        return repr(parse_word(word).value()) == repr(plain)
    except SettingsError:
        return False


def _plain_value(key: str, value: Any) -> Any:
    """Return a value as Python's own types, as which Hydra reads it back."""
    match value:
        case None | bool():
            return value
        case np.generic() | np.ndarray():
            return _plain_value(key, value.tolist())
        case str() | PurePath():
            return str(value)
        case int() | float():
            return int(value) if isinstance(value, int) else float(value)
        case list() | tuple() | range():
            return [_plain_value(key, item) for item in value]
        case Mapping():
            return {_plain_value(key, k): _plain_value(key, v) for k, v in value.items()}
    raise SettingsError(
        f"{key} must be a number, a text, a boolean, None, or a list or mapping of these, got "
        f"{type(value).__name__} {shown(repr(value))}"
    )


def _text(plain: Any) -> str:
    match plain:
        case None:
            return "null"
        case bool():
            return str(plain).lower()
        case str():
            return plain if _PLAIN.fullmatch(plain) else quoted(plain)
        case list():
            return f"[{','.join(map(_text, plain))}]"
        case dict():
            return "{" + ",".join(f"{key}:{_text(value)}" for key, value in plain.items()) + "}"
    return repr(plain)
