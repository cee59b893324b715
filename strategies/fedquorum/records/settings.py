"""A run's settings as its records hold them: YAML, nested, by dotted key, of older versions too.

Settings are written as YAML 1.1 by OmegaConf, which reads more texts as numbers than PyYAML does
(``1e-05``) and no text as a date. ``load_settings`` reads as it does. A record may come from
anybody, so aliases, other tags than JSON has types, and duplicate keys are refused.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from ..equality import same
from ..errors import RunError, one_line

_TYPES = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"""^(?:
     [-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
"""What OmegaConf's loader reads as a float."""

_RENAMED = {"own": "custom"}
"""Strategies that had another name in a version before."""

_AVERAGE = {True: "fedavg_priority", False: "fedavg"}
"""What says today what the setting ``strategy.priority_only`` said."""


class DamagedSettingsError(RunError):
    """A mistake in a text of settings, with its line."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def load_settings(text: str) -> dict[str, Any]:
    """Return the settings in a YAML text, nested, as they were written.

    Raises
    ------
    DamagedSettingsError
        If the text is no YAML, has what settings do not have, or is no mapping.
    """
    try:
        settings = _Loader(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = None if mark is None else mark.line + 1
        raise DamagedSettingsError(
            f"expected YAML that can be read, {error.problem}", line
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise DamagedSettingsError(f"expected YAML that can be read, {one_line(error)}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise DamagedSettingsError(f"expected settings by name, got {type(settings).__name__}")
    return settings


def dump_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, of which ``load_settings`` makes the same."""
    return yaml.dump(dict(settings), Dumper=_Dumper, sort_keys=False)


def masked(text: str) -> str:
    """Return a text without the passwords of URLs in it."""
    return _PASSWORD.sub(r"\1***@", text)


_PASSWORD = re.compile(r"(://[^/?#@\s:]*:)[^/?#\s]+@")
"""A password in a URL, with what is before it as a group."""


def flat_settings(settings: Mapping[Any, Any]) -> dict[str, Any]:
    """Return nested settings by dotted key such as ``client.lr``, as JSON has them."""
    return dict(_flat(json.loads(json.dumps(settings)), ""))


def _flat(node: Any, prefix: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(node, dict) or not node:
        yield prefix, node
        return
    for key, value in node.items():
        yield from _flat(value, f"{prefix}.{key}" if prefix else key)


def differences(
    then: Mapping[str, Any], now: Mapping[str, Any], concerns: Callable[[str], bool]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield every setting of a run that has another value now, and both values.

    A mapping is one value, with all its keys. A setting that the run lacks, because the run is
    older than the setting, is not compared; one that is no setting any more is None now.

    Parameters
    ----------
    then, now : mapping
        By dotted key, as ``flat_settings`` returns them.
    concerns : callable
        Says whether a setting such as ``data.columns`` is compared.
    """
    known = _whole(now)
    for setting, old in _whole(then).items():
        new = known.get(setting)
        if concerns(setting) and not same(old, new):
            yield setting, old, new


def _whole(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the mappings that they were, ascending: ``data.columns`` as one."""
    found: dict[str, Any] = {}
    for key in sorted(settings):
        group, *names = key.split(".", 2)
        setting = ".".join((group, *names[:1]))
        if names[1:]:
            found.setdefault(setting, {})[names[1]] = settings[key]
        else:
            found[setting] = settings[key]
    return found


def upgraded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an older version as this version has them; new ones stay as they are.

    Parameters
    ----------
    settings : mapping
        Nested, or by dotted key.
    """
    strategy = settings.get("strategy")
    if isinstance(strategy, Mapping):
        return {**settings, "strategy": _upgraded(strategy, "")}
    return _upgraded(settings, "strategy.")


def _upgraded(settings: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Upgrade the strategy's settings, whose keys begin with ``prefix``."""
    found = dict(settings)
    name, priority_only = f"{prefix}name", found.pop(f"{prefix}priority_only", None)
    if isinstance(priority_only, bool):
        found[name] = _AVERAGE[priority_only]
    if isinstance(found.get(name), str):
        found[name] = upgraded_strategy(found[name])
    whole = found.get(f"{prefix}fraction", 1.0) == 1.0
    whole = whole and found.get(f"{prefix}priority_draws") is None
    objective = "priority" if whole else "sampled"  # the same where all clients are asked
    selection = found.get("selection")
    if not prefix and isinstance(selection, Mapping):
        found["selection"] = _with_objective(selection, "", objective)
    found = _with_objective(found, f"{prefix}selection." if prefix else "", objective)
    return _with_objective(found, prefix, objective)


def _with_objective(settings: Mapping[str, Any], prefix: str, objective: str) -> dict[str, Any]:
    """Say of a gate that does not say it over which priority clients F was."""
    gated = f"{prefix}epsilon" in settings and f"{prefix}criterion" in settings
    added = {f"{prefix}objective": objective} if gated else {}
    return {**added, **settings}


def upgraded_strategy(name: str) -> str:
    """Return the name that the strategy of an older run has now."""
    return _RENAMED.get(name, name)


def upgraded_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides of an older run (``key=value``) as this version reads them."""
    parted = (word.partition("=") for word in words)
    return tuple(
        f"{key}={upgraded_strategy(value)}" if key == "strategy" else f"{key}{sign}{value}"
        for key, sign, value in parted
        if key.lstrip("+") != "strategy.priority_only"
    )


class _Dumper(yaml.SafeDumper):
    """Writes every value where it stands: a reader of records takes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


class _Loader(yaml.SafeLoader):
    """Reads what settings are made of, and nothing else."""

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        self.anchors.clear()  # so that every alias is undefined: few of them can be a whole memory
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
    if tag is None or tag in {_TAG + name for name in _TYPES}
}
_Loader.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, text) for tag, text in resolvers if tag.removeprefix(_TAG) in _TYPES]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
