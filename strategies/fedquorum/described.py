"""Derive settings from existing rules: the inverse of ``named.build_rules``.

Settings name a custom rule by its import path. A reader of the settings imports nothing unless the
user trusts them; see ``fedquorum.imports``.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any

from .composition import RuleSet
from .errors import ParameterError
from .named import (
    ALL_SELECTIONS,
    ALL_WEIGHTINGS,
    COMPOSED,
    CUSTOM,
    NAMED_STRATEGIES,
    NONE,
    StrategyEntry,
)
from .participation import PARTICIPATIONS
from .rule import Rule, get_parameters
from .server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer


def to_settings(entry: StrategyEntry, options: Mapping[str, Any], rules: RuleSet) -> dict[str, Any]:
    """Return the settings ``strategy`` and ``server_optimizer`` from which ``build_rules`` starts.

    Parameters
    ----------
    entry : StrategyEntry
        The strategy; one that is not in ``NAMED_STRATEGIES`` is described by its parts.
    options : mapping
        The parameters given to its rules, by name.
    rules : RuleSet

    Raises
    ------
    ParameterError
        If settings cannot name a part of a custom strategy.
    """
    sampling = rules.selection.sampling
    sampled = {"fraction": sampling.fraction, "minimum": sampling.minimum}
    if NAMED_STRATEGIES.get(entry.key) is entry:
        selected_options = _select_options(entry.rule_classes, options)
        strategy = {"name": entry.key, **sampled, **selected_options}
    else:
        strategy = {"name": COMPOSED, **sampled, **_describe_parts(entry, options)}
    optimizer = _describe_optimizer(rules.server_optimizer)
    return {"strategy": to_builtins(strategy), "server_optimizer": to_builtins(optimizer)}


def to_builtins(value: Any) -> Any:
    """Return a value in the types of YAML and JSON, with Python numbers instead of NumPy's."""
    if isinstance(value, Mapping):
        return {key: to_builtins(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_builtins(item) for item in value]
    if isinstance(value, float):
        return float(value)
    return value


def _select_options(parts: Sequence[type[Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of parts, with defaults for those that are not given."""
    declared = [item for part in parts for item in get_parameters(part)]
    return {item.name: options.get(item.name, item.default) for item in declared}


def _describe_parts(entry: StrategyEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    participation = entry.participation
    is_listed = participation is None or PARTICIPATIONS.get(participation.key) is participation
    if entry.memory is not None or not is_listed:
        raise ParameterError(
            "records",
            "None for a strategy with a memory or a participation correction that is in no table",
            entry.key,
            "settings cannot name it",
        )
    correction = {"name": NONE}
    if participation is not None:
        correction = {"name": participation.key, **_select_options([participation], options)}
    return {
        "selection": _describe_part(ALL_SELECTIONS, entry.selection, options),
        "weighting": _describe_part(ALL_WEIGHTINGS, entry.weighting, options),
        "participation": correction,
    }


def _describe_part(
    table: Mapping[str, type[Rule]], part: type[Rule], options: Mapping[str, Any]
) -> dict[str, Any]:
    return _describe_rule(table, part, _select_options([part], options))


def _describe_optimizer(optimizer: ServerOptimizer[Any]) -> dict[str, Any]:
    items: Sequence[Field[Any]] = fields(optimizer) if is_dataclass(optimizer) else ()
    names = [item.name for item in items if item.name != "learning_rate"]
    given = {name: getattr(optimizer, name) for name in names}
    named = _describe_rule(SERVER_OPTIMIZERS, type(optimizer), given)
    return {**named, "learning_rate": optimizer.learning_rate}


def _describe_rule(
    table: Mapping[str, type[Rule]], rule: type[Rule], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a rule by its key, or by its import path if it is not in the table."""
    if table.get(rule.key) is rule:
        return {"name": rule.key, **parameters}
    return {"name": CUSTOM, "path": _get_import_path(rule), "args": dict(parameters)}


def _get_import_path(rule: type[Any]) -> str:
    """Return the import path of a rule: by its module, or by the file that the user ran."""
    if rule.__module__ == "__main__":
        return f"{inspect.getsourcefile(rule)}:{rule.__qualname__}"
    return f"{rule.__module__}.{rule.__qualname__}"
