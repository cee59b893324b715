"""Derive schemas from the declarations of the rules' parameters."""

import sys
from collections.abc import Iterable
from dataclasses import Field, field, fields, make_dataclass
from typing import Any, get_type_hints

from fedquorum.registry import CUSTOM
from fedquorum.rules.rule import Rule, get_parameters, parameter

from conf.schema.ranges import ARGUMENTS, ImportPath

Setting = tuple[str, Any, Field[Any]]
"""A setting's name, its type and its field."""


def derive_settings(rule: type[Any]) -> tuple[Setting, ...]:
    """Return a setting for each parameter of a rule, with its type, default and range."""
    types = get_type_hints(rule)
    return tuple((item.name, types[item.name], _copy_field(item)) for item in get_parameters(rule))


def _copy_field(item: Field[Any]) -> Any:
    """Copy the rule's field, because a dataclass field cannot be shared."""
    return parameter(item.default, item.metadata["allowed"], item.metadata["search"])


def make_schema(
    base: type[Any], name: str, summary: str, settings: Iterable[Setting] = ()
) -> type[Any]:
    """Return the schema of an option: the settings of ``base``, followed by others.

    Raises
    ------
    ValueError
        If two settings have the same name.
    """
    added = [*settings]
    names = [*(item.name for item in fields(base)), *(setting[0] for setting in added)]
    if len(set(names)) < len(names):
        raise ValueError(f"{name} needs parameters with other names, got {', '.join(names)}")
    schema = make_dataclass(
        f"{base.__name__}_{name}", [("name", str, field(default=name)), *added], bases=(base,)
    )
    schema.__doc__ = summary
    schema.__module__ = base.__module__
    setattr(sys.modules[base.__module__], schema.__name__, schema)  # where pickle looks for it
    return schema


def make_schemas(base: type[Any], rules: Iterable[type[Rule]]) -> dict[str, type[Any]]:
    """Return the schema of every rule by its key."""
    described = [(rule, rule.description.key, rule.description.summary) for rule in rules]
    return {
        key: make_schema(base, key, summary, derive_settings(rule))
        for rule, key, summary in described
    }


def make_custom_schema(
    base: type[Any], summary: str, settings: Iterable[Setting] = ()
) -> type[Any]:
    """Return the schema of a user's own rule, which ``path`` builds from ``args``."""
    path: Setting = ("path", str, parameter("", ImportPath()))
    args: Setting = ("args", Any, parameter(None, ARGUMENTS))
    return make_schema(base, CUSTOM, summary, (*settings, path, args))
