"""Compose checked settings from an experiment's name and Hydra overrides."""

import copy
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any

import hydra
from fedquorum.errors import SettingsError
from fedquorum.records.settings import dump_settings, load_settings
from fedquorum.rules.composition import RuleSet
from fedquorum.sanitize import abbreviate
from hydra._internal.hydra import Hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.mistakes import (
    explain,
    explain_option_mismatch,
    explain_unknown_setting,
    refuse_dotted_groups,
)
from conf.options import GROUPS, PARTS, options
from conf.schema.checks import check_ranges, check_rules, check_settings, check_values
from conf.schema.model import ModelSettings
from conf.schema.option_schemas import OPTION_SCHEMAS
from conf.schema.option_source import register_option_source
from conf.schema.rules import is_custom, rules_from_settings
from conf.schema.settings import Settings

__all__ = [
    "CONFIG_NAME",
    "GROUPS",
    "PARTS",
    "ComposedConfig",
    "adopt_config",
    "check_recorded_overrides",
    "check_settings",
    "complete_overrides",
    "compose_job",
    "compose_overrides",
    "compose_settings",
    "get_default_settings",
    "model_settings_from_dict",
    "options",
    "parse_override",
    "quote",
    "settings_from_yaml",
    "split_overrides",
    "start_hydra",
]

CONFIG_NAME = "config"


@dataclass(frozen=True)
class ComposedConfig:
    """Checked settings, and the overrides from which they were composed."""

    settings: Settings
    experiment: str
    overrides: tuple[str, ...]

    @cached_property
    def rules(self) -> RuleSet:
        """The rules of the settings, built once, before the run's clients are known.

        Custom rules are imported. Errors are those of ``rules_from_settings``.
        """
        return rules_from_settings(self.settings)

    @property
    def run_config(self) -> dict[str, str]:
        """The Flower run-config that composes to the same settings elsewhere."""
        return {"experiment": self.experiment, "overrides": shlex.join(self.overrides)}

    def to_yaml(self) -> str:
        """Return all settings, resolved, as YAML."""
        return dump_settings(asdict(self.settings))


def compose_settings(experiment: str = "", overrides: str = "") -> ComposedConfig:
    """Return the checked settings of an experiment.

    Parameters
    ----------
    experiment : str
        A file below ``conf/experiment``, without ending; empty for the default, which is
        ``fedalign/synth_low``, or ``custom`` if the overrides choose other data.
    overrides : str
        Hydra overrides, read like a command line: ``"strategy.epsilon=0.1 seed=3"``.

    Raises
    ------
    SettingsError
        If a key or an option is unknown, a type is wrong, or a value is outside its range.
    """
    preset = [f"experiment={experiment}"] if experiment else []
    return compose_overrides((*preset, *split_overrides(overrides)))


def split_overrides(overrides: str) -> tuple[str, ...]:
    """Split a string of overrides as a shell would."""
    try:
        return tuple(shlex.split(overrides))
    except ValueError as error:
        raise SettingsError(
            f"overrides must be Hydra overrides separated by spaces, got {overrides!r} ({error})"
        ) from None


def parse_override(text: str) -> Override:
    """Return one Hydra override, which may be a sweep; raise SettingsError for other texts."""
    try:
        return _parse(text)
    except HydraException as error:
        raise SettingsError(explain(error)) from None


@lru_cache(maxsize=4096)  # the same texts are parsed on the way from a sweep to each of its jobs
def _parse(text: str) -> Override:
    (override,) = OverridesParser.create().parse_overrides([text])
    return override


def quote(text: str) -> str:
    """Return a text quoted as the value of a Hydra override.

    Hydra treats backslashes as escapes only before a quote or before the end.
    """
    escaped = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + (m[2] and f"\\{m[2]}"), text)
    return f"'{escaped}'"


