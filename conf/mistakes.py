"""Explain Hydra's errors in one line: the setting, the allowed and given values, what to type."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import get_type_hints

from fedquorum.errors import SettingsError
from fedquorum.sanitize import abbreviate
from hydra.errors import OverrideParseException

from conf.grammar import explain_syntax
from conf.options import GROUPS, PARTS, format_suggestion, options
from conf.schema.option_schemas import OPTION_SCHEMAS
from conf.schema.settings import Settings

SettingsLookup = Callable[[Sequence[str], str], Sequence[str]]

_GROUP_TYPES = {key: kind for key, kind in get_type_hints(Settings).items() if is_dataclass(kind)}
_TYPE_NAMES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}
_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (
        r"Could not find 'hydra/(\w+)/([^']+)'",
        lambda m: (
            f"hydra/{m[1]} must be one of {', '.join(options(f'hydra/{m[1]}'))}, or an option of "
            f"an installed Hydra plugin, got {m[2]!r}"
            + format_suggestion(m[2], options(f"hydra/{m[1]}"))
        ),
    ),
    (
        r"Could not find '(strategy/\w+)/([^']+)'",
        lambda m: _explain_unknown_option(m[1], m[2]),
    ),
    (
        r"Could not find '(\w+)/([^']+)'",
        lambda m: _explain_unknown_option(m[1], m[2]),
    ),
    (
        r"Value (.+) of type '\w+' could not be converted to (\w+)\s+full_key: (\S+)",
        lambda m: f"{m[3]} must be {_TYPE_NAMES.get(m[2], m[2])}, got {m[1]}",
    ),
    (
        r"Invalid type assigned: .*value: (.*)\s+full_key: (\S+)",
        lambda m: _explain_group_value(m[2], m[1]),
    ),
    (
        r"Cannot merge DictConfig with ListConfig\s+full_key: (\S+)",
        lambda m: _explain_group_value(m[1], "a list"),
    ),
    (
        r"field '[^']+' is not Optional\s+full_key: (\S+)",
        lambda m: (
            _explain_group_value(m[1], "null")
            if _find_group(m[1])
            else f"{m[1]} must have a value, got null"
        ),
    ),
    (
        r"An item is already at '([^']+)'",
        lambda m: (
            f"{m[1]} must be without +, since there is one, got +{m[1]} ({_suggest_input(m[1])})"
        ),
    ),
    (
        r"Multiple values for (\S+)\. To override a value use 'override \S+: ([^']*)'",
        lambda m: f"{m[1]} must be one option, without +, got {m[2]} (type {m[1]}={m[2]})",
    ),
    (
        r"Ambiguous value for argument '([^=]+)=([^']*)'",
        lambda m: _explain_multiple_values(m[1], m[2]),
    ),
    (
        r"does not support deletion\s+full_key: (\S+)",
        lambda m: f"{m[1]} must have a value, got ~{m[1]} ({_suggest_input(m[1])})",
    ),
)
_UNKNOWN_KEY_PATTERN = re.compile(
    r"Key '[^']+' (?:is not in struct|not in '\w+')\s+full_key: (\S+)"
    r"|Could not override '([^']+)'.*No match in the defaults list",
    re.DOTALL,
)


def explain(
    error: Exception, overrides: Sequence[str] = (), lookup: SettingsLookup = lambda *_: ()
) -> str:
    """Explain an error of Hydra in one line: the setting, the allowed values, the given value.

    Parameters
    ----------
    error : Exception
        Hydra's or OmegaConf's.
    overrides : sequence of str
        The overrides that were composed.
    lookup : callable
        Returns the names of the settings below a key that overrides compose to.
    """
    text = f"{error.__cause__}\n{error}" if error.__cause__ else str(error)
    if isinstance(error, OverrideParseException):
        return explain_syntax(error.override, text)
    if nameless := next((text for text in overrides if text.startswith("=")), ""):
        return explain_syntax(nameless, text)
    if match := _UNKNOWN_KEY_PATTERN.search(text):
        return _explain_unknown_key(match[1] or match[2], overrides, lookup)
    for pattern, explanation in _EXPLANATIONS:
        if match := re.search(pattern, text):
            return explanation(match)
    if problem := next(filter(None, map(_explain_invalid_choice, overrides)), ""):
        return problem
    return " ".join(text.split())


def refuse_dotted_groups(overrides: Sequence[str], *, refuse_parts: bool = False) -> None:
    """Refuse overrides that choose one of Hydra's options with a dot, which Hydra would ignore.

    Parameters
    ----------
    overrides : sequence of str
    refuse_parts : bool
        Whether to refuse overrides that choose a part of a strategy, too; no job of a sweep can
        have them.

    Raises
    ------
    SettingsError
        For such an override; the message says what to type.
    """
    dotted = [part.replace("/", ".") for part in PARTS] if refuse_parts else []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        is_hydra_group = re.fullmatch(r"hydra\.\w+", key) and _find_group(key)
        if (is_hydra_group or key in dotted) and not value.startswith("{"):
            raise SettingsError(_explain_group_value(key, value))


def explain_option_mismatch(group: str, name: str) -> str:
    """Return the error of a setting ``name`` of a group that differs from the chosen option."""
    if name not in options(group):
        return _explain_unknown_option(group, name)
    key = f"{group.replace('/', '.')}.name"
    return f"{key} must be left to the option of {group}, got {name!r} (type {group}={name})"


def explain_unknown_setting(parent: str, name: str, known: Sequence[str], hint: str = "") -> str:
    """Return the error of an unknown setting below ``parent``: the known ones, and a hint.

    The default hint says where the setting is, or names a known setting with a similar name.
    """
    subject = f"{parent} has" if parent else "there are"
    key = f"{parent}.{name}" if parent else name
    shown = [setting for setting in known if not setting.startswith("_")]
    problem = (
        f"{key} is not a setting; {subject} {abbreviate(shown, near=name) or 'none'}, got {name!r}"
    )
    return problem + (hint or _find_elsewhere(parent, name) or format_suggestion(name, shown))


def _find_elsewhere(parent: str, name: str) -> str:
    """Return " (...)" with the options of a group that have a setting, "" if none has it."""
    group = parent.replace(".", "/")
    if (part := f"{group}/{name}") in PARTS:
        return f" (type strategy=composed {part}=NAME)"
    if parent and name in (*GROUPS, "experiment"):
        return f" (type {name}=NAME)"
    if parent and name != "name" and name in options(group):
        return f" (type {group}={name})"
    schemas = OPTION_SCHEMAS.get(group, {}) if group in (*GROUPS, *PARTS) else {}
    options_with_setting = sorted(
        key for key, schema in schemas.items() if name in {f.name for f in fields(schema)}
    )
    if not options_with_setting:
        return ""
    verb = "have" if len(options_with_setting) > 1 else "has"
    return f" ({group}={', '.join(options_with_setting)} {verb} it)"


def _explain_unknown_option(group: str, name: str) -> str:
    known = options(group)
    shown = abbreviate(known, near=name)
    all_names = " (fedquorum --help lists all)" if "..." in shown else ""
    return (
        f"{group} must be one of {shown}, got {name!r}{_suggest_option(group, name) or all_names}"
    )


def _suggest_option(group: str, name: str) -> str:
    """Return " (...)" with the likely meaning of an unknown option of a group, "" if unknown."""
    known = options(group)
    other_groups = [other for other in PARTS if group in PARTS and name in options(other)]
    if other_groups:
        return f" ({other_groups[0]} has it)"
    if (with_slashes := name.replace(".", "/")) in known:
        return f" (did you mean {with_slashes}?)"
    return format_suggestion(name, known)


def _find_group(key: str) -> str:
    """Return the group of options named by a key with dots or slashes, "" for another key."""
    group = key.replace(".", "/")
    is_known = group in ("experiment", *GROUPS, *PARTS) or group.startswith("hydra/")
    return group if is_known and options(group) else ""


def _explain_group_value(key: str, value: str) -> str:
    """Return the error of a single value for a key with settings below it."""
    if not (group := _find_group(key)):
        names = (
            ", ".join(item.name for item in fields(_GROUP_TYPES[key]))
            if key in _GROUP_TYPES
            else "NAME"
        )
        return f"{key} has the settings {names}, got {value} (type {key}.NAME=VALUE)"
    known = options(group)
    if {*value.split(",")} <= {*known}:
        hint = f" (type {group}={value})"
    elif "custom" in known and re.fullmatch(r".+[.:]\w+", value):
        hint = f" (type {group}=custom {key}.path={value})"
    else:
        hint = f"; type {group}=NAME{_suggest_option(group, value)}"
    return f"{key} is not a setting; {group} has {abbreviate(known, near=value)}, got {value}{hint}"


def _suggest_input(key: str) -> str:
    """Return "type ..." with the override that sets a key."""
    return f"type {_find_group(key)}=NAME" if _find_group(key) else f"type {key}=VALUE"


def _explain_multiple_values(key: str, values: str) -> str:
    """Return the error of several values for a setting that takes one, and what to type."""
    is_group = bool(group := _find_group(key))
    key = group or key
    kind = "one option" if is_group else "one value"
    as_list = "" if is_group else f"'{key}=[{values}]' for a list, or "
    return (
        f"{key} must be {kind}, got {values} (type {as_list}fedquorum -m {key}={values} for a "
        "sweep)"
    )


def _explain_invalid_choice(override: str) -> str:
    """Return the error of an override that sets a group to another value than an option's name."""
    group, _, value = override.lstrip("+~").partition("=")
    if group not in ("experiment", *GROUPS, *PARTS):
        return ""
    if override.startswith("~"):
        return f"{group} must be one of {abbreviate(options(group))}, got {override}"
    if value.startswith("["):
        return _explain_multiple_values(group, value.strip("[] ").replace(" ", ""))
    for name, given in re.findall(r"(\w+)\s*:\s*([^,{}]+)", value):
        if f"{group}/{name}" in PARTS:
            return _explain_group_value(f"{group}.{name}", given.strip())
    return "" if value in options(group) else _explain_unknown_option(group, value)


