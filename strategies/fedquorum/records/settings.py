"""Read and write a run's settings: as YAML, nested, and by dotted key.

OmegaConf writes settings as YAML 1.1. It reads more texts as numbers than PyYAML does (``1e-05``)
and no text as a date; ``load_settings`` reads as OmegaConf does. A record is untrusted, so aliases,
tags without a JSON type, and duplicate keys are refused.
"""

import copy
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import yaml

from ..errors import RunError, to_one_line
from ..rules.equality import is_same

DATA_LOCATION_KEYS = ("data.path", "data.test_path", "data.root", "data.cache_dir", "data.download")
"""The settings that say where data is. A resume may change them for data that it recognizes."""

_YAML_TYPES = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
_TAG_PREFIX = "tag:yaml.org,2002:"
_FLOAT_PATTERN = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
"""The texts that OmegaConf's loader reads as floats."""


class CorruptSettingsError(RunError):
    """A mistake in a text of settings, with its line."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def load_settings(text: str) -> dict[str, Any]:
    """Return the nested settings in a YAML text.

    Raises
    ------
    CorruptSettingsError
        If the text is not YAML, has values that settings do not have, or is no mapping.
    """
    return copy.deepcopy(_parse_settings(text))


@lru_cache(maxsize=8)  # a run reads what it wrote, and its report and its audit read it again
def _parse_settings(text: str) -> dict[str, Any]:
    try:
        settings = _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = None if mark is None else mark.line + 1
        raise CorruptSettingsError(
            f"expected YAML that can be read, {error.problem}", line
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptSettingsError(
            f"expected YAML that can be read, {to_one_line(error)}"
        ) from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise CorruptSettingsError(f"expected settings by name, got {type(settings).__name__}")
    return settings


def dump_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML; ``load_settings`` restores them."""
    return yaml.dump(dict(settings), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def mask_passwords(text: str) -> str:
    """Return a text without the passwords of URLs in it."""
    return _PASSWORD_PATTERN.sub(r"\1***@", text)


_PASSWORD_PATTERN = re.compile(r"(://[^/?#@\s:]*:)[^/?#\s]+@")
"""A password in a URL; the group is the text before it."""


def flatten_settings(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested settings by dotted key such as ``client.lr``, as JSON values."""
    return dict(_flatten(json.loads(json.dumps(settings)), ""))


def _flatten(node: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(node, dict) or not node:
        yield prefix, node
        return
    for key, value in node.items():
        yield from _flatten(value, f"{prefix}.{key}" if prefix else key)


def find_setting_changes(
    before: Mapping[str, Any], now: Mapping[str, Any], is_compared: Callable[[str], bool]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each setting whose value changed, with the old and the new value.

    A mapping is one value, with all its keys. A setting that the run lacks, because the run is
    older than the setting, is not compared; a setting that no longer exists is None now.

    Parameters
    ----------
    before, now : mapping
        By dotted key, as ``flatten_settings`` returns them.
    is_compared : callable
        Says whether a setting such as ``data.columns`` is compared.
    """
    current = _group_by_setting(now)
    for setting, old in _group_by_setting(before).items():
        new = current.get(setting)
        if is_compared(setting) and not is_same(old, new):
            yield setting, old, new


def _group_by_setting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with mappings such as ``data.columns`` regrouped, sorted by key."""
    found: dict[str, Any] = {}
    for key in sorted(settings):
        group, *names = key.split(".", 2)
        setting = ".".join((group, *names[:1]))
        if names[1:]:
            found.setdefault(setting, {})[names[1]] = settings[key]
        else:
            found[setting] = settings[key]
    return found


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, because a reader of records refuses them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(_TAG_PREFIX + "float", _FLOAT_PATTERN, list("-+0123456789."))


class _Loader(yaml.SafeLoader):
    """Reads the types of settings only."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        self.anchors.clear()  # makes every alias undefined: a few can expand to fill the memory
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key.value}", key.start_mark
                )
            names.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_constructors = {
    tag: constructor
    for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag in {_TAG_PREFIX + name for name in _YAML_TYPES}
}
_Loader.add_implicit_resolver(_TAG_PREFIX + "float", _FLOAT_PATTERN, list("-+0123456789."))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, text) for tag, text in resolvers if tag.removeprefix(_TAG_PREFIX) in _YAML_TYPES]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