def check_recorded_overrides(experiment: str, overrides: Iterable[str]) -> tuple[str, ...]:
    """Return the overrides in a run's manifest, which is untrusted, after checking them.

    Overrides of Hydra's settings are refused, because they can name classes to instantiate and
    packages to import.

    Raises
    ------
    SettingsError
        If an override does not set a setting of the run.
    """
    if not _EXPERIMENT_PATTERN.fullmatch(experiment):
        raise SettingsError(f"experiment must be the name of a preset, got {experiment!r}")
    texts = (f"experiment={experiment}", *overrides)
    for text in texts:
        override = parse_override(text)
        key = override.key_or_group
        if override.package is not None or re.split("[./]", key)[0] == "hydra":
            raise SettingsError(f"a recorded override must be of a setting of the run, got {text}")
    return texts


REPLACE_PREFIX = "data.replace="
_EXPERIMENT_PATTERN = re.compile(r"\w[\w-]*(/\w[\w-]*)*", re.ASCII)


def complete_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return overrides that say what a user means and Hydra does not know.

    ``experiment`` is ``custom`` if they choose data, but no experiment: the default preset is made
    for its own data set, SYNTH, alone. Several ``data.replace`` are one: each warning about a
    table prints one to type.
    """
    return _merge_replacements(_choose_experiment(overrides))


def _merge_replacements(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return overrides with one ``data.replace`` in place of several, all pairs in a list."""
    given = [text for text in overrides if text.startswith(REPLACE_PREFIX)]
    if len(given) < 2:  # noqa: PLR2004 - several
        return overrides
    pairs: dict[tuple[str, str], str] = {}
    for text in given:
        value: Any = parse_override(text).value()
        triples = value
        if isinstance(value, dict) and all(isinstance(new, dict) for new in value.values()):
            triples = [(name, *pair) for name, new in value.items() for pair in new.items()]
        if not isinstance(triples, list) or any(len(triple) != 3 for triple in triples):  # noqa: PLR2004
            return overrides  # the check of the setting explains the mistake
        pairs |= {(_to_text(name), _to_text(old)): _to_text(new) for name, old, new in triples}
    merged = ",".join(f"[{name},{old},{new}]" for (name, old), new in pairs.items())
    others = [text for text in overrides if text not in given]
    position = overrides.index(given[0])
    return (*others[:position], f"{REPLACE_PREFIX}[{merged}]", *others[position:])


def _to_text(value: Any) -> str:
    """Return a parsed value as text for Hydra."""
    if isinstance(value, str):
        return quote(value)
    return "null" if value is None else str(value).lower()


def _choose_experiment(overrides: Sequence[str]) -> tuple[str, ...]:
    pairs = [override.partition("=") for override in overrides]
    chosen = [i for i, (key, _, value) in enumerate(pairs) if key == "data" and value != "synth"]
    if not chosen or any(key.lstrip("+~") == "experiment" for key, _, _ in pairs):
        return tuple(overrides)
    position = chosen[0]  # beside another setting: argparse wants them together, among flags
    return (*overrides[:position], "experiment=custom", *overrides[position:])


def compose_overrides(overrides: tuple[str, ...]) -> ComposedConfig:
    """Return the checked settings of overrides, composed once per process."""
    overrides = complete_overrides(overrides)
    if overrides not in _composed_configs:
        try:
            typed, experiment = _compose_from_cache(overrides)
            settings = _to_settings(typed)
        except (SettingsError, OmegaConfBaseException):  # Hydra's composition explains the mistake
            config = _compose_config(overrides)
            adopt_config(config, str(config.hydra.runtime.choices.experiment), overrides)
        else:
            _adopt_settings(settings, experiment, overrides)
    return _composed_configs[overrides]


def _compose_from_cache(overrides: tuple[str, ...]) -> tuple[DictConfig, str]:
    """Return settings and the experiment's name as Hydra composes them, in a quarter of the time.

    Hydra composes the chosen options, and changes single values last. So the settings of runs with
    the same options are composed once, and single values are changed in a copy.
    """
    parsed = [parse_override(text) for text in overrides]
    values = [override for override in parsed if _is_value_change(override)]
    pairs = zip(overrides, parsed, strict=True)
    options = tuple(text for text, override in pairs if not _is_value_change(override))
    config, experiment = copy.deepcopy(_compose_options(options))
    names = _get_option_names(config)
    for override in values:
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
    _refuse_other_names(config, names)
    return config, experiment


