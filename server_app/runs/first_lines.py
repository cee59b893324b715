"""Say at the start of a run what was understood, and which settings nobody gave."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict

from fedquorum.flower.secure.settings import MaskSummary
from fedquorum.records.client_names import can_record_names
from fedquorum.records.data_facts import suggest_metric
from fedquorum.records.settings import flatten_settings
from fedquorum.rules.types import Population

from client_app.data import load_data
from client_app.data.describe import describe_data
from client_app.data.summary import DataSummary
from conf import ComposedConfig, Settings
from conf.schema.late import format_late_doubt
from conf.schema.secure_sums import choose_num_nodes
from conf.schema.settings import get_evaluation_metric
from server_app.runs.build import build_population
from server_app.runs.masks import summarize_masks

NAMED_DEFAULTS = (
    "strategy",
    "model",
    "rounds",
    "client.lr",
    "client.batch_size",
    "client.local_epochs",
)
"""The settings that a line names if nobody gave them."""


def describe_run_data(settings: Settings) -> DataSummary:
    """Return how a run with these settings interprets its data.

    Raises
    ------
    DataError, SettingsError
        If the run would raise it.
    """
    data = load_data(settings.data, settings.seed)
    groups = list_evaluated_groups(build_population(settings, data))
    has_names = can_record_names(data.num_clients, recorded=settings.data.names)
    return describe_data(data, groups, names=has_names)


def preview_masks(composed: ComposedConfig) -> MaskSummary | None:
    """Return the masks of a run with these settings; None without masks, or on devices.

    Raises
    ------
    DataError, SettingsError
        If the run would raise it.
    """
    settings = composed.settings
    data = load_data(settings.data, settings.seed)
    is_simulated = settings.engine.name != "flower"
    num_nodes = choose_num_nodes(settings, data.num_clients) if is_simulated else None
    population = build_population(settings, data)
    return summarize_masks(settings, composed.rules, population, num_nodes)


def list_first_lines(
    composed: ComposedConfig, summary: DataSummary, masks: MaskSummary | None
) -> Iterator[str]:
    """Yield the lines before round 1: the data, defaults, a better metric, a doubt, masks."""
    yield from summary.format_lines(composed.settings.data.name)
    lines = (
        format_defaults(composed),
        _format_suggestion(composed, summary),
        format_late_doubt(composed.settings, composed.rules),
        "" if masks is None else masks.format_line(),
    )
    yield from filter(None, lines)


def _format_suggestion(composed: ComposedConfig, summary: DataSummary) -> str:
    text = suggest_metric(summary.to_dict(), get_evaluation_metric(composed.settings))
    return f"Suggestion: {text}" if text else ""


def list_evaluated_groups(population: Population) -> Mapping[str, Collection[int]]:
    """Return the clients of each group whose test metrics a run summarizes."""
    clients = frozenset(population.clients)
    return {
        "all": clients,
        "priority": clients & population.priority,
        "non_priority": clients - population.priority,
        "held_out": population.held_out,
    }


def format_defaults(composed: ComposedConfig) -> str:
    """Return a line with the most important settings that have their defaults.

    It is empty with a preset, whose values the user has chosen.
    """
    if composed.experiment != "custom":
        return ""
    values = flatten_settings(asdict(composed.settings))
    given = {override.lstrip("+~").partition("=")[0] for override in composed.overrides}
    defaults = ", ".join(
        f"{key}={values.get(key, values.get(f'{key}.name'))}"
        for key in NAMED_DEFAULTS
        if not given & {key, f"{key}.name", key.partition(".")[0]}
    )
    return f"Not given, so by default (experiment=custom): {defaults}" if defaults else ""