def _explain_unknown_key(key: str, overrides: Sequence[str], lookup: SettingsLookup) -> str:
    if key in PARTS:
        return (
            f"{key} needs strategy=composed, got another strategy (type strategy=composed "
            f"{key}=NAME)"
        )
    if key.partition(".")[0] == "experiment":
        return _explain_experiment_key(key, overrides)
    setters = [override for override in overrides if _is_override_of(override, key)]
    others = [override for override in overrides if override not in setters]
    parent, _, name = key.rpartition(".")
    option_choices = [override for override in others if override.startswith(f"{parent}=")]
    if option_choices and not setters:
        return f"{key} is set by the experiment, but {option_choices[-1]} has no such setting"
    known = lookup(others, parent) if setters or not parent else ()
    hint = ""
    if "/" in key:
        parent_key, _, child = key.replace("/", ".").rpartition(".")
        exists = child in lookup(others, parent_key)
        hint = f" (type {parent_key}.{child}=VALUE)" if exists else ""
    return explain_unknown_setting(parent, name, known, hint)


def _explain_experiment_key(key: str, overrides: Sequence[str]) -> str:
    """Return the error of overrides that treat the experiment as a group with settings."""
    override = next(
        (override for override in overrides if override.lstrip("+~").startswith(f"{key}.")), key
    )
    name = re.sub("[.=]", "/", override.lstrip("+~")).removeprefix("experiment/")
    suggestion = name if name in options("experiment") else "NAME"
    return f"experiment must be the name of a preset, got {override} (type experiment={suggestion})"


def _is_override_of(override: str, key: str) -> bool:
    """Say whether an override sets ``key``, directly or in a mapping, and not by an option."""
    target, _, value = override.lstrip("+~").partition("=")
    is_in_mapping = value.startswith("{") and key.startswith(f"{target}.")
    return key == target or is_in_mapping or target.startswith(f"{key}.")