def _get_option_names(config: DictConfig) -> dict[str, Any]:
    """Return the name of the option of every group."""
    groups = (*GROUPS, *PARTS)
    nodes = {group: _get_nested(config, group.split("/")) for group in groups}
    return {g: node.get("name") for g, node in nodes.items() if isinstance(node, DictConfig)}


def _get_nested(node: Any, names: Sequence[str]) -> Any:
    """Return the node below ``node`` at a path of names, or None."""
    for name in names:
        node = node.get(name) if isinstance(node, DictConfig) and name in node else None
    return node


def _refuse_other_names(config: DictConfig, chosen: Mapping[str, Any]) -> None:
    """Refuse ``data.name=NAME``, which would rename the chosen option and choose no other."""
    for group, name in _get_option_names(config).items():
        if name not in (None, chosen.get(group)):
            raise SettingsError(explain_option_mismatch(group, str(name)))


def _is_value_change(override: Override) -> bool:
    """Say whether an override changes a single value, and chooses no option."""
    key = override.key_or_group
    return (
        override.type is OverrideType.CHANGE
        and override.package is None
        and not override.is_sweep_override()
        and "/" not in key
        and key.partition(".")[0] not in ("hydra", "experiment")
        and key not in GROUPS
    )


@lru_cache(maxsize=256)
def _compose_options(overrides: tuple[str, ...]) -> tuple[DictConfig, str]:
    # The runs of a study or a report share a few combinations of options.
    config = _compose_config(overrides)
    settings = _add_types(config)
    OmegaConf.set_struct(settings, True)
    return settings, str(config.hydra.runtime.choices.experiment)


def get_default_settings(options: tuple[str, ...]) -> dict[str, Any]:
    """Return the unchecked default settings of these options, nested."""
    settings: Any = OmegaConf.to_container(_compose_options(options)[0])
    return dict(settings)


@contextmanager
def compose_job(overrides: tuple[str, ...]) -> Iterator[DictConfig]:
    """Compose a job's settings together with Hydra's, and leave Hydra in progress for the job.

    Raises
    ------
    SettingsError
        As in ``compose_settings``.
    """
    overrides = complete_overrides(overrides)
    with start_hydra():
        config = _compose_with_hydra(overrides)
        adopt_config(config, str(config.hydra.runtime.choices.experiment), overrides)
        yield config


def adopt_config(config: DictConfig, experiment: str, overrides: tuple[str, ...]) -> None:
    """Check the settings that Hydra composed, and cache them for ``compose_overrides``.

    Raises
    ------
    SettingsError
        If a value is not allowed.
    """
    if overrides not in _composed_configs:
        _adopt_settings(_to_settings(_add_types(config)), experiment, overrides)


def _adopt_settings(settings: Settings, experiment: str, overrides: tuple[str, ...]) -> None:
    job_overrides = tuple(text for text in overrides if not text.startswith(("hydra.", "hydra/")))
    settings_only = tuple(text for text in job_overrides if not text.startswith("experiment="))
    composed = ComposedConfig(settings, experiment, settings_only)
    check_values(settings)
    if not is_custom(settings):
        check_rules(settings, composed.rules)
    # Hydra gives a job its overrides without Hydra's own; server and clients use a run config.
    for key in (overrides, job_overrides, (f"experiment={experiment}", *settings_only)):
        _composed_configs[key] = composed


_composed_configs: dict[tuple[str, ...], ComposedConfig] = {}


