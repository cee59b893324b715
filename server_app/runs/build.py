"""Build the parts of a run from its settings."""

from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fedquorum import ComposedStrategy, NativeProtocol, Population, Robustness
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.errors import ParameterError, SettingsError
from fedquorum.flower.codec import encode_arrays
from fedquorum.records.client_names import NO_NAMES, ClientNames
from fedquorum.records.settings import flatten_settings
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.hooks import NO_HOOKS, Hooks
from fedquorum.rules.selection import Sampling
from fedquorum.server.quorum import Quorum
from flwr.app import ArrayRecord
from torch import nn

from client_app.data import FederatedData
from client_app.data.held_out import select_held_out_clients
from client_app.data.priority import find_priority_weights
from client_app.models import build_model_for
from conf import ComposedConfig
from conf.schema.checks import check_rules
from conf.schema.late import build_late_updates
from conf.schema.rules import (
    complete_rules,
    find_setting,
    format_parameter_error,
    get_requirement_settings,
)
from conf.schema.secure_sums import build_secure_aggregation
from conf.schema.settings import Settings, get_evaluation_metric
from server_app.runs.node_keys import read_node_keys
from server_app.runs.privacy import build_mechanism
from server_app.runs.requirements import load_run_requirements

_OWN_SELECTIONS = f"{Sampling.__module__.rpartition('.')[0]}."


def build_population(settings: Settings, data: FederatedData) -> Population:
    """Return all clients with their priority and weights in the settings.

    Raises
    ------
    SettingsError
        If the settings hold out too few or too many clients, or name a client that does not exist.
    """
    weights = find_priority_weights(
        settings.data.priority_weights, data.num_clients, data.client_names
    )
    priority = frozenset(data.priority) | frozenset(weights)
    held_out = select_held_out_clients(settings.data, data.num_clients, priority, settings.seed)
    clients = sorted({*range(data.num_clients)}.difference(held_out))
    return Population(tuple(clients), priority.difference(held_out), weights, held_out=held_out)


def build_hooks(settings: Settings, num_clients: int) -> Hooks:
    """Return the hooks for the clients' requirements in the settings.

    Raises
    ------
    RunError
        If the settings name another run for the requirements, and they cannot be read from it.
    SettingsError
        If the requirements belong to other clients than the data has.
    """
    return load_run_requirements(
        get_requirement_settings(settings),
        flatten_settings(asdict(settings)),
        num_clients,
        None if settings.resume is None else Path(settings.resume).expanduser().absolute(),
    )


def build_strategy(
    composed: ComposedConfig,
    population: Population,
    rates: ParticipationRates | None,
    hooks: Hooks = NO_HOOKS,
    names: ClientNames = NO_NAMES,
) -> ComposedStrategy:
    """Build the strategy of the settings.

    Parameters
    ----------
    composed : ComposedConfig
        The run's settings, with their rules.
    population : Population
        The result of ``build_population``.
    rates : ParticipationRates, optional
        How often each client participates; None unless a simulation knows it.
    hooks : Hooks
        The result of ``build_hooks``.
    names : ClientNames
        The clients' names, for messages.

    Raises
    ------
    SettingsError
        If the strategy needs participation rates and ``rates`` is None, the settings contradict
        each other, a custom rule cannot be imported from its path, the file of the nodes' keys
        cannot be read, or the noise is not possible.
    """
    settings = composed.settings
    rules = complete_rules(composed.rules, settings, population, rates, hooks)
    rules = _resolve_memory_folder(settings, rules)
    check_rules(settings, rules)
    _check_quorum(settings, population, rules)
    try:
        return ComposedStrategy(
            rules,
            population=population,
            communication=_build_protocol(
                settings,
                population,
                names,
                evaluated_training=rules.hooks.report is not None,
            ),
        )
    except ParameterError as error:
        raise SettingsError(format_parameter_error(error, find_setting(error, settings))) from None


