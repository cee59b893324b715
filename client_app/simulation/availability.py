"""Build the availability processes of a run's clients from the settings."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache

import numpy as np
from fedquorum.client.availability.periodic import PeriodicProcess, build_pattern
from fedquorum.client.availability.probabilities import (
    compute_class_distribution,
    compute_class_rate_probability,
    compute_correlated_probability,
    sample_class_contribution,
    sample_class_rates,
)
from fedquorum.client.availability.processes import (
    AvailabilityProcess,
    Bernoulli,
    Cooldown,
    Cyclic,
    Markov,
    StochasticProcess,
    Trace,
)
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.client.availability.trace import read_trace
from fedquorum.errors import DataError, SettingsError

from client_app.data.base import FederatedData
from conf.schema.availability import (
    CLASS_RATES,
    AlwaysSettings,
    AvailabilitySettings,
    BernoulliSettings,
    CyclicSettings,
    MarkovSettings,
    RandomAvailabilitySettings,
    TraceSettings,
)
from conf.schema.settings import Settings


def build_processes(
    settings: Settings, data: FederatedData
) -> Callable[[int], AvailabilityProcess] | None:
    """Return a function that builds each client's process on first use; None for ``always``.

    The process of a client depends on the settings, the seed and the client's labels.

    Raises
    ------
    DataError
        If the trace cannot be read.
    SettingsError
        If the number of probabilities in a list differs from the number of clients.
    """
    availability = settings.availability
    if isinstance(availability, AlwaysSettings):
        return None
    if isinstance(availability, TraceSettings):
        try:
            rounds = read_trace(availability.path, data.num_clients)
        except DataError as error:
            raise DataError(f"availability.path: {error}") from None
        return lambda client: Trace(rounds.get(client, frozenset()))
    return _build_stochastic_processes(availability, settings.seed, data)


def compute_participation_rates(
    settings: Settings, data: FederatedData
) -> ParticipationRates | None:
    """Return the fraction of rounds in which each client is available, or None for a trace.

    Rates are in (0, 1]; 1 for ``always``. For ``cyclic`` the rate is the realized fraction, active
    rounds / period, which differs from p_n by rounding. Only a simulation has the labels of all
    clients in one place: these rates serve baselines and diagnostics, and no server knows them.
    """
    availability = settings.availability
    if isinstance(availability, TraceSettings):
        return None
    if isinstance(availability, AlwaysSettings):
        return ParticipationRates(np.ones(data.num_clients))
    process = _build_stochastic_processes(availability, settings.seed, data)
    if isinstance(availability, RandomAvailabilitySettings) and _is_shared(availability.p):
        p = np.full(data.num_clients, _get_base_rate(process(0)))
    else:
        p = np.array([_get_base_rate(process(client)) for client in range(data.num_clients)])
    return ParticipationRates(p, build_pattern(asdict(availability)))


def _get_base_rate(process: StochasticProcess) -> float:
    """Return a client's rate before a periodic pattern modulates it."""
    return process.p if isinstance(process, PeriodicProcess) else process.rate


def _build_stochastic_processes(
    settings: AvailabilitySettings, seed: int, data: FederatedData
) -> Callable[[int], StochasticProcess]:
    if not isinstance(settings, RandomAvailabilitySettings):
        raise TypeError(f"no availability process for {type(settings).__name__}")
    probability = _get_probability(settings, seed, data)
    if _is_shared(settings.p):
        shared = _build_process(settings, probability(0))
        return lambda _: shared
    return cache(lambda client: _build_process(settings, probability(client)))


def _is_shared(p: object) -> bool:
    """Return whether all clients have one probability, and therefore share a process."""
    return p not in (None, CLASS_RATES) and not isinstance(p, list)


def _get_probability(
    settings: RandomAvailabilitySettings, seed: int, data: FederatedData
) -> Callable[[int], float]:
    given = settings.p
    if isinstance(given, list):
        if len(given) != data.num_clients:
            raise SettingsError(
                "availability.p must have one number for each of the "
                f"{data.num_clients} clients in the data, got {len(given)}"
            )
        return lambda client: float(given[client])
    if given == CLASS_RATES:
        rates = sample_class_rates(seed, data.num_classes)
        return lambda client: compute_class_rate_probability(
            compute_class_distribution(data.get_labels(client), data.num_classes),
            rates,
            minimum=settings.minimum,
        )
    if given is not None:
        return lambda _: float(given)
    contribution = sample_class_contribution(seed, data.num_classes, settings.class_alpha)
    return lambda client: compute_correlated_probability(
        compute_class_distribution(data.get_labels(client), data.num_classes),
        contribution,
        mean=settings.mean,
        minimum=settings.minimum,
    )


def _build_process(settings: RandomAvailabilitySettings, p: float) -> StochasticProcess:
    if isinstance(settings, BernoulliSettings):
        return Cooldown(Bernoulli(p), settings.rest) if settings.rest else Bernoulli(p)
    if isinstance(settings, MarkovSettings):
        return Markov(p, settings.max_transition)
    if isinstance(settings, CyclicSettings):
        return Cyclic(p, settings.period, settings.start)
    pattern = build_pattern(asdict(settings))
    if pattern is not None:
        return PeriodicProcess(p, pattern)
    raise TypeError(f"no availability process for {type(settings).__name__}")
