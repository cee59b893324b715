"""The legs of a run: the rounds between two resumes, each with the settings that decided them.

``config.yaml`` has the settings of the last leg. In the manifest, each entry of ``resumed`` has the
round after which the run was resumed, and as ``before`` the settings that had another value until
then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..rules.equality import is_same
from .settings import DATA_LOCATION_KEYS, flatten_settings

CHANGEABLE_PREFIXES = ("engine.", "tracker.", "resume", "client.retain_memory")
"""The prefixes of the settings that a resume of the app may change, beside ``rounds``."""

CHANGEABLE_DROP_IN_OPTIONS = (
    *("reply_memory", "max_reply_bytes", "min_available_nodes"),
    *("arrayrecord_key", "configrecord_key"),
)
"""The keywords that a resume of a drop-in strategy may change: they decide nothing in a round."""

EXTENDABLE_SETTINGS = ("rounds", "num_rounds")
"""The planned numbers of rounds, of the run and of a drop-in strategy's schedules."""

_CHANGEABLE_DROP_IN_SETTINGS = tuple(
    f"drop_in.{name}" for name in (*CHANGEABLE_DROP_IN_OPTIONS, "num_rounds")
)


@dataclass(frozen=True)
class Resume:
    """One resume of a run.

    Parameters
    ----------
    round : int
        The last round before it; later ones were repeated.
    before : mapping
        The settings by dotted key that had another value until then.
    """

    round: int
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def forbidden_changes(self) -> tuple[str, ...]:
        """The settings in ``before`` that no resume may change."""
        free = (*CHANGEABLE_PREFIXES, *DATA_LOCATION_KEYS, *_CHANGEABLE_DROP_IN_SETTINGS)
        return tuple(k for k in self.before if k != "rounds" and not k.startswith(free))


@dataclass(frozen=True)
class Leg:
    """The rounds of a run from one resume to the next.

    Parameters
    ----------
    first_round : int
        The first round, from 1.
    config : mapping
        All settings of these rounds, nested.
    """

    first_round: int
    config: Mapping[str, Any]

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """All settings of these rounds by dotted key."""
        return flatten_settings(self.config)

    @property
    def planned_rounds(self) -> tuple[Any, ...]:
        """The planned numbers of rounds, of the run and of a drop-in strategy's schedules."""
        return tuple(self.settings.get(key) for key in ("rounds", "drop_in.num_rounds"))


def find_changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the previous values of the settings that changed, by dotted key.

    Parameters
    ----------
    before, now : mapping
        By dotted key, as ``flatten_settings`` returns them. A setting that one of them lacks,
        because another option does not have it, is left out.
    """
    return {key: before[key] for key in now if key in before and not is_same(before[key], now[key])}


def build_legs(config: Mapping[str, Any], resumed: Sequence[Resume]) -> tuple[Leg, ...]:
    """Return the legs of a run that have rounds left, ascending, each with its settings.

    A round belongs to the last leg that started before it: a resume repeats all rounds after its
    own, so no round is left of a leg that started there or later.

    Parameters
    ----------
    config : mapping
        The settings of the last leg, nested.
    resumed : sequence of Resume
        All resumes, the first one first.
    """
    legs: list[Leg] = []
    end: int | None = None
    for resume in reversed(resumed):
        if end is not None and resume.round >= end:
            continue
        if resume.round == 0:
            break
        if resume.before:
            legs.append(Leg(resume.round + 1, config))
            config = _replace_settings(config, resume.before)
        end = resume.round
    return (Leg(1, config), *reversed(legs))


def _replace_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with the values of ``settings``, by dotted key, replaced."""
    changed: dict[str, Any] = dict(config)
    nested_values: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, dot, subkey = key.partition(".")
        if dot:
            nested_values.setdefault(name, {})[subkey] = value
        else:
            changed[name] = value
    for name, values in nested_values.items():
        nested = changed.get(name)
        changed[name] = _replace_settings(nested if isinstance(nested, Mapping) else {}, values)
    return changed
