"""Derive settings from existing rules: the inverse of ``named.build``.

A rule of the user's own is named by its import path. Whoever reads that imports nothing, unless
told to trust it; see ``fedquorum.imports``.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any

from .composition import Rules
from .errors import ParameterError
from .named import ALL_SELECTIONS, ALL_WEIGHTINGS, COMPOSED, CUSTOM, NAMED, NONE, Named
from .participation import PARTICIPATIONS
from .rule import Rule, parameters_of
from .server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer


def described(declared: Named, options: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return the settings ``strategy`` and ``server_optimizer`` of which ``build`` makes the rules.

    Parameters
    ----------
    declared : Named
        The strategy; one that is in no table is described by its parts.
    options : mapping
        The parameters that its rules were given, by name.
    rules : Rules
        The rules.

    Raises
    ------
    ParameterError
        For a strategy of the user's own with what settings have no word for.
    """
    sampling = rules.selection.sampling
    sampled = {"fraction": sampling.fraction, "minimum": sampling.minimum}
    if NAMED.get(declared.key) is declared:
        chosen = _chosen(declared.parts, options)
        strategy = {"name": declared.key, **sampled, **chosen}
    else:
        strategy = {"name": COMPOSED, **sampled, **_parts(declared, options)}
    optimizer = _optimizer(rules.server_optimizer)
    return {"strategy": plain(strategy), "server_optimizer": plain(optimizer)}


def plain(value: Any) -> Any:
    """Return a value in the types of YAML and JSON, with Python numbers instead of NumPy's."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value)
    return value


def _chosen(parts: Sequence[type[Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of parts, those that nobody gave by their defaults."""
    declared = [item for part in parts for item in parameters_of(part)]
    return {item.name: options.get(item.name, item.default) for item in declared}


def _parts(declared: Named, options: Mapping[str, Any]) -> dict[str, Any]:
    participation = declared.participation
    known = participation is None or PARTICIPATIONS.get(participation.key) is participation
    if declared.memory is not None or not known:
        raise ParameterError(
            "records",
            "None for a strategy with a memory or a participation correction that is in no table",
            declared.key,
            "settings cannot name it",
        )
    correction = {"name": NONE}
    if participation is not None:
        correction = {"name": participation.key, **_chosen([participation], options)}
    return {
        "selection": _part(ALL_SELECTIONS, declared.selection, options),
        "weighting": _part(ALL_WEIGHTINGS, declared.weighting, options),
        "participation": correction,
    }


def _part(
    table: Mapping[str, type[Rule]], part: type[Rule], options: Mapping[str, Any]
) -> dict[str, Any]:
    return _named(table, part, _chosen([part], options))


def _optimizer(optimizer: ServerOptimizer[Any]) -> dict[str, Any]:
    items: Sequence[Field[Any]] = fields(optimizer) if is_dataclass(optimizer) else ()
    names = [item.name for item in items if item.name != "learning_rate"]
    given = {name: getattr(optimizer, name) for name in names}
    named = _named(SERVER_OPTIMIZERS, type(optimizer), given)
    return {**named, "learning_rate": optimizer.learning_rate}


def _named(
    table: Mapping[str, type[Rule]], rule: type[Rule], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a rule by its key, or by its path where it is in no table."""
    if table.get(rule.key) is rule:
        return {"name": rule.key, **parameters}
    return {"name": CUSTOM, "path": _path(rule), "args": dict(parameters)}


def _path(rule: type[Any]) -> str:
    """Return where a rule can be imported from: its module, or the file that the user ran."""
    if rule.__module__ == "__main__":
        return f"{inspect.getsourcefile(rule)}:{rule.__qualname__}"
    return f"{rule.__module__}.{rule.__qualname__}"
