"""From settings to the processes of a run's clients."""

from collections.abc import Callable
from functools import cache

from client_app.availability.probabilities import (
    class_contribution,
    class_distribution,
    correlated_probability,
)
from client_app.availability.processes import (
    Bernoulli,
    Cyclic,
    Markov,
    Process,
    RandomProcess,
    Trace,
)
from client_app.availability.trace import read_trace
from client_app.data.base import FederatedData
from conf.errors import SettingsError
from conf.schema.availability import (
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
    """Return what gives each client its process, made when first needed; None for ``always``.

    The process of a client follows from the settings, the seed and its own labels.

    Raises
    ------
    DataError
        If the trace cannot be read.
    SettingsError
        If a list of probabilities is not for as many clients as the data has.
    """
    own = settings.availability
    if isinstance(own, AlwaysSettings):
        return None
    if isinstance(own, TraceSettings):
        rounds = read_trace(own.path, data.num_clients)
        return lambda client: Trace(rounds.get(client, frozenset()))
    return _random_processes(own, settings.seed, data)


def participation_probabilities(settings: Settings, data: FederatedData) -> list[float] | None:
    """Return the share of rounds in which each client is available, or None for a trace.

    Shape (N,), in (0, 1]; 1 for ``always``. For ``cyclic`` it is the realised one, active
    rounds / period, which differs from p_n by rounding. Only a simulation has the labels of all
    clients in one place: this is for baselines and diagnostics that are handed what no server
    knows.
    """
    own = settings.availability
    if isinstance(own, TraceSettings):
        return None
    if isinstance(own, AlwaysSettings):
        return [1.0] * data.num_clients
    process = _random_processes(own, settings.seed, data)
    return [process(client).rate for client in range(data.num_clients)]


def _random_processes(
    own: AvailabilitySettings, seed: int, data: FederatedData
) -> Callable[[int], RandomProcess]:
    if not isinstance(own, RandomAvailabilitySettings):
        raise TypeError(f"no availability process for {type(own).__name__}")
    probability = _probability(own, seed, data)
    return cache(lambda client: _process(own, probability(client)))


def _probability(
    own: RandomAvailabilitySettings, seed: int, data: FederatedData
) -> Callable[[int], float]:
    given = own.p
    if isinstance(given, list):
        if len(given) != data.num_clients:
            raise SettingsError(
                "availability.p must have one number for each of the "
                f"{data.num_clients} clients in the data, got {len(given)}"
            )
        return lambda client: float(given[client])
    if given is not None:
        return lambda _: float(given)
    contribution = class_contribution(seed, data.num_classes, own.class_alpha)
    return lambda client: correlated_probability(
        class_distribution(data.labels(client), data.num_classes),
        contribution,
        mean=own.mean,
        minimum=own.minimum,
    )


def _process(own: RandomAvailabilitySettings, p: float) -> RandomProcess:
    if isinstance(own, BernoulliSettings):
        return Bernoulli(p)
    if isinstance(own, MarkovSettings):
        return Markov(p, own.max_transition)
    if isinstance(own, CyclicSettings):
        return Cyclic(p, own.period, own.start)
    raise TypeError(f"no availability process for {type(own).__name__}")
