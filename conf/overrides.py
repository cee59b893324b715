"""Turn settings given in Python into Hydra overrides."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import PurePath
from typing import Any, get_type_hints

import numpy as np
from fedquorum.errors import SettingsError
from fedquorum.sanitize import sanitize
from hydra.core.override_parser.types import Override, Transformer

from conf.compose import get_default_settings, parse_override, quote
from conf.options import GROUPS, PARTS
from conf.schema.data import list_weights
from conf.schema.settings import Settings

_UNQUOTED_PATTERN = re.compile(
    r"(?!(null|true|false|inf|nan)$)[a-z_/][\w./-]*", re.ASCII | re.IGNORECASE
)
_TYPES = get_type_hints(Settings)
_GROUP_KEYS = {
    *(item.name for item in fields(Settings) if is_dataclass(_TYPES[item.name])),
    *(part.replace("/", ".") for part in PARTS),
}
"""The settings that have settings below them."""

PAIRS_KEY = "data.priority_weights"
"""A mapping with names of clients as keys: Hydra's grammar has no quotes around keys."""

_SWEEP_TYPES = (list, range, np.ndarray)


def to_overrides(settings: Mapping[str, Any], *, allow_sweeps: bool = False) -> tuple[str, ...]:
    """Return settings as Hydra overrides that compose to the same values.

    A mapping has settings below its key: ``{"client": {"lr": 0.1}}`` is ``client.lr=0.1``. The key
    ``name`` of a group chooses its option, as in ``{"strategy": {"name": "fedau"}}``.

    Parameters
    ----------
    settings : mapping
        Values by dotted key: None, booleans, numbers, texts, paths, NumPy scalars and arrays, and
        sequences and mappings of these. In a text, ``${...}`` is an interpolation.
    allow_sweeps : bool
        Whether a list, a range or an array holds the values of a sweep. A tuple is then one value.

    Raises
    ------
    SettingsError
        If a value cannot be a setting.
    """
    return tuple(
        _format_sweep(key, value)
        if allow_sweeps and isinstance(value, _SWEEP_TYPES)
        else _format_override(key, value)
        for key, value in _flatten(settings, "")
    )


def export_overrides(settings: Settings) -> tuple[str, ...]:
    """Return the overrides that compose to all these settings, without an experiment."""
    given = tuple(_flatten(asdict(settings), ""))
    chosen = tuple(_format_override(key, value) for key, value in given if key in (*GROUPS, *PARTS))
    options = ("experiment=custom", *chosen)
    defaults = dict(_flatten(get_default_settings(options), ""))
    changed = (_format_override(k, v) for k, v in given if repr(defaults.get(k)) != repr(v))
    return (*options, *(text for text in changed if text not in chosen))


def _flatten(settings: Mapping[str, Any], parent: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        key = f"{parent}.{name}" if parent else str(name)
        prefix, _, last = key.rpartition(".")
        group = prefix.replace(".", "/")
        if isinstance(value, Mapping) and key in _GROUP_KEYS:
            yield from _flatten(value, key)
        elif last == "name" and group in (*GROUPS, *PARTS):
            yield group, value
        else:
            yield key, value


def _format_sweep(key: str, values: Iterable[Any]) -> str:
    texts = [_format_override(key, value).partition("=")[2] for value in values]
    if not texts:
        raise SettingsError(f"{key} must have at least one value in a sweep, got none")
    return f"{key}={','.join(texts)}"


def _format_override(key: str, value: Any) -> str:
    builtin = _to_builtins(key, value)
    override = f"{key}={_format_value(builtin)}"
    if key == PAIRS_KEY and isinstance(builtin, dict) and not _can_round_trip(override, builtin):
        return _format_override(key, list_weights(builtin))
    if not _can_round_trip(override, builtin):
        raise SettingsError(
            f"{sanitize(key)} must be a setting, with a value that Hydra's grammar can express, "
            f"got {sanitize(repr(value))}"
        )
    return override


def get_sweep_values(override: Override) -> tuple[str, ...]:
    """Return the values of a sweep as texts from which Hydra reads the same values.

    Hydra's own texts lose necessary quotes, such as those around "Genève". Null several times is
    one null, because Hydra has no other form of a sweep over null alone.
    """
    values = tuple(override.sweep_iterator())
    is_null = bool(values) and all(value is None for value in values)
    return tuple(map(_format_sweep_value, values[:1] if is_null else values))


def _format_sweep_value(value: Any) -> str:
    text = Transformer.str(value)
    is_text = type(value) is str
    return quote(value) if is_text and not _can_round_trip(f"key={text}", value) else text


def _can_round_trip(override: str, value: Any) -> bool:
    """Say whether Hydra reads the same value back from an override."""
    try:
        return repr(parse_override(override).value()) == repr(value)
    except SettingsError:
        return False


def _to_builtins(key: str, value: Any) -> Any:
    """Return a value in the Python types in which Hydra reads it back."""
    match value:
        case None | bool():
            return value
        case np.generic() | np.ndarray():
            return _to_builtins(key, value.tolist())
        case str() | PurePath():
            return str(value)
        case int() | float():
            return int(value) if isinstance(value, int) else float(value)
        case list() | tuple() | range():
            return [_to_builtins(key, item) for item in value]
        case Mapping():
            return {_to_builtins(key, k): _to_builtins(key, v) for k, v in value.items()}
    raise SettingsError(
        f"{key} must be a number, a text, a boolean, None, or a list or mapping of these, got "
        f"{type(value).__name__} {sanitize(repr(value))}"
    )


def _format_value(builtin: Any) -> str:
    match builtin:
        case None:
            return "null"
        case bool():
            return str(builtin).lower()
        case str():
            return builtin if _UNQUOTED_PATTERN.fullmatch(builtin) else quote(builtin)
        case list():
            return f"[{','.join(map(_format_value, builtin))}]"
        case dict():
            return (
                "{"
                + ",".join(f"{key}:{_format_value(builtin)}" for key, builtin in builtin.items())
                + "}"
            )
    return repr(builtin)
