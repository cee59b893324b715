"""From an experiment's name and Hydra overrides to checked settings."""

import copy
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf.errors import SettingsError
from conf.rules import check_rules
from conf.schema.checks import check as check_values
from conf.schema.register import register
from conf.schema.settings import Settings
from strategies.parameters import ParameterError

register()

GROUPS = (
    *("strategy", "server_optimizer", "data", "model", "availability", "privacy", "engine"),
    "tracker",
)
PARTS = tuple(f"strategy/{part}" for part in ("selection", "weighting", "participation"))
"""The groups within ``strategy=composed``."""


@dataclass(frozen=True)
class Composed:
    """Checked settings, and the words they were composed from."""

    settings: Settings
    experiment: str
    overrides: tuple[str, ...]

    @property
    def run_config(self) -> dict[str, str]:
        """The Flower run-config that composes to the same settings elsewhere."""
        return {"experiment": self.experiment, "overrides": shlex.join(self.overrides)}

    def to_yaml(self) -> str:
        """Return all settings, resolved, as YAML."""
        return OmegaConf.to_yaml(OmegaConf.structured(self.settings))


def compose(experiment: str = "", overrides: str = "") -> Composed:
    """Return the checked settings of an experiment.

    Parameters
    ----------
    experiment : str
        A file below ``conf/experiment``, without ending; empty for the default.
    overrides : str
        Hydra overrides, read like a command line: ``"strategy.epsilon=0.1 seed=3"``.

    Raises
    ------
    SettingsError
        For an unknown key or option, a wrong type, or a value outside its range.
    """
    words = split_overrides(overrides)
    preset = [f"experiment={experiment}"] if experiment else []
    return compose_words((*preset, *words))


def split_overrides(overrides: str) -> tuple[str, ...]:
    """Split a string of overrides as a shell would."""
    try:
        return tuple(shlex.split(overrides))
    except ValueError as error:
        raise SettingsError(
            f"overrides must be Hydra overrides separated by spaces, got {overrides!r} ({error})"
        ) from None


def parse_word(word: str) -> Override:
    """Return one Hydra override, which may be a sweep; a word that is none is a SettingsError."""
    try:
        return OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise SettingsError(_explain(error, ())) from None


def compose_words(words: tuple[str, ...]) -> Composed:
    """Return the checked settings of overrides, composed once in a process; see ``compose``."""
    if words not in _composed:
        config = _compose_config(words)
        take_over(config, str(config.hydra.runtime.choices.experiment), words)
    return _composed[words]


def take_over(config: DictConfig, experiment: str, words: tuple[str, ...]) -> None:
    """Check what Hydra has composed from ``words``, for ``compose_words`` to return.

    Raises
    ------
    SettingsError
        If a value is not allowed.
    """
    settings = _to_settings(config)
    check(settings)
    kept = tuple(word for word in words if not word.startswith(("experiment=", "hydra.", "hydra/")))
    composed = Composed(settings, experiment, kept)
    # Server and clients of a job compose from its run config.
    _composed[words] = _composed[f"experiment={experiment}", *kept] = composed


def check(settings: Settings) -> None:
    """Compare every value with its range, the values with each other, and the rules likewise.

    Raises
    ------
    SettingsError
        For the first that is not allowed.
    """
    check_values(settings)
    try:
        check_rules(settings)
    except ParameterError as error:
        raise SettingsError(named(error)) from None


def named(error: ParameterError) -> str:
    """Return what is wrong with a rule, by the name of its setting."""
    text = str(error)
    return text if text.startswith("server_optimizer") else f"strategy.{text}"


_composed: dict[tuple[str, ...], Composed] = {}


def settings_of(text: str) -> Settings:
    """Return the settings that ``Composed.to_yaml`` wrote, checked.

    What the text does not name, as where a run is older than a setting, is the default.

    Raises
    ------
    SettingsError
        If the text is no YAML, or names an option or a setting that there is not.
    """
    try:
        own = OmegaConf.create(text)
        groups = [*GROUPS, *(PARTS if OmegaConf.select(own, "strategy.selection") else ())]
        names = {g: OmegaConf.select(own, f"{g.replace('/', '.')}.name") for g in groups}
    except Exception as error:  # PyYAML's and OmegaConf's errors have no common base
        raise SettingsError(f"expected settings as YAML, {' '.join(str(error).split())}") from None
    for group, name in names.items():
        if name is not None and not isinstance(name, str):
            raise SettingsError(
                f"{group}.name must be one of {', '.join(options(group))}, got {name}"
            )
    words = [f"{group}={name}" for group, name in names.items() if name is not None]
    typed = copy.deepcopy(_defaults_of(("experiment=custom", *words)))
    try:
        typed.merge_with(own)
        settings = _to_settings(typed)
    except OmegaConfBaseException as error:
        raise SettingsError(_explain(error, ())) from None
    check(settings)
    return settings


