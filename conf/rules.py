"""From settings to the rules of ``strategy=composed`` and to the server optimizer."""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from conf.schema.server_optimizer import ServerOptimizerSettings
from conf.schema.settings import Settings
from conf.schema.strategy import ComposedSettings, PartSettings
from strategies.composition import check_composition
from strategies.selection import Alone, EpsilonGate, Everyone, PriorityOnly, Sampling, Selection
from strategies.server_optimizer import SGD, Adagrad, Adam, Momentum, OptimizerOf, Yogi
from strategies.weighting import (
    AFL,
    TERM,
    AAggFFD,
    AAggFFS,
    AverageAll,
    AverageParticipating,
    DataFraction,
    FedAU,
    FedMGDAPlus,
    KnownRates,
    NoWeight,
    PropFair,
    QFedAvg,
    Weighting,
)

WEIGHTINGS: Mapping[str, type[Weighting[Any]]] = {
    "data_fraction": DataFraction,
    "average_participating": AverageParticipating,
    "average_all": AverageAll,
    "aaggff_s": AAggFFS,
    "aaggff_d": AAggFFD,
    "qfedavg": QFedAvg,
    "term": TERM,
    "propfair": PropFair,
    "afl": AFL,
    "fedmgda": FedMGDAPlus,
}
OPTIMIZERS: Mapping[str, OptimizerOf] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}


def optimizer_of(settings: ServerOptimizerSettings) -> OptimizerOf:
    """Return what makes the server optimizer of a learning rate."""
    return partial(OPTIMIZERS[settings.name], **_options(settings))


def composed_parts(
    own: ComposedSettings, *, rounds: int, seed: int, omega: Mapping[int, float]
) -> tuple[Selection, Weighting[Any]]:
    """Return the selection and the weighting of composed settings.

    Parameters
    ----------
    own : ComposedSettings
        They.
    rounds, seed : int
        The run's.
    omega : mapping of int to float
        1 / p_n by client id, for ``participation=known_statistics``.

    Raises
    ------
    ParameterError
        For a weighting that nothing can correct.
    """
    sampling = Sampling(own.fraction, own.priority_draws, seed)
    weighting = _weighting(own, omega)
    options = _options(own.selection)
    if own.selection.name == "epsilon_gate":
        return EpsilonGate(num_rounds=rounds, sampling=sampling, **options), weighting
    if own.selection.name == "priority_only":
        return PriorityOnly(sampling), weighting
    measures = isinstance(weighting, DataFraction)  # as FedAvg, which reports F(w)
    return Everyone(sampling, measures, weighting.needs_losses or measures), weighting


def check_rules(settings: Settings) -> None:
    """Refuse rules that make no sense together, before any work.

    Raises
    ------
    ParameterError
        With the setting, what is allowed, and the reason.
    """
    own, optimizer = settings.strategy, optimizer_of(settings.server_optimizer)(1.0)
    if own.name == "local_only":
        check_composition(Alone(), NoWeight(), optimizer)
    elif own.name == "fedmgda":
        check_composition(Everyone(), FedMGDAPlus(), optimizer)
    elif isinstance(own, ComposedSettings):
        selection, weighting = composed_parts(own, rounds=settings.rounds, seed=0, omega={})
        check_composition(selection, weighting, optimizer)


def _weighting(own: ComposedSettings, omega: Mapping[int, float]) -> Weighting[Any]:
    options = _options(own.weighting)
    if own.weighting.name == "aaggff_d":
        options["fraction"] = own.fraction
    base = WEIGHTINGS[own.weighting.name](**options)
    if own.participation.name == "fedau":
        return FedAU(base=base, **_options(own.participation))
    if own.participation.name == "known_statistics":
        return KnownRates(omega, base)
    return base


def _options(part: PartSettings | ServerOptimizerSettings) -> dict[str, Any]:
    return {item.name: getattr(part, item.name) for item in fields(part) if item.name != "name"}
