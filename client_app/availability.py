"""From settings to the processes of a run's clients."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache

import numpy as np
from fedquorum.client.availability.periodic import Periodic, pattern_of
from fedquorum.client.availability.probabilities import (
    class_contribution,
    class_distribution,
    class_rate_probability,
    class_rates,
    correlated_probability,
)
from fedquorum.client.availability.processes import (
    Bernoulli,
    Cyclic,
    Markov,
    Process,
    RandomProcess,
    Resting,
    Trace,
)
from fedquorum.client.availability.rates import SimulatedRates
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


def client_processes(settings: Settings, data: FederatedData) -> Callable[[int], Process] | None:
    """Return a function that makes each client's process on first use; None for ``always``.

    The process of a client follows from the settings, the seed and its own labels.

    Raises
    ------
    DataError
        If the trace cannot be read.
    SettingsError
        If a list of probabilities is not for as many clients as the data has.
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
    return _random_processes(availability, settings.seed, data)


def simulated_rates(settings: Settings, data: FederatedData) -> SimulatedRates | None:
    """Return how often each client is available, or None for a trace.

    In (0, 1]; 1 for ``always``. For ``cyclic`` it is the realised share of rounds, active
    rounds / period, which differs from p_n by rounding. Only a simulation has the labels of all
    clients in one place: this is for baselines and diagnostics that are handed what no server
    knows.
    """
    availability = settings.availability
    if isinstance(availability, TraceSettings):
        return None
    if isinstance(availability, AlwaysSettings):
        return SimulatedRates(np.ones(data.num_clients))
    process = _random_processes(availability, settings.seed, data)
    if isinstance(availability, RandomAvailabilitySettings) and _is_of_all(availability.p):
        p = np.full(data.num_clients, _base_rate(process(0)))
    else:
        p = np.array([_base_rate(process(client)) for client in range(data.num_clients)])
    return SimulatedRates(p, pattern_of(asdict(availability)))


def _base_rate(process: RandomProcess) -> float:
    """Return the rate of a client before a pattern changes it."""
    return process.p if isinstance(process, Periodic) else process.rate


def _random_processes(
    settings: AvailabilitySettings, seed: int, data: FederatedData
) -> Callable[[int], RandomProcess]:
    if not isinstance(settings, RandomAvailabilitySettings):
        raise TypeError(f"no availability process for {type(settings).__name__}")
    probability = _probability(settings, seed, data)
    if _is_of_all(settings.p):
        alike = _process(settings, probability(0))
        return lambda _: alike
    return cache(lambda client: _process(settings, probability(client)))


def _is_of_all(p: object) -> bool:
    """Say whether one probability is that of all clients, who then share a process."""
    return p not in (None, CLASS_RATES) and not isinstance(p, list)


def _probability(
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
        rates = class_rates(seed, data.num_classes)
        return lambda client: class_rate_probability(
            class_distribution(data.labels(client), data.num_classes),
            rates,
            minimum=settings.minimum,
        )
    if given is not None:
        return lambda _: float(given)
    contribution = class_contribution(seed, data.num_classes, settings.class_alpha)
    return lambda client: correlated_probability(
        class_distribution(data.labels(client), data.num_classes),
        contribution,
        mean=settings.mean,
        minimum=settings.minimum,
    )


def _process(settings: RandomAvailabilitySettings, p: float) -> RandomProcess:
    if isinstance(settings, BernoulliSettings):
        return Resting(Bernoulli(p), settings.rest) if settings.rest else Bernoulli(p)
    if isinstance(settings, MarkovSettings):
        return Markov(p, settings.max_transition)
    if isinstance(settings, CyclicSettings):
        return Cyclic(p, settings.period, settings.start)
    pattern = pattern_of(asdict(settings))
    if pattern is not None:
        return Periodic(p, pattern)
    raise TypeError(f"no availability process for {type(settings).__name__}")
