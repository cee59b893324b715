"""Compute how often a simulated run counts each client: available, selected, and in time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from fedquorum import Population
from fedquorum.client.availability.processes import AvailabilityProcess
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.client.latency import LatencyModel
from fedquorum.errors import SettingsError
from fedquorum.rng import derive_seed, make_generator
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.participation.known_rates import needs_rates
from fedquorum.rules.round import ClientOutcome
from fedquorum.rules.selection.base import get_known_probabilities
from fedquorum.rules.types import ClientReports, FloatArray, PerClient
from fedquorum.server.quorum import Quorum
from fedquorum.server.virtual_clock import Clock, close_virtual_round

from client_app.data import FederatedData
from client_app.simulation.availability import build_processes, compute_participation_rates
from client_app.simulation.response_times import build_latency_model
from conf.schema.checks import check_rates_computable
from conf.schema.settings import Settings

NUM_SIMULATED_ROUNDS = 10_000
"""The standard error of a rate is then at most sqrt(1/4 / 10,000) = 0.005."""

STREAM_NAME = "rates-ahead"


def compute_counted_rates(
    settings: Settings, rules: RuleSet, population: Population, data: FederatedData
) -> ParticipationRates | None:
    """Return how often a run counts each client; None if its availability does not determine it.

    The probability that an available client counts is its probability of being selected. If replies
    can be late, it is counted in rounds played ahead, but only for rules that need it; for other
    rules it is unknown.

    Raises
    ------
    SettingsError
        If the rules need this probability and it cannot be counted.
    """
    # First, because its errors are about settings that every run uses.
    times = build_latency_model(settings.response_time, data)
    rates = compute_participation_rates(settings, data)
    if rates is None:
        return None
    selected = get_known_probabilities(rules.selection, population)
    if settings.engine.late_replies == "count":
        return rates.with_counted(None)
    if not _can_be_late(settings, population, times):
        return rates.with_counted(selected)
    if not needs_rates(rules.weighting) or selected is None:
        return rates.with_counted(None)
    check_rates_computable(settings, rules)
    if times is None or not times.is_stationary:
        raise SettingsError(
            f"response_time.path must have one line for each client with "
            f"strategy={settings.strategy.name} where lateness decides (rates that change cannot "
            f"be counted ahead), got {getattr(settings.response_time, 'path', None)}"
        )
    process = build_processes(settings, data)
    clients = population.sorted_clients
    processes = None if process is None else [process(k) for k in clients.tolist()]
    in_time = _estimate_timely_fraction(settings, rules.selection, population, processes, times)
    counted = PerClient(clients, in_time / rates.p[clients]).select(selected)
    for client, probability in counted.items():
        if probability == 0.0 and selected[client] > 0.0:
            engine = settings.engine
            setting, value = (
                ("engine.round_timeout", engine.round_timeout)
                if _build_quorum(settings).waits_for_all
                else ("engine.quorum", engine.quorum)
            )
            raise SettingsError(
                f"{setting} must be so large that each client is in time in some round with "
                f"strategy={settings.strategy.name} (client {client} was in none of "
                f"{NUM_SIMULATED_ROUNDS} rounds played ahead), got {value}; a longer "
                "engine.grace_seconds or engine.round_timeout lets it in, too"
            )
    return rates.with_counted(counted)


def _build_quorum(settings: Settings) -> Quorum:
    engine = settings.engine
    return Quorum(engine.quorum, engine.quorum_clients, engine.grace_seconds)


def _can_be_late(settings: Settings, population: Population, times: LatencyModel | None) -> bool:
    """Say whether the reply of a selected, available client may come too late to count."""
    if not _build_quorum(settings).waits_for_all:
        # In process all clients reply at once, unless their response times are simulated.
        return times is not None or settings.engine.name != "in-process"
    if times is None:
        return False
    return _compute_max_seconds(settings, population, times) > settings.engine.round_timeout


def _compute_max_seconds(settings: Settings, population: Population, times: LatencyModel) -> float:
    """Return the longest response time of any client in rounds played ahead, in seconds."""
    seed, clients = settings.seed, population.sorted_clients
    if not times.is_stationary:
        pairs = product(clients.tolist(), range(1, settings.rounds + 1))
        return max(times.get_seconds(seed, client, t) for client, t in pairs)
    sample, rng = times.make_sampler(seed, clients), make_generator(seed, STREAM_NAME)
    return max(float(sample(rng).max()) for _ in range(NUM_SIMULATED_ROUNDS))


def _estimate_timely_fraction(
    settings: Settings,
    selection: Any,
    population: Population,
    processes: Sequence[AvailabilityProcess] | None,
    times: LatencyModel,
) -> FloatArray:
    """Return the fraction of rounds played ahead with each client's reply in time, shape (N,).

    The rounds use the clients, the rules and the clock of the run, but separate random streams.
    """
    sampling = replace(selection.sampling, seed=derive_seed(settings.seed, STREAM_NAME))
    selection = replace(selection, sampling=sampling)
    clients, quorum, clock = population.sorted_clients, _build_quorum(settings), Clock()
    sample = times.make_sampler(settings.seed, clients)
    states: list[int | None] = [None] * len(clients)
    index_of = {client: i for i, client in enumerate(clients.tolist())}
    counts = np.zeros(len(clients))
    for t in range(NUM_SIMULATED_ROUNDS):
        rng = make_generator(settings.seed, STREAM_NAME, t + 1)
        seconds = sample(rng).tolist()
        states, available = _advance_processes(processes, states, t + 1, rng)
        busy = clock.busy_clients
        selected = sorted(selection.plan(t, population, ClientReports()).clients)
        outcomes = []
        for client in selected:
            i = index_of[client]
            if client in busy:
                outcomes.append(ClientOutcome(client, "busy"))
            elif available[i]:
                outcomes.append(ClientOutcome(client, "trained", seconds=seconds[i]))
            else:
                outcomes.append(ClientOutcome(client, "unavailable"))
        closing = close_virtual_round(
            clock,
            t + 1,
            outcomes,
            quorum,
            priority=population.priority,
            deadline=settings.engine.round_timeout,
        )
        clock = closing.clock
        counts[[index_of[one.client] for one in closing.outcomes if one.is_usable]] += 1
    return counts / NUM_SIMULATED_ROUNDS


def _advance_processes(
    processes: Sequence[AvailabilityProcess] | None,
    states: Sequence[int | None],
    server_round: int,
    rng: np.random.Generator,
) -> tuple[list[int | None], list[bool]]:
    """Advance the clients' processes by one round; return their states and the availability."""
    if processes is None:
        return list(states), [True] * len(states)
    new_states: list[int | None] = []
    available = []
    for process, old_state in zip(processes, states, strict=True):
        state = process.advance(old_state, server_round, rng)
        new_states.append(state)
        available.append(process.is_available(state))
    return new_states, available
