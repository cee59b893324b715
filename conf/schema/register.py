"""Register the options of every settings group in Hydra's store."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from conf.schema.availability import (
    PATTERN_SCHEMAS,
    AlwaysSettings,
    BernoulliSettings,
    CyclicSettings,
    MarkovSettings,
    TraceSettings,
)
from conf.schema.client import ClientSettings
from conf.schema.data import (
    CsvSettings,
    HfSettings,
    ImageFolderSettings,
    LeafSettings,
    NpzSettings,
    SynthSettings,
    TextSettings,
    TorchvisionSettings,
)
from conf.schema.engine import EngineSettings
from conf.schema.model import (
    CelebaCnnSettings,
    CnnSettings,
    DistilBertSettings,
    EfficientNetSettings,
    LogisticRegressionSettings,
    LstmSettings,
    M5Settings,
    MlpSettings,
    ModuleSettings,
    SmallCnnSettings,
    TextCnnSettings,
)
from conf.schema.privacy import AdaptiveClippingSettings, FixedClippingSettings, PrivacySettings
from conf.schema.response_time import (
    LognormalSettings,
    NoResponseTimeSettings,
    RecordedTimesSettings,
)
from conf.schema.server_optimizer import SERVER_OPTIMIZER_SCHEMAS
from conf.schema.settings import Settings
from conf.schema.strategy import PART_SCHEMAS, STRATEGY_SCHEMAS, ComposedSettings
from conf.schema.tracker import MlflowSettings, TensorBoardSettings, WandbSettings


def _map_by_name(*options: Any) -> dict[str, Any]:
    return {option.name: option for option in options}


OPTION_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "strategy": STRATEGY_SCHEMAS,
    **{f"strategy/{part}": schemas for part, schemas in PART_SCHEMAS.items()},
    "server_optimizer": SERVER_OPTIMIZER_SCHEMAS,
    "data": _map_by_name(
        SynthSettings,
        *(TorchvisionSettings(name=name) for name in ("mnist", "fmnist", "emnist", "svhn")),
        NpzSettings,
        HfSettings,
        ImageFolderSettings,
        LeafSettings,
        TextSettings,
        CsvSettings,
    ),
    "model": _map_by_name(
        LogisticRegressionSettings,
        MlpSettings,
        CnnSettings,
        SmallCnnSettings,
        M5Settings,
        CelebaCnnSettings,
        EfficientNetSettings,
        LstmSettings,
        TextCnnSettings,
        DistilBertSettings,
        ModuleSettings,
    ),
    "client": {"sgd": ClientSettings},
    "availability": {
        **_map_by_name(
            AlwaysSettings, BernoulliSettings, MarkovSettings, CyclicSettings, TraceSettings
        ),
        **PATTERN_SCHEMAS,
    },
    "response_time": _map_by_name(NoResponseTimeSettings, LognormalSettings, RecordedTimesSettings),
    "privacy": _map_by_name(
        PrivacySettings,
        FixedClippingSettings(name="dp_fixed_server"),
        FixedClippingSettings(name="dp_fixed_client"),
        AdaptiveClippingSettings(name="dp_adaptive_server"),
        AdaptiveClippingSettings(name="dp_adaptive_client"),
    ),
    "engine": _map_by_name(
        *(EngineSettings(name=name) for name in ("in-process", "ray", "flower"))
    ),
    "tracker": _map_by_name(TensorBoardSettings, MlflowSettings, WandbSettings),
}
"""The options without a YAML file, by group and name."""

BASE_SCHEMAS: Mapping[str, Any] = {"composed": ComposedSettings, "torchvision": TorchvisionSettings}
"""Schemas from which only YAML files inherit."""


TUNING_GROUPS = ("strategy", "model")
"""The groups for whose options ``tuning.yaml`` has values, in the order of ``config.yaml``."""

_TUNING_FILE = Path(__file__).parent.parent / "tuning.yaml"
TUNING: Mapping[str, Mapping[str, Mapping[str, Any]]] = yaml.load(
    # The loader in C, which PyYAML lacks on some machines, takes a tenth of the time.
    _TUNING_FILE.read_text(encoding="utf-8"),
    Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # noqa: S506 - both are safe
)
"""The values that experiments set for one option, by experiment, group and name."""


class _LazyNode(ConfigNode):
    """An entry of Hydra's store, converted to Hydra's form when it is first loaded.

    A composition needs a dozen of the 150 schemas, and converting all takes a tenth of a start.
    """

    def __init__(self, name: str, schema: Any, group: str | None, package: str | None) -> None:
        self.name = f"{name}.yaml"
        self.group = group
        self.package = package
        self.provider = None
        self._schema = schema

    @cached_property
    def node(self) -> DictConfig:  # type: ignore[override]
        """The schema in Hydra's form."""
        node: DictConfig = OmegaConf.structured(self._schema)
        return node

    def __copy__(self) -> ConfigNode:
        """Return the plain entry; the store copies an entry to load it."""
        return ConfigNode(self.name, self.node, self.group, self.package, self.provider)


def register_schemas() -> None:
    """Store all options in Hydra, and the values that experiments set for one option."""
    _store("schema", Settings)
    for group, options in {**OPTION_SCHEMAS, "base": BASE_SCHEMAS}.items():
        for name, schema in options.items():
            _store(name, schema, group)
    for experiment, groups in TUNING.items():
        for group, settings in groups.items():
            for name, values in settings.items():
                _store(name, values, f"tuning/{group}/{experiment}", "_global_")


def _store(name: str, schema: Any, group: str | None = None, package: str | None = None) -> None:
    folder = ConfigStore.instance().repo
    for part in group.split("/") if group else ():
        folder = folder.setdefault(part, {})
    folder[f"{name}.yaml"] = _LazyNode(name, schema, group, package)
