"""Spare Hydra's compositions the work whose result is known: import this module before them."""

import copy
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.core_plugins.importlib_resources_config_source import (
    ImportlibResourcesConfigSource,
)
from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigResult

_create_interpolation_map = defaults_list._create_interpolation_map  # noqa: SLF001
_load_config = ImportlibResourcesConfigSource.load_config


def _create_map_if_needed(overrides: Any, items: list[Any], self_added: bool) -> Any:
    """Return the map of all choices, which only a choice with an interpolation needs, or None."""
    if any(not item.is_self() and item.is_interpolation() for item in items):
        return _create_interpolation_map(overrides, items, self_added)
    return None


_loaded_files: dict[tuple[str, str, str], ConfigResult] = {}


def _load_copy(self: ImportlibResourcesConfigSource, config_path: str) -> ConfigResult:
    """Return a copy of a file in a package, which Hydra changes as it composes."""
    key = (self.provider, self.path, config_path)
    if key not in _loaded_files:
        _loaded_files[key] = _load_config(self, config_path)
    loaded = copy.copy(_loaded_files[key])
    loaded.config = copy.deepcopy(loaded.config)
    return loaded


# Hydra copies the store of all schemas for every composition, which takes a quarter of its time.
# A process has one store, which only hands out copies, so a copy of the store can be itself.
# Launchers still pickle it, because their processes have other plugins.
ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]

# For every file Hydra builds a map of all choices, which takes a sixth of its time.
defaults_list._create_interpolation_map = _create_map_if_needed  # type: ignore[assignment]  # noqa: SLF001

# The files of a package do not change while a process runs, and to parse YAML takes a tenth.
ImportlibResourcesConfigSource.load_config = _load_copy  # type: ignore[method-assign]
