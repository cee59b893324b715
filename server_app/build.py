"""From settings to the parts of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from flwr.app import ArrayRecord

from client_app.data import FederatedData
from client_app.models import model_for
from conf.compose import named
from conf.errors import SettingsError
from conf.imports import make_imported, not_a
from conf.rules import composed_parts, optimizer_of
from conf.schema.data import DataSettings
from conf.schema.settings import Settings
from conf.schema.strategy import (
    ComposedSettings,
    FedAlignSettings,
    KnownStatisticsPart,
    LocalOnlySettings,
    MemorySettings,
    OwnRuleSettings,
)
from server_app.nodes import read_nodes
from strategies import (
    AFL,
    MIFA,
    TERM,
    AAggFFD,
    AAggFFS,
    Communication,
    ComposedStrategy,
    FedALIGN,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgParticipating,
    FedMGDAPlus,
    FedVarp,
    KnownStatistics,
    LocalOnly,
    Population,
    PropFair,
    QFedAvg,
    Robustness,
)
from strategies.codec import encode_arrays
from strategies.parameters import ParameterError
from strategies.sampled import Options, SampledStrategy
from strategies.weighting import inverse_rates

A_WEIGHTING = "a strategies.weighting.Weighting"
WEIGHS = ("init", "weigh", "over_known")

STRATEGIES: Mapping[str, Callable[..., ComposedStrategy[Any]]] = {
    "fedalign": FedALIGN,
    "fedavg": FedAvg,
    "fedavg_priority": FedAvg,
    "local_only": LocalOnly,
    "fedau": FedAU,
    "average_participating": FedAvgParticipating,
    "average_all": FedAvgAll,
    "known_statistics": KnownStatistics,
    "fedvarp": FedVarp,
    "mifa": MIFA,
    "aaggff_s": AAggFFS,
    "aaggff_d": AAggFFD,
    "qfedavg": QFedAvg,
    "term": TERM,
    "propfair": PropFair,
    "afl": AFL,
    "fedmgda": FedMGDAPlus,
}


def build_population(settings: DataSettings, data: FederatedData) -> Population:
    """Return all clients, with the priority and the weights that the settings give them."""
    weights = settings.priority_weights or {}
    return Population(
        tuple(range(data.num_clients)), frozenset(data.priority) | frozenset(weights), weights
    )


def build_strategy(
    settings: Settings, population: Population, rates: Sequence[float] | None
) -> ComposedStrategy[Any]:
    """Return the strategy of the settings; ``rates`` is p_n where a simulation knows it.

    Raises
    ------
    SettingsError
        If it needs the clients' participation rates and nobody knows them, its settings do not
        go together, or the file of the nodes' keys cannot be used.
    """
    nodes = settings.engine.nodes
    communication = Communication(
        round_timeout=settings.engine.round_timeout,
        startup_timeout=settings.engine.startup_timeout,
        startup_clients=settings.engine.startup_clients,
        # A sum of several clients' updates cannot be clipped one by one.
        partial_aggregation=settings.engine.partial_aggregation and settings.privacy.name == "none",
        evaluated_clients=settings.evaluation.clients,
        robustness=Robustness(settings.robustness.clip_norm, settings.robustness.max_weight),
        clients_of_keys=None if nodes is None else read_nodes(nodes, len(population.clients)),
    )
    own = settings.strategy
    if isinstance(own, OwnRuleSettings):
        return _own_rule(own, population, settings.seed, communication)
    if isinstance(own, ComposedSettings):
        return _composed(own, settings, population, rates, communication)
    options = {item.name: getattr(own, item.name) for item in fields(own)}
    name = options.pop("name")
    if not isinstance(own, LocalOnlySettings):
        options["server_optimizer"] = optimizer_of(settings.server_optimizer)
    if isinstance(own, FedAlignSettings):
        options["num_rounds"] = settings.rounds
    if isinstance(own, KnownStatisticsPart):
        options["probabilities"] = _probabilities(own, settings, rates)
    if isinstance(own, MemorySettings) and own.memory_dir is not None:
        options["memory_dir"] = _writable(Path(own.memory_dir).expanduser().absolute())
    try:
        return STRATEGIES[name](
            population, seed=settings.seed, communication=communication, **options
        )
    except ParameterError as error:
        raise SettingsError(named(error)) from None


def _composed(
    own: ComposedSettings,
    settings: Settings,
    population: Population,
    rates: Sequence[float] | None,
    communication: Communication,
) -> ComposedStrategy[Any]:
    part = own.participation
    try:
        omega: Mapping[int, float] = {}
        if isinstance(part, KnownStatisticsPart):
            omega = inverse_rates(population.clients, _probabilities(part, settings, rates))
        selection, weighting = composed_parts(
            own, rounds=settings.rounds, seed=settings.seed, omega=omega
        )
        return ComposedStrategy(
            population,
            selection=selection,
            weighting=weighting,
            server_optimizer=optimizer_of(settings.server_optimizer)(own.server_lr),
            communication=communication,
        )
    except ParameterError as error:
        raise SettingsError(named(error)) from None


def _own_rule(
    own: OwnRuleSettings, population: Population, seed: int, communication: Communication
) -> ComposedStrategy[Any]:
    """Return the strategy of a weighting rule that somebody else wrote."""
    rule = make_imported("strategy", A_WEIGHTING, own.path, own.args or {})
    if not all(callable(getattr(rule, method, None)) for method in WEIGHS):
        raise not_a("strategy", A_WEIGHTING, own.path, rule)
    options = Options(
        fraction=own.fraction, server_lr=own.server_lr, seed=seed, communication=communication
    )
    return SampledStrategy(population, rule, options)


def _writable(folder: Path) -> Path:
    """Return a folder, made if missing, once a file could be made there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SettingsError(
            f"strategy.memory_dir must be a folder that can be written, got {folder} "
            f"({error.strerror})"
        ) from None


def _probabilities(
    own: KnownStatisticsPart, settings: Settings, rates: Sequence[float] | None
) -> dict[int, float]:
    given = own.probabilities
    if given is not None:
        if not isinstance(given, list):
            raise SettingsError(
                f"strategy.probabilities must be null or a list of p_n for each client, got {given}"
            )
        return dict(enumerate(given))
    if rates is None:
        raise SettingsError(
            "strategy.probabilities must be a list of p_n for each client where "
            f"availability={settings.availability.name} does not tell them, got null"
        )
    return dict(enumerate(rates))


def initial_arrays(settings: Settings, data: FederatedData) -> ArrayRecord:
    """Return the model that round 1 broadcasts, by the names of its state_dict.

    Raises
    ------
    SettingsError
        If the model, the loss or the metric is not for such data.
    """
    model = model_for(settings, data)
    return encode_arrays({name: t.numpy() for name, t in model.state_dict().items()})
