"""Write settings of tables as one types them on the command line."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,14}")
_RESERVED = {"true", "false", "null", "nan", "inf"}
"""Words that Hydra reads as other values than texts."""


def format_override(key: str, value: Any) -> str:
    """Return ``data.key=value`` quoted for Hydra and, if necessary, for the shell.

    Hydra knows no quotes around the keys of a mapping. A mapping ``{column: {old: new}}`` whose
    keys need quotes is therefore written as a list of ``[column, old, new]``.
    """
    if isinstance(value, Mapping) and not all(map(_is_bare_key, _list_keys(value))):
        value = [[name, old, new] for name, pairs in value.items() for old, new in pairs.items()]
    text = f"data.{key}={_format(value)}"
    return text if re.fullmatch(r"[\w.,=\[\]-]+", text) else shlex.quote(text)


def _list_keys(value: Mapping[Any, Mapping[Any, Any]]) -> list[Any]:
    return [*value, *(old for pairs in value.values() for old in pairs)]


def _is_bare_key(key: Any) -> bool:
    return not isinstance(key, str) or _is_bare(key)


def _is_bare(text: str) -> bool:
    is_name = _BARE.fullmatch(text) is not None and text.lower() not in _RESERVED
    return is_name or _WHOLE.fullmatch(text) is not None


def _format(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_format(key)}: {_format(each)}" for key, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(_format, value)) + "]"
    if not isinstance(value, str):
        return str(value)
    if _is_bare(value):
        return value
    # Hydra treats backslashes as escapes only before a quote or before the end.
    escaped = re.sub(r'(\\*)("|\Z)', lambda m: m[1] * 2 + (m[2] and f"\\{m[2]}"), value)
    return f'"{escaped}"'


def list_replacements(value: Any) -> dict[str, dict[Any, Any]]:
    """Return ``data.replace`` as ``{column: {old: new}}``; the settings may list its triples."""
    if isinstance(value, Mapping):
        return {name: {**pairs} for name, pairs in value.items()}
    replacements: dict[str, dict[Any, Any]] = {}
    for name, old, new in value or ():
        replacements.setdefault(name, {})[old] = new
    return replacements
