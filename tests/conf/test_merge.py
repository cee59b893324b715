"""Merging options: the same settings as Hydra's, or Hydra composes them."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf import SettingsError
from conf.compose import GROUPS, PARTS, _compose_with_types, options
from conf.schema.merge import merge_options

EXPERIMENTS = options("experiment")


def _describe(node: Any, key: str = "") -> Iterator[tuple[Any, ...]]:
    """Yield the key, the types, the flags and the value of every node, in their order."""
    if not isinstance(node, Container):
        yield key, type(node), repr(node._value()), node._metadata.optional, node._metadata.flags
        return
    about = node._metadata
    content: Any = node.__dict__["_content"]
    yield key, about.ref_type, about.object_type, about.optional, about.flags or {}
    pairs = content.items() if isinstance(content, dict) else enumerate(content or ())
    for name, value in pairs:
        yield from _describe(value, f"{key}.{name}")


def _draw_choices(index: int) -> dict[str, str]:
    """Return a random experiment, and random options of some groups."""
    generator = random.Random(index)
    chosen = {"experiment": generator.choice(EXPERIMENTS)}
    for group in GROUPS:
        if generator.random() < 0.3:
            chosen[group] = generator.choice(options(group))
    if generator.random() < 0.4:
        chosen["strategy"] = "composed"
    is_composed = chosen.get("strategy") == "composed"
    for part in PARTS:
        if generator.random() < (0.5 if is_composed else 0.1):
            chosen[part] = generator.choice(options(part))
    return chosen


def _compose(chosen: dict[str, str]) -> tuple[DictConfig, str]:
    return _compose_with_types([f"{group}={name}" for group, name in chosen.items()])


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        *({"experiment": name} for name in EXPERIMENTS),
        *(_draw_choices(index) for index in range(24)),
    ],
    ids=str,
)
def test_merged_options_equal_those_of_hydra(chosen: dict[str, str]) -> None:
    """Values, types, flags and order are Hydra's: each experiment, and random options."""
    try:
        merged = merge_options(chosen)
    except OmegaConfBaseException:
        merged = None
    if merged is None:
        with pytest.raises(SettingsError):
            _compose(chosen)
        return
    settings, experiment = _compose(chosen)
    assert merged[1] == experiment
    assert [*_describe(merged[0])] == [*_describe(settings)]


@pytest.mark.parametrize(
    "chosen",
    [
        {"experiment": "nope"},
        {"experiment": "../config"},
        {"strategy": "nope"},
        {"strategy": "fedavg", "strategy/weighting": "fedavg"},
        {"strategy": "fedavg", "experiment": "power_of_choice/fmnist"},
        {"strategy": "composed", "strategy/selection": "nope"},
        {"hydra/launcher": "ray"},
        {"data": "../data/cifar10"},
    ],
)
def test_hydra_explains_other_options(chosen: dict[str, str]) -> None:
    """A mistake, and an option of a group that these files do not have, is Hydra's matter."""
    assert merge_options(chosen) is None


def test_merged_settings_do_not_share_state() -> None:
    """A change of merged settings changes no later ones."""
    first = merge_options({"strategy": "composed", "data": "celeba"})
    assert first is not None
    before = OmegaConf.to_yaml(first[0])
    OmegaConf.update(first[0], "strategy.selection.epsilon", 9.0)
    OmegaConf.update(first[0], "data.path", "elsewhere")
    again = merge_options({"strategy": "composed", "data": "celeba"})
    assert again is not None
    assert OmegaConf.to_yaml(again[0]) == before
