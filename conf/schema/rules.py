"""Build the rules from settings, and report their errors by the names of settings."""

import re
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.registry import CUSTOM, build_rules, takes_client_facts
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.hooks import NO_HOOKS, Hooks
from fedquorum.rules.rule import RunContext
from fedquorum.rules.schedules import ClientLRSchedule
from fedquorum.rules.types import Population

from conf.schema.model import MODULE
from conf.schema.settings import Settings
from conf.schema.strategy import PART_SCHEMAS, PartsSettings

_YAML_WORDS = {"None": "null", "True": "true", "False": "false"}


def rules_from_settings(
    settings: Settings,
    rates: ParticipationRates | None = None,
    clients: tuple[int, ...] = (),
    priority: frozenset[int] | None = None,
    hooks: Hooks = NO_HOOKS,
) -> RuleSet:
    """Return the rules of the settings.

    Parameters
    ----------
    settings : Settings
        The settings of the run.
    rates : ParticipationRates, optional
        How often each client participates, if a simulation knows it.
    clients : tuple of int
        All clients; empty until they are registered.
    priority : frozenset of int, optional
        The clients with priority; None for all.
    hooks : Hooks
        The run's additions to the hooks of its rules; see ``server_app.runs.build.build_hooks``.

    Raises
    ------
    SettingsError
        If a rule refuses its settings, the rules do not fit together, or the given path has no
        custom rule.
    """
    context = RunContext(
        settings.rounds,
        settings.seed,
        clients=clients,
        priority=priority,
        hooks=hooks,
        client_lr_schedule=ClientLRSchedule.from_settings(asdict(settings.client)),
    )
    if rates is not None:
        context = replace(context, rates=rates.by_client, pattern=rates.pattern)
        context = replace(context, counted=rates.counted_by_client)
    try:
        return build_rules(asdict(settings.strategy), asdict(settings.server_optimizer), context)
    except ParameterError as error:
        raise SettingsError(format_parameter_error(error, find_setting(error, settings))) from None


def complete_rules(
    rules: RuleSet,
    settings: Settings,
    population: Population,
    rates: ParticipationRates | None,
    hooks: Hooks,
) -> RuleSet:
    """Return the rules of the settings with the facts about a run's clients.

    Only rules that take values from the clients are built again; a custom rule may be one. The
    other parameters and the errors are those of ``rules_from_settings``.
    """
    if is_custom(settings) or takes_client_facts(rules):
        clients, priority = population.clients, population.priority
        return rules_from_settings(settings, rates, clients, priority, hooks)
    return replace(rules, run_hooks=hooks)


def is_custom(settings: Settings) -> bool:
    """Say whether a rule is custom, so that building the rules imports it."""
    return any(node.name == CUSTOM for node in get_rule_settings(settings).values())


def list_imported_code(settings: Settings) -> dict[str, str]:
    """Return the settings that name code by import path: custom rules and a custom model."""
    nodes = {**get_rule_settings(settings), "model": settings.model}
    return {
        f"{key}.path": str(getattr(node, "path", ""))
        for key, node in nodes.items()
        if node.name == (MODULE if key == "model" else CUSTOM)
    }


def format_parameter_error(error: ParameterError, name: str) -> str:
    """Return an error's message with the name of its setting, and with values as in YAML."""
    text_value = error.got if isinstance(error.got, str) else None
    text = error.format_for(name)
    quoted_text = "" if text_value is None else repr(text_value)
    text = text.removesuffix(quoted_text)
    return re.sub(r"\b(None|True|False)\b", lambda match: _YAML_WORDS[match[0]], text) + quoted_text


def find_setting(error: ParameterError, settings: Settings) -> str:
    """Return the name of the setting behind a parameter of a rule.

    It is the setting of that name in the strategy, its parts or the server optimizer; of several,
    the setting with the value. For a part as a whole, it is the group.
    """
    parameter, bracket, rest = error.parameter.partition("[")
    found = {key: value for key, value in _flatten(settings) if key.endswith(f".{parameter}")}
    with_value = [key for key, value in found.items() if value == error.got]
    for key in (*with_value, *found):
        return f"{key}{bracket}{rest}"
    is_part = isinstance(settings.strategy, PartsSettings) and parameter in PART_SCHEMAS
    return f"strategy/{parameter}" if is_part else error.parameter


def get_rule_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of each rule by dotted key such as ``strategy.weighting``."""
    strategy = settings.strategy
    parts = PART_SCHEMAS if isinstance(strategy, PartsSettings) else ()
    return {
        "strategy": strategy,
        **{f"strategy.{part}": getattr(strategy, part) for part in parts},
        "server_optimizer": settings.server_optimizer,
    }


def get_requirement_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that may have the clients' requirements, by dotted key."""
    return {"evaluation": settings.evaluation, **get_rule_settings(settings)}


def _flatten(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the settings of the rules by dotted key."""
    for prefix, node in get_rule_settings(settings).items():
        for item in fields(node):
            value = getattr(node, item.name)
            if not is_dataclass(value):
                yield f"{prefix}.{item.name}", value
