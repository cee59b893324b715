"""Tests that schemas derive names, types, defaults and ranges from the rules."""

import pickle
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest
from fedquorum.registry import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    CUSTOM,
    NAMED_STRATEGIES,
    NONE,
    build_rules,
)
from fedquorum.rules.description import RuleDescription
from fedquorum.rules.parameters import POSITIVE
from fedquorum.rules.participation import PARTICIPATIONS
from fedquorum.rules.rule import Rule, RunContext, get_parameters, parameter
from fedquorum.rules.server_optimizer import SERVER_OPTIMIZERS
from hydra import compose as hydra_compose
from omegaconf import OmegaConf

from conf.compose import GROUPS, PARTS, compose_settings, options, start_hydra
from conf.schema.from_rules import derive_settings, make_schema
from conf.schema.option_schemas import BASE_SCHEMAS, OPTION_SCHEMAS
from conf.schema.rules import rules_from_settings
from conf.schema.strategy import StrategySettings

RULES: dict[str, dict[str, Any]] = {
    "strategy": NAMED_STRATEGIES,
    "strategy/selection": ALL_SELECTIONS,
    "strategy/weighting": ALL_WEIGHTINGS,
    "strategy/participation": PARTICIPATIONS,
    "server_optimizer": SERVER_OPTIMIZERS,
}
EVERY = [(group, key) for group, rules in RULES.items() for key in rules]


@pytest.mark.parametrize("group", RULES)
def test_every_rule_is_an_option(group: str) -> None:
    """Beside rules, only custom, composed and none are options."""
    assert {*options(group)} - {*RULES[group]} <= {CUSTOM, "composed", NONE}
    assert {*RULES[group]} <= {*options(group)}


@pytest.mark.parametrize(("group", "key"), EVERY)
def test_a_rules_parameters_are_its_settings(group: str, key: str) -> None:
    """Defaults and ranges are equal; a strategy has the parameters of all its parts."""
    rule = RULES[group][key]
    declared = rule.parameters if group == "strategy" else get_parameters(rule)
    settings = {item.name: item for item in fields(OPTION_SCHEMAS[group][key])}
    for item in declared:
        assert settings[item.name].default == item.default
        assert settings[item.name].metadata["allowed"] == item.metadata["allowed"]
    others = {"name", "fraction", "priority_samples", "server_lr", "lr_schedule"}
    assert settings.keys() - {item.name for item in declared} <= others
    assert settings["name"].default == key
    summary = rule.summary if group == "strategy" else rule.description.summary
    assert OPTION_SCHEMAS[group][key].__doc__ == summary


@pytest.mark.parametrize("key", NAMED_STRATEGIES)
def test_strategies_have_only_the_shared_settings_they_use(key: str) -> None:
    """All can sample and scale the step; only some support priority samples."""
    names = {item.name for item in fields(OPTION_SCHEMAS["strategy"][key])}
    assert {"fraction", "server_lr"} <= names
    assert ("priority_samples" in names) == (key in {"fedalign", "fedavg", "fedavg_priority"})


def test_annotations_may_be_strings() -> None:
    """They are, in a module with ``from __future__ import annotations``."""

    @dataclass(frozen=True)
    class Power(Rule):
        description = RuleDescription("power")
        a: "float | None" = parameter(None, POSITIVE)

    [(name, kind, item)] = derive_settings(Power)
    assert (name, kind, item.default) == ("a", float | None, None)


def test_a_parameter_cannot_reuse_a_shared_name() -> None:
    """The names of the settings of all strategies are reserved."""
    with pytest.raises(ValueError, match="clash needs parameters with other names, got name, name"):
        make_schema(StrategySettings, "clash", "", [("name", str, parameter("", POSITIVE))])


def test_options_are_those_that_hydra_finds() -> None:
    """Hydra finds the options in our source and in files, also for globs of sweeps."""
    with start_hydra() as started:
        for group in (*GROUPS, *PARTS, "client"):
            assert sorted(started.config_loader.get_group_options(group)) == options(group)
        assert hydra_compose("config", ["data=cifar10"]).data.shard_size == 416


def test_no_file_repeats_its_schema() -> None:
    """An option with a YAML file has no other schema."""
    for group, stored in OPTION_SCHEMAS.items():
        assert len(options(group)) == len({*options(group)})
        files = {*options(group)} - {*stored}
        allowed = {
            "strategy": {"composed"},
            "data": {
                *("celeba", "cifar10", "cifar100", "cinic10", "isic2019"),
                *("mqp", "shakespeare", "speech_commands"),
            },
        }
        assert files == allowed.get(group, set())
    for base in BASE_SCHEMAS.values():
        assert all(item.default is not MISSING for item in fields(base))


@pytest.mark.parametrize("key", NAMED_STRATEGIES)
def test_default_settings_build_the_named_strategy(key: str) -> None:
    """Without changes, settings give the library's strategy for 100 rounds."""
    settings = compose_settings("custom", f"strategy={key} rounds=100 seed=5").settings
    context = RunContext(num_rounds=100, seed=5)
    assert rules_from_settings(settings) == build_rules({"name": key}, {"name": "sgd"}, context)


def test_composing_does_not_import_a_custom_rule() -> None:
    """A node composes the settings of a run, too, and may not have the rule."""
    overrides = (
        "strategy=composed strategy/selection=custom strategy.selection.path=no.such.Selection "
        "strategy/weighting=custom strategy.weighting.path=./nowhere.py:Weighting "
        "'strategy.weighting.args={power: 2.0}' "
        "server_optimizer=custom server_optimizer.path=/nowhere/step.py:Step"
    )
    settings = compose_settings("", overrides).settings
    written = OmegaConf.structured(settings)
    assert written.strategy.weighting.path == "./nowhere.py:Weighting"
    assert written.strategy.weighting.args == {"power": 2.0}


@pytest.mark.parametrize(
    "overrides", ["", "strategy/participation=fedau strategy.participation.cutoff=5"]
)
def test_a_composition_with_a_bound_may_be_private(overrides: str) -> None:
    """The average over all has a bound, also with FedAU's correction with a cutoff."""
    settings = compose_settings(
        "",
        "strategy=composed strategy/selection=everyone strategy/weighting=average_all "
        f"privacy=dp_fixed_server {overrides}",
    ).settings
    assert rules_from_settings(settings).compute_max_share(4) == (5 / 4 if overrides else 1 / 4)


@pytest.mark.parametrize("name", options("strategy"))
def test_settings_can_be_sent_to_another_process(name: str) -> None:
    """Pickle finds the schemas derived from the rules."""
    overrides = {
        "custom": "strategy.path=fedquorum.rules.weighting.TiltedLoss",
        "known_statistics": "availability=bernoulli",
    }
    settings = compose_settings("custom", f"strategy={name} {overrides.get(name, '')}").settings
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - made a line above
