"""Merge the settings of options as Hydra composes them, in a tenth of its time.

Hydra reads its own settings and every file again for each composition, and resolves the defaults
lists in general. The files of ``conf`` need less: a group's option is a schema or a file, which
inherits from others and chooses parts; an experiment overrides options and values; and
``tuning.yaml`` has its values for single options.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from conf.schema.register import BASE_SCHEMAS, OPTION_SCHEMAS, TUNING, TUNING_GROUPS
from conf.schema.settings import Settings

EXPERIMENT = "experiment"
_FOLDER = Path(__file__).parent.parent
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {**OPTION_SCHEMAS, "base": BASE_SCHEMAS}
_OVERRIDE = "override /"
_NAME_PATTERN = re.compile(r"\w+(/\w+)*", re.ASCII)


@dataclass(frozen=True)
class _File:
    """A file of settings: its defaults list, with ``_self_``, and its own values."""

    defaults: tuple[Any, ...]
    values: DictConfig


def merge_options(given: Mapping[str, str]) -> tuple[DictConfig, str] | None:
    """Return typed settings and the experiment's name, or None where Hydra must compose.

    Parameters
    ----------
    given : mapping from str to str
        The chosen options by group, such as ``experiment`` or ``strategy/weighting``.

    Raises
    ------
    OmegaConfBaseException
        If an experiment sets a value that a chosen option does not have.
    """
    defaults = _read_file("config").defaults
    first = {key: name for item in defaults if isinstance(item, dict) for key, name in item.items()}
    experiment = given.get(EXPERIMENT, first[EXPERIMENT])
    if not _has_option(EXPERIMENT, experiment):
        return None
    chosen = dict(given)
    _add_overrides(f"{EXPERIMENT}/{experiment}", chosen)
    groups = {key: chosen.pop(key, name) for key, name in first.items() if key in _SCHEMAS}
    parts = {key: chosen.pop(key) for key in [*chosen] if key.startswith("strategy/")}
    is_known = all(_has_option(*item) for item in (*groups.items(), *parts.items()))
    if not is_known or chosen.keys() - {EXPERIMENT} or (parts and groups["strategy"] != "composed"):
        return None
    layers: list[Any] = [_read_file("config").values]
    layers += _list_layers(f"{EXPERIMENT}/{experiment}", "", parts)
    tuning = TUNING.get(experiment, {})
    layers += (tuning.get(group, {}).get(groups[group], {}) for group in TUNING_GROUPS)
    chosen_options = (_list_layers(f"{key}/{name}", key, parts) for key, name in groups.items())
    settings = copy.deepcopy(_get_empty_settings())
    settings.merge_with(*chain.from_iterable(chosen_options), *layers)
    return settings, experiment


def _has_option(group: str, name: str) -> bool:
    if name in _SCHEMAS.get(group, ()):
        return True
    is_name = _NAME_PATTERN.fullmatch(name) is not None
    return is_name and (_FOLDER / group / f"{name}.yaml").is_file()


def _add_overrides(path: str, chosen: dict[str, str]) -> None:
    """Add the options that an experiment overrides, and then those that it inherits."""
    defaults = _read_file(path).defaults
    for item in defaults:
        if isinstance(item, dict):
            ((key, name),) = item.items()
            chosen.setdefault(key.removeprefix(_OVERRIDE), name)
    for item in reversed(defaults):
        if isinstance(item, str) and item != "_self_":
            _add_overrides(item.removeprefix("/"), chosen)


def _list_layers(path: str, package: str, parts: Mapping[str, str]) -> Iterator[Any]:
    """Yield the settings of a schema, or of a file and of all from which it inherits, in order.

    Parameters
    ----------
    path : str
        The group and the name of an option.
    package : str
        The key of its settings; "" for those of an experiment.
    parts : mapping from str to str
        The chosen parts of a strategy by group.
    """
    group, _, name = path.rpartition("/")
    if name in _SCHEMAS.get(group, ()):
        yield _get_schema(group, name, package)
        return
    file = _read_file(path)
    for item in file.defaults:
        if item == "_self_":
            yield _embed(file.values, package)
        elif isinstance(item, str):
            inherited = item.removesuffix("@_here_")
            absolute = inherited.removeprefix("/") if inherited[0] == "/" else f"{group}/{item}"
            yield from _list_layers(absolute, package, parts)
        else:
            ((part, default),) = item.items()
            if not part.startswith(_OVERRIDE):
                key = f"{group}/{part}"
                yield from _list_layers(f"{key}/{parts.get(key, default)}", f"{package}.{part}", {})


@cache
def _get_empty_settings() -> DictConfig:
    settings: DictConfig = OmegaConf.structured(Settings)
    return settings


@cache
def _get_schema(group: str, name: str, package: str) -> DictConfig:
    return _embed(OmegaConf.structured(_SCHEMAS[group][name]), package)


def _embed(values: DictConfig, package: str) -> DictConfig:
    """Return settings below the key that they belong to."""
    if not package:
        return values
    embedded = OmegaConf.create()
    OmegaConf.update(embedded, package, values, merge=False)
    return embedded


@cache
def _read_file(path: str) -> _File:
    values = OmegaConf.create((_FOLDER / f"{path}.yaml").read_text(encoding="utf-8"))
    assert isinstance(values, DictConfig)
    values.pop("hydra", None)
    listed: Any = OmegaConf.to_container(values.pop("defaults", OmegaConf.create([])))
    return _File((*listed, *(() if "_self_" in listed else ("_self_",))), values)
