"""Spare Hydra's compositions the work whose result is known: import this module before them."""

from typing import Any

from hydra._internal import defaults_list
from hydra.core.config_store import ConfigStore

_create_interpolation_map = defaults_list._create_interpolation_map  # noqa: SLF001


def _create_map_if_needed(overrides: Any, items: list[Any], self_added: bool) -> Any:
    """Return the map of all choices, which only a choice with an interpolation needs, or None."""
    if any(not item.is_self() and item.is_interpolation() for item in items):
        return _create_interpolation_map(overrides, items, self_added)
    return None


# Hydra copies the store of all schemas for every composition, which takes a quarter of its time.
# A process has one store, which only hands out copies, so a copy of the store can be itself.
# Launchers still pickle it, because their processes have other plugins.
ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]

# For every file Hydra builds a map of all choices, which takes a sixth of its time.
defaults_list._create_interpolation_map = _create_map_if_needed  # type: ignore[assignment]  # noqa: SLF001