def settings_from_yaml(text: str) -> Settings:
    """Return the checked settings that ``ComposedConfig.to_yaml`` wrote.

    Raises
    ------
    SettingsError
        If the text is not YAML, or names an unknown option or setting.
    """
    try:
        recorded = OmegaConf.create(load_settings(text))
        groups = [*GROUPS, *(PARTS if OmegaConf.select(recorded, "strategy.selection") else ())]
        names = {g: OmegaConf.select(recorded, f"{g.replace('/', '.')}.name") for g in groups}
    except Exception as error:  # PyYAML's and OmegaConf's errors have no common base
        raise SettingsError(f"expected settings as YAML, {' '.join(str(error).split())}") from None
    for group, name in names.items():
        if name is not None and not isinstance(name, str):
            raise SettingsError(
                f"{group}.name must be one of {abbreviate(options(group))}, got {name}"
            )
    overrides = [f"{group}={name}" for group, name in names.items() if name is not None]
    typed, _ = copy.deepcopy(_compose_options(("experiment=custom", *overrides)))
    try:
        typed.merge_with(recorded)
        settings = _to_settings(typed)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error)) from None
    check_settings(settings)
    return settings


def model_settings_from_dict(given: Mapping[str, Any]) -> ModelSettings:
    """Return the checked settings of a model from their values by name.

    Raises
    ------
    SettingsError
        If there is no such model, or a value is not allowed.
    """
    schema = OPTION_SCHEMAS["model"].get(str(given.get("name")))
    if schema is None:
        known = ", ".join(OPTION_SCHEMAS["model"])
        raise SettingsError(f"model must be one of {known}, got {given.get('name')!r}")
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(given)))
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error)) from None
    assert isinstance(settings, ModelSettings)
    check_ranges(settings, "model.")
    return settings


def _compose_config(overrides: Sequence[str]) -> DictConfig:
    with start_hydra():
        return _compose_with_hydra(overrides)


@contextmanager
def start_hydra() -> Iterator[Hydra]:
    """Start Hydra over the folder ``conf``, and restore a Hydra in progress at the end."""
    saved = Singleton.get_state() if GlobalHydra.instance().is_initialized() else None
    GlobalHydra.instance().clear()
    register_option_source()
    try:
        with hydra.initialize_config_module("conf", version_base="1.3", job_name="fedquorum"):
            started = GlobalHydra.instance().hydra
            assert started is not None
            yield started
    finally:
        if saved is not None:
            Singleton.set_state(saved)


def _compose_with_hydra(overrides: Sequence[str]) -> DictConfig:
    refuse_dotted_groups(overrides)
    try:
        config = hydra.compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
        _refuse_other_names(config, config.hydra.runtime.choices)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        # Hydra refuses a number as an option's name (strategy=5) by a ValueError.
        raise SettingsError(explain(error, overrides, _list_settings)) from None
    return config


def _add_types(config: DictConfig) -> DictConfig:
    """Return the settings in Hydra's config, each with the type that ``Settings`` gives it."""
    plain = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        typed = OmegaConf.merge(OmegaConf.structured(Settings), plain)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error, lookup=_list_settings)) from None
    assert isinstance(typed, DictConfig)
    return typed


def _to_settings(typed: DictConfig) -> Settings:
    try:
        settings: Any = OmegaConf.to_object(typed)
    except OmegaConfBaseException as error:
        raise SettingsError(explain(error, lookup=_list_settings)) from None
    assert isinstance(settings, Settings)
    _refuse_added_keys(settings, "")
    return settings


def _refuse_added_keys(node: Any, parent: str) -> None:
    """Refuse keys added by ``+key=value``: Hydra accepts them, but nothing would read them."""
    known = [item.name for item in fields(node)]
    for key, value in vars(node).items():
        if key not in known:
            raise SettingsError(explain_unknown_setting(parent, key, known))
        if is_dataclass(value):
            _refuse_added_keys(value, f"{parent}.{key}" if parent else key)


def _list_settings(overrides: Sequence[str], parent: str) -> list[str]:
    """Return the names of the settings below ``parent`` that overrides compose to."""
    if not parent:
        return [item.name for item in fields(Settings)]
    node = OmegaConf.select(_compose_config(overrides), parent)
    return [str(key) for key in node] if isinstance(node, DictConfig) else []
