"""Refuse masks with too few nodes before a run, and say what they need."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedquorum import NativeProtocol, Population
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.flower.secure.plan import MIN_NODES
from fedquorum.flower.secure.settings import MaskSummary
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.formatting import count
from fedquorum.rules.selection.warmup import WarmUpSelection
from fedquorum.server.quorum import Quorum

from conf.schema.rules import find_setting, format_parameter_error
from conf.schema.secure_sums import build_secure_aggregation
from conf.schema.settings import Settings

SETTINGS = {
    "quorum": "engine.quorum",
    "quorum_clients": "engine.quorum_clients",
    "secure_aggregation": "secure_aggregation",
    "secure_aggregation.colluding": "secure_aggregation.colluding",
    "secure_aggregation.dropping": "secure_aggregation.dropping",
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
    num_clients, name = len(population.clients), settings.secure_aggregation.name
    if num_clients < MIN_NODES:
        raise SettingsError(
            f"secure_aggregation must be none with fewer than {MIN_NODES} clients, got {name} and "
            f"{num_clients}"
        )
    if settings.evaluation.clients == "priority" and settings.evaluation.every is not None:
        num_hosts = _count_hosts(population.priority, num_nodes)
        if num_hosts < MIN_NODES:
            raise SettingsError(
                f"evaluation.clients must be all with secure_aggregation={name} (the priority "
                f"clients are on {count(num_hosts, 'node')}, and a sum needs {MIN_NODES}), got "
                "priority"
            )
    error = _find_small_round(rules, population, num_nodes, f"secure_aggregation={name}")
    if error is not None:
        raise SettingsError(format_parameter_error(error, find_setting(error, settings)))
    if num_nodes is None:
        return None
    quorum = Quorum(engine.quorum, engine.quorum_clients)
    protocol = NativeProtocol(quorum=quorum, secure_aggregation=secure_aggregation)
    with name_settings():
        num_hosts = _count_hosts(population.clients, num_nodes)
        return protocol.summarize_masks(rules, population, num_hosts)


def _count_hosts(clients: Iterable[int], num_nodes: int | None) -> int:
    """Return the number of nodes that host these clients; each is a node if that is not known."""
    return len({client if num_nodes is None else client % num_nodes for client in clients})


def _find_small_round(
    rules: RuleSet, population: Population, num_nodes: int | None, masks: str
) -> ParameterError | None:
    """Return the error about the parameter by which a round asks too few clients, or None."""
    selection = rules.selection
    num_priority, num_asked = selection.sampling.count_sampled(population)
    if num_asked < MIN_NODES:
        allowed = f"so large that a round asks {MIN_NODES} clients with {masks}"
        return ParameterError("fraction", allowed, selection.sampling.fraction)
    if not isinstance(selection, WarmUpSelection) or selection.num_warmup_rounds == 0:
        return None
    num_hosts = min(num_priority, _count_hosts(population.priority, num_nodes))
    if num_hosts >= MIN_NODES:
        return None
    given = selection.warmup_rounds
    key = "warmup_fraction" if given is None else "warmup_rounds"
    hosts = count(num_hosts, "node")
    reason = f"a round of the warm-up asks {hosts}, with the priority clients"
    return ParameterError(key, f"0 with {masks}", getattr(selection, key), reason)


@contextmanager
def name_settings() -> Iterator[None]:
    """Name the settings in an error about the nodes of a round with masks."""
    try:
        yield
    except ParameterError as error:
        if error.parameter not in SETTINGS:
            raise
        raise SettingsError(format_parameter_error(error, SETTINGS[error.parameter])) from None