@lru_cache(maxsize=64)
def _defaults_of(words: tuple[str, ...]) -> DictConfig:
    # The runs of one report choose the same options, of which there are few.
    return _compose_config(words)


def _compose_config(words: Sequence[str]) -> DictConfig:
    # The command line has a Hydra of its own in progress; composing must not disturb it.
    saved = Singleton.get_state() if GlobalHydra.instance().is_initialized() else None
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_module("conf", version_base="1.3", job_name="fedquorum"):
            return hydra.compose("config", overrides=list(words), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(_explain(error, words)) from None
    finally:
        if saved is not None:
            Singleton.set_state(saved)


def _to_settings(config: DictConfig) -> Settings:
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        settings: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Settings), own))
    except OmegaConfBaseException as error:
        raise SettingsError(_explain(error, ())) from None
    assert isinstance(settings, Settings)
    _refuse_added_keys(settings, "")
    return settings


def _refuse_added_keys(node: Any, parent: str) -> None:
    """Refuse what ``+key=value`` added: Hydra lets it pass, nothing would read it."""
    known = [item.name for item in fields(node)]
    for key, value in vars(node).items():
        if key not in known:
            raise SettingsError(_not_a_setting(parent, key, known))
        if is_dataclass(value):
            _refuse_added_keys(value, f"{parent}.{key}" if parent else key)


_KINDS = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (
        r"Could not find 'hydra/(\w+)/([^']+)'",
        lambda m: (
            f"hydra/{m[1]} must be one of {', '.join(options(f'hydra/{m[1]}'))} or of an installed "
            f"Hydra plugin's, got {m[2]!r}"
        ),
    ),
    (
        r"Could not find '(strategy/\w+)/([^']+)'",
        lambda m: f"{m[1]} must be one of {', '.join(options(m[1]))}, got {m[2]!r}",
    ),
    (
        r"Could not find '(\w+)/([^']+)'",
        lambda m: f"{m[1]} must be one of {', '.join(options(m[1]))}, got {m[2]!r}",
    ),
    (
        r"Value (.+) of type '\w+' could not be converted to (\w+)\s+full_key: (\S+)",
        lambda m: f"{m[3]} must be {_KINDS.get(m[2], m[2])}, got {m[1]}",
    ),
    (
        r"field '[^']+' is not Optional\s+full_key: (\S+)",
        lambda m: f"{m[1]} must have a value, got null",
    ),
    (
        r"Ambiguous value for argument '([^=]+)=([^']*)'",
        lambda m: f"{m[1]} must be one value ([..] for a list, -m for a sweep), got {m[2]}",
    ),
)
_UNKNOWN = re.compile(
    r"Key '[^']+' (?:is not in struct|not in '\w+')\s+full_key: (\S+)"
    r"|Could not override '([^']+)'.*No match in the defaults list",
    re.DOTALL,
)


def _explain(error: Exception, words: Sequence[str]) -> str:
    """Say in one line what Hydra says in several: the setting, what is allowed, the value."""
    text = f"{error.__cause__}\n{error}" if error.__cause__ else str(error)
    if match := _UNKNOWN.search(text):
        return _unknown_key(match[1] or match[2], words)
    for pattern, explanation in _EXPLANATIONS:
        if match := re.search(pattern, text):
            return explanation(match)
    return " ".join(text.split())


def _unknown_key(key: str, words: Sequence[str]) -> str:
    if key in PARTS:
        return f"{key} is of strategy=composed only, got another strategy"
    own = [word for word in words if _sets(word, key)]
    others = [word for word in words if word not in own]
    parent, _, name = key.rpartition(".")
    chosen = [word for word in others if word.startswith(f"{parent}=")]
    if chosen and not own:
        return f"{key} is set by the experiment, but {chosen[-1]} has no such setting"
    known: list[str] = []
    if own:
        node = OmegaConf.select(_compose_config(others), parent) if parent else Settings
        if isinstance(node, DictConfig):
            known = [str(key) for key in node]
        elif node is Settings:
            known = [item.name for item in fields(Settings)]
    return _not_a_setting(parent, name, known)


def _not_a_setting(parent: str, name: str, known: Sequence[str]) -> str:
    place = f"{parent} has" if parent else "there are"
    key = f"{parent}.{name}" if parent else name
    return f"{key} is not a setting; {place} {', '.join(known) or 'none'}, got {name!r}"


def _sets(word: str, key: str) -> bool:
    """Say whether a word sets ``key``, by itself or in a mapping; ``strategy=fedau`` does not."""
    target, _, value = word.lstrip("+~").partition("=")
    return key == target or (value.startswith("{") and key.startswith(f"{target}."))


def options(group: str) -> list[str]:
    """Return the options of a settings group, such as the names of all experiments."""
    folder = Path(__file__).parent / group
    names = (f.relative_to(folder).with_suffix("").as_posix() for f in folder.rglob("*.yaml"))
    return sorted(n for n in names if group in PARTS or not f"{group}/{n}".startswith(PARTS))
