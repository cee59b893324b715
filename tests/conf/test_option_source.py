"""The source in which Hydra finds the options without a file."""

import pytest
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError
from omegaconf import OmegaConf

from conf.schema.option_schemas import OPTION_SCHEMAS, list_options
from conf.schema.option_source import OptionSearchPath, OptionSource


@pytest.fixture(scope="module")
def source() -> OptionSource:
    """Return the source as Hydra makes it."""
    return OptionSource("fedquorum", "fedquorum://")


@pytest.mark.parametrize("group", OPTION_SCHEMAS)
def test_a_group_lists_its_options(source: OptionSource, group: str) -> None:
    """Hydra's messages about a wrong name list what the group has."""
    assert source.is_group(group)
    assert not source.is_config(group)
    assert source.list(group, ObjectType.CONFIG) == sorted(OPTION_SCHEMAS[group])


def test_groups_contain_groups(source: OptionSource) -> None:
    """A group's own groups are listed as groups, and below the root are all."""
    parts = ["participation", "selection", "weighting"]
    assert source.list("strategy", ObjectType.GROUP) == parts
    assert set(parts) < set(source.list("strategy/", None))
    assert "schema" in source.list("", ObjectType.CONFIG)
    assert {"data", "tuning"} < set(source.list("", ObjectType.GROUP))


def test_every_option_can_be_loaded(source: OptionSource) -> None:
    """Each option is built anew, with its package."""
    for path, (_, package) in list_options().items():
        assert source.is_config(path)
        assert source.is_config(f"{path}.yaml")
        loaded = source.load_config(path)
        assert loaded.header == {"package": package}
        assert OmegaConf.is_dict(loaded.config)
        assert source.load_config(path).config is not loaded.config


def test_values_of_an_experiment_are_global(source: OptionSource) -> None:
    """What an experiment sets for one option may be any setting."""
    loaded = source.load_config("tuning/model/aaggff/mqp/text")
    assert loaded.header == {"package": "_global_"}
    assert loaded.config == {"client": {"lr": 0.1, "weight_decay": 0.0001}}


def test_an_unknown_option_is_named(source: OptionSource) -> None:
    """Hydra says which path it asked for."""
    assert not source.is_config("strategy/fedagv")
    assert not source.is_group("strategy/fedavg")
    assert source.list("strategy/fedavg", None) == []
    with pytest.raises(ConfigLoadError, match="strategy/fedagv"):
        source.load_config("strategy/fedagv")


@pytest.mark.parametrize(("path", "expected"), [("pkg://conf", 1), ("file:///other/conf", 0)])
def test_other_applications_do_not_see_the_options(path: str, expected: int) -> None:
    """Hydra applies the plugin to every application of the process."""
    search_path = ConfigSearchPathImpl()
    search_path.append("main", path)
    OptionSearchPath().manipulate_search_path(search_path)
    added = [element for element in search_path.get_path() if element.provider == "fedquorum"]
    assert len(added) == expected
