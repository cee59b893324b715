"""The schemas of the options of every settings group, and the path of each among the settings."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

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
from conf.schema.secure_aggregation import MaskSettings, SecureAggregationSettings
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
    "secure_aggregation": _map_by_name(SecureAggregationSettings, MaskSettings(name="masks")),
    "engine": _map_by_name(
        *(EngineSettings(name=name) for name in ("in-process", "ray", "flower"))
    ),
    "tracker": _map_by_name(TensorBoardSettings, MlflowSettings, WandbSettings),
}
"""The options without a YAML file, by group and name."""

BASE_SCHEMAS: Mapping[str, Any] = {"composed": ComposedSettings, "torchvision": TorchvisionSettings}
"""Schemas from which only YAML files inherit."""


class Option(NamedTuple):
    """An option without a YAML file."""

    node: Any
    """A schema, or settings by group and name."""
    package: str | None = None
    """Where its settings belong, as in the header of a YAML file; None for its group."""


TUNING_FILE = Path(__file__).parent.parent / "tuning.yaml"


@cache
def list_options() -> dict[str, Option]:
    """Return the options without a YAML file, by their paths, such as ``strategy/fedalign``."""
    return dict(_generate_options())


@cache
def list_option_names() -> dict[str, set[str]]:
    """Return the names of options and groups directly below each group; the root is ""."""
    names: dict[str, set[str]] = {}
    for option in list_options():
        parts = option.split("/")
        for i, name in enumerate(parts):
            names.setdefault("/".join(parts[:i]), set()).add(name)
    return names


def _generate_options() -> Iterator[tuple[str, Option]]:
    yield "schema", Option(Settings)
    for group, options in {**OPTION_SCHEMAS, "base": BASE_SCHEMAS}.items():
        for name, schema in options.items():
            yield f"{group}/{name}", Option(schema)
    for experiment, groups in _load_yaml(TUNING_FILE).items():
        for group, settings in groups.items():
            for name, values in settings.items():
                yield f"tuning/{group}/{experiment}/{name}", Option(values, "_global_")


def _load_yaml(path: Path) -> Any:
    # libyaml takes a tenth of the time of PyYAML's own parser, but some platforms lack it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_bytes(), loader)  # noqa: S506