def _check_quorum(settings: Settings, population: Population, rules: RuleSet) -> None:
    """Refuse a number of replies that no round can have: every round would wait for all.

    Raises
    ------
    SettingsError
        If there is such a number.
    """
    quorum, concurrency = settings.engine.quorum, settings.engine.concurrency
    if concurrency is not None and concurrency > len(population.clients):
        raise SettingsError(
            f"engine.concurrency must be at most {len(population.clients)}, the number of clients, "
            f"got {concurrency} (null lets all be under way)"
        )
    if quorum is None or quorum < 1:
        return
    limits = {"the number of clients": len(population.clients)}
    # Another selection may have a sampling, and ask more clients than it draws.
    sampling = getattr(rules.selection, "sampling", None)
    if type(rules.selection).__module__.startswith(_OWN_SELECTIONS) and sampling is not None:
        drawn, limits["the number of clients that a round asks"] = sampling.count_sampled(
            population
        )
        # A round without a priority client counts all others, which availability may cause.
        if (
            settings.engine.quorum_clients == "priority"
            and drawn
            and settings.availability.name == "always"
        ):
            limits["the number of priority clients that a round asks"] = drawn
    for what, limit in limits.items():
        if quorum > limit:
            raise SettingsError(
                f"engine.quorum must be at most {limit}, {what}, got {int(quorum)} (null waits for "
                "all replies, 0.8 for 80 % of them)"
            )


def _build_protocol(
    settings: Settings, population: Population, names: ClientNames, *, evaluated_training: bool
) -> NativeProtocol:
    engine = settings.engine
    key_file = engine.node_keys
    return NativeProtocol(
        late_updates=build_late_updates(settings),
        secure_aggregation=build_secure_aggregation(settings),
        round_timeout=engine.round_timeout,
        quorum=Quorum(engine.quorum, engine.quorum_clients, engine.grace_seconds),
        virtual_clock=settings.response_time.name != "none",
        startup_timeout=engine.startup_timeout,
        startup_clients=engine.startup_clients,
        partial_aggregation=engine.partial_aggregation,
        reply_memory=engine.reply_memory,
        evaluated_clients=settings.evaluation.clients,
        evaluated_training=evaluated_training,
        robustness=Robustness(settings.robustness.clip_norm, settings.robustness.max_weight),
        privacy=build_mechanism(settings.privacy, len(population.clients)),
        evaluate_every=settings.evaluation.every or settings.rounds,
        evaluate_every_seconds=settings.evaluation.every_seconds,
        metric=get_evaluation_metric(settings),
        last_round=settings.rounds,
        simulated_seconds=engine.simulated_seconds,
        client_names=names,
        clients_by_key=None
        if key_file is None
        else read_node_keys(key_file, len(population.hosted_clients)),
    )


def _resolve_memory_folder(settings: Settings, rules: RuleSet) -> RuleSet:
    """Create the folder of ``strategy.memory_dir``; return the rules with its absolute path."""
    given = getattr(settings.strategy, "memory_dir", None)
    if given is None:
        return rules
    folder = str(_ensure_writable(Path(given).expanduser().absolute()))
    if rules.memory is not None:
        return replace(rules, memory=replace(rules.memory, memory_dir=folder))
    weighting: Any = rules.weighting  # one whose clients start from models of their own
    return replace(rules, weighting=replace(weighting, memory_dir=folder))


def _ensure_writable(folder: Path) -> Path:
    """Create a folder if it is missing, check that it is writable, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SettingsError(
            f"strategy.memory_dir must be a folder that can be written, got {folder} "
            f"({error.strerror})"
        ) from None


def build_initial_arrays(settings: Settings, data: FederatedData) -> ArrayRecord:
    """Return the initial model as arrays, named as in its state_dict.

    Raises
    ------
    SettingsError
        If the model, the loss or the metric does not fit the data.
    """
    return encode_model(build_model_for(settings, data))


def encode_model(model: nn.Module) -> ArrayRecord:
    """Return a model as arrays, named as in its state_dict."""
    return encode_arrays({name: t.numpy() for name, t in model.state_dict().items()})
