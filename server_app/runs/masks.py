"""Refuse masks with too few nodes before a run, and say what they need."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedquorum import NativeProtocol, Population
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.flower.secure.plan import MIN_NODES
from fedquorum.flower.secure.settings import MaskSummary
from fedquorum.rules.composition import RuleSet
from fedquorum.server.quorum import Quorum

from conf.schema.rules import find_setting, format_parameter_error
from conf.schema.secure_sums import build_secure_aggregation
from conf.schema.settings import Settings

SETTINGS = {
    "quorum": "engine.quorum",
    "secure_aggregation": "secure_aggregation",
    "secure_aggregation.colluding": "secure_aggregation.colluding",
}
"""The settings of the parameters in errors about the nodes of a round with masks."""


def summarize_masks(
    settings: Settings, rules: RuleSet, population: Population, num_nodes: int | None
) -> MaskSummary | None:
    """Return the masks of a run; None without masks, or if the nodes are not known.

    Parameters
    ----------
    settings : Settings
    rules : RuleSet
    population : Population
    num_nodes : int, optional
        The nodes of a simulated run, which host its clients in turn. Others connect when it starts.

    Raises
    ------
    SettingsError
        If a round asks too few clients or nodes, or the quorum may leave too few.
    """
    secure_aggregation, engine = build_secure_aggregation(settings), settings.engine
    if secure_aggregation is None:
        return None
    sampling, num_clients = rules.selection.sampling, len(population.clients)
    if num_clients < MIN_NODES:
        raise SettingsError(
            f"secure_aggregation must be none with fewer than {MIN_NODES} clients, got "
            f"{settings.secure_aggregation.name} and {num_clients}"
        )
    if sampling.count_sampled(population)[1] < MIN_NODES:
        error = ParameterError(
            "fraction",
            f"so large that a round asks {MIN_NODES} clients with "
            f"secure_aggregation={settings.secure_aggregation.name}",
            sampling.fraction,
        )
        raise SettingsError(format_parameter_error(error, find_setting(error, settings)))
    if num_nodes is None:
        return None
    quorum = Quorum(engine.quorum, engine.quorum_clients)
    protocol = NativeProtocol(quorum=quorum, secure_aggregation=secure_aggregation)
    hosts = {client % num_nodes for client in population.clients}
    with name_settings():
        return protocol.summarize_masks(rules, population, len(hosts))


@contextmanager
def name_settings() -> Iterator[None]:
    """Name the settings in an error about the nodes of a round with masks."""
    try:
        yield
    except ParameterError as error:
        if error.parameter not in SETTINGS:
            raise
        raise SettingsError(format_parameter_error(error, SETTINGS[error.parameter])) from None
