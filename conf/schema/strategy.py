"""Derive the settings of the strategies, and of the parts of a composed strategy.

They follow from the library's tables of rules: a rule's fields are its settings, with their
defaults and ranges.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedquorum.registry import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    COMPOSED,
    CUSTOM,
    NAMED_STRATEGIES,
    NONE,
    StrategyEntry,
)
from fedquorum.rules.parameters import POSITIVE, FloatRange
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.rule import parameter
from fedquorum.rules.selection import Sampling
from omegaconf import MISSING

from conf.schema.from_rules import (
    Setting,
    derive_settings,
    make_custom_schema,
    make_schema,
    make_schemas,
)


@dataclass
class StrategySettings:
    """The settings of every strategy."""

    name: str = MISSING


@dataclass
class PartSettings:
    """The settings of every part of ``strategy=composed``."""

    name: str = MISSING


@dataclass
class PartsSettings(StrategySettings):
    """The parts of a strategy: selection, weighting, and correction for participation.

    See ``fedquorum.rules.composition``.
    """

    selection: PartSettings = MISSING
    weighting: PartSettings = MISSING
    participation: PartSettings = MISSING


def _list_shared_settings(*, supports_replacement: bool) -> Iterator[Setting]:
    """Yield the settings of sampling, and the server's learning rate."""
    for setting in derive_settings(Sampling):
        if supports_replacement or setting[0] != "priority_samples":
            yield setting
    yield "server_lr", float, parameter(1.0, POSITIVE, FloatRange(0.01, 3.0))


def _make_strategy_schema(entry: StrategyEntry) -> type[Any]:
    """Return the schema of a named strategy: the settings of all of its parts."""
    parts = [setting for part in entry.rule_classes for setting in derive_settings(part)]
    shared = _list_shared_settings(supports_replacement=entry.supports_replacement)
    return make_schema(StrategySettings, entry.key, entry.summary, (*shared, *parts))


ComposedSettings = make_schema(
    PartsSettings,
    COMPOSED,
    "Parts to choose; see ``fedquorum.rules.composition``.",
    _list_shared_settings(supports_replacement=True),
)
STRATEGY_SCHEMAS: dict[str, type[Any]] = {
    **{entry.key: _make_strategy_schema(entry) for entry in NAMED_STRATEGIES.values()},
    CUSTOM: make_custom_schema(
        StrategySettings,
        "The user's own weighting, on all clients or a sample; see ``docs/own-rule.md``.",
        _list_shared_settings(supports_replacement=False),
    ),
}
"""The schema of every strategy by its name, beside ``composed``, which has a YAML file."""

_CUSTOM_PART_SCHEMA = make_custom_schema(
    PartSettings, "The user's own rule; see ``docs/own-rule.md``."
)
PART_SCHEMAS: dict[str, dict[str, type[Any]]] = {
    "selection": {
        **make_schemas(PartSettings, ALL_SELECTIONS.values()),
        CUSTOM: _CUSTOM_PART_SCHEMA,
    },
    "weighting": {
        **make_schemas(PartSettings, ALL_WEIGHTINGS.values()),
        CUSTOM: _CUSTOM_PART_SCHEMA,
    },
    "participation": {
        NONE: make_schema(PartSettings, NONE, "No correction."),
        **make_schemas(PartSettings, PARTICIPATIONS.values()),
    },
}
"""The schemas of the parts of a composed strategy."""
