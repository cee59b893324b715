"""Derive the settings of the strategies, and of the parts of a composed strategy.

They follow from the tables of the library: a rule's fields are its settings, with their defaults
and ranges.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedquorum.named import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    COMPOSED,
    CUSTOM,
    NAMED,
    NONE,
    Named,
)
from fedquorum.parameters import POSITIVE
from fedquorum.participation import PARTICIPATIONS
from fedquorum.rule import parameter
from fedquorum.search import Between
from fedquorum.selection import Sampling
from omegaconf import MISSING

from conf.schema.derived import (
    Setting,
    custom_schema,
    make_schema,
    schemas_of,
    settings_of_rule,
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

    See ``fedquorum.composition``.
    """

    selection: PartSettings = MISSING
    weighting: PartSettings = MISSING
    participation: PartSettings = MISSING


def _shared(*, draws: bool, aggregates: bool) -> Iterator[Setting]:
    """Yield the settings of sampling, and the learning rate where the server's model moves."""
    for setting in settings_of_rule(Sampling):
        if draws or setting[0] != "priority_samples":
            yield setting
    if aggregates:
        yield "server_lr", float, parameter(1.0, POSITIVE, Between(0.01, 3.0))


def _named(named: Named) -> type[Any]:
    """Return the schema of a named strategy: the settings of all of its parts."""
    parts = [setting for part in named.parts for setting in settings_of_rule(part)]
    shared = _shared(draws=named.draws, aggregates=named.weighting.aggregates)
    return make_schema(StrategySettings, named.key, named.summary, (*shared, *parts))


ComposedSettings = make_schema(
    PartsSettings,
    COMPOSED,
    "Parts to choose; see ``fedquorum.composition``.",
    _shared(draws=True, aggregates=True),
)
STRATEGY_SCHEMAS: dict[str, type[Any]] = {
    **{named.key: _named(named) for named in NAMED.values()},
    CUSTOM: custom_schema(
        StrategySettings,
        "A weighting of the user's own, on all clients or a sample; see ``docs/own-rule.md``.",
        _shared(draws=False, aggregates=True),
    ),
}
"""The schema of every strategy by its name, beside ``composed``, which has a YAML file."""

_CUSTOM_PART = custom_schema(PartSettings, "A rule of the user's own; see ``docs/own-rule.md``.")
PART_SCHEMAS: dict[str, dict[str, type[Any]]] = {
    "selection": {**schemas_of(PartSettings, ALL_SELECTIONS.values()), CUSTOM: _CUSTOM_PART},
    "weighting": {**schemas_of(PartSettings, ALL_WEIGHTINGS.values()), CUSTOM: _CUSTOM_PART},
    "participation": {
        NONE: make_schema(PartSettings, NONE, "Nothing is corrected."),
        **schemas_of(PartSettings, PARTICIPATIONS.values()),
    },
}
"""The schemas of the parts of a composed strategy."""
