"""From settings to the parts of a run."""

from dataclasses import fields
from typing import Any

from flwr.app import ArrayRecord

from client_app.data import FederatedData
from client_app.models import build_model
from conf.schema import (
    DataSettings,
    FedAlignSettings,
    FedAvgSettings,
    LocalOnlySettings,
    Settings,
)
from strategies import (
    Communication,
    ComposedStrategy,
    FedALIGN,
    FedAvg,
    LocalOnly,
    Population,
)
from strategies.codec import encode_arrays


def build_population(settings: DataSettings, data: FederatedData) -> Population:
    """Return all clients, with the priority and the weights that the settings give them."""
    weights = settings.priority_weights or {}
    return Population(
        tuple(range(data.num_clients)), frozenset(data.priority) | frozenset(weights), weights
    )


def build_strategy(settings: Settings, population: Population) -> ComposedStrategy[Any]:
    """Return the strategy of the settings."""
    communication = Communication(
        round_timeout=settings.engine.round_timeout,
        startup_timeout=settings.engine.startup_timeout,
        evaluated_clients=settings.evaluation.clients,
    )
    strategy = settings.strategy
    options = {item.name: getattr(strategy, item.name) for item in fields(strategy)}
    name = options.pop("name")
    if isinstance(strategy, FedAlignSettings):
        return FedALIGN(
            population,
            num_rounds=settings.rounds,
            seed=settings.seed,
            communication=communication,
            **options,
        )
    if isinstance(strategy, FedAvgSettings):
        return FedAvg(population, seed=settings.seed, communication=communication, **options)
    if isinstance(strategy, LocalOnlySettings):
        return LocalOnly(population, seed=settings.seed, communication=communication, **options)
    raise TypeError(f"no strategy for {name!r}")


def initial_arrays(settings: Settings, data: FederatedData) -> ArrayRecord:
    """Return the model that round 1 broadcasts, by the names of its state_dict."""
    model = build_model(settings.model, data.input_shape, data.num_classes, settings.seed)
    return encode_arrays({name: t.numpy() for name, t in model.state_dict().items()})
