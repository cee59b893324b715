"""How often a simulated run counts each client: available, asked and, if time decides, in time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from fedquorum import Population
from fedquorum.client.availability.processes import AvailabilityProcess
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.client.latency import LatencyModel
from fedquorum.composition import RuleSet
from fedquorum.errors import SettingsError
from fedquorum.quorum import Quorum
from fedquorum.rng import derive_seed, make_generator
from fedquorum.round import ClientOutcome
from fedquorum.types import ClientReports, FloatArray, PerClient
from fedquorum.virtual_clock import Clock, close_virtual_round

from client_app.availability import build_processes, compute_participation_rates
from client_app.data import FederatedData
from client_app.response_times import build_latency_model
from conf.schema.checks import check_rates_computable
from conf.schema.settings import Settings

NUM_SIMULATED_ROUNDS = 10_000
STREAM_NAME = "rates-ahead"


def compute_counted_rates(
    settings: Settings, rules: RuleSet, population: Population, data: FederatedData
) -> ParticipationRates | None:
    """Return how often a run counts each client; None if its availability does not tell.

    The probability that an available client counts is that of being asked. If a quorum or the
    deadline decides on lateness too, it is counted in rounds played ahead, only for rules that need
    it; for others it is unknown.

    Raises
    ------
    SettingsError
        If the rules need it and it cannot be counted.
    """
    rates = compute_participation_rates(settings, data)
    if rates is None:
        return None
    times = build_latency_model(settings.response_time, data.num_clients)
    asked = rules.selection.get_known_probabilities(population)
    if not _can_be_late(settings, population, times):
        return rates.with_counted(asked)
    if not rules.weighting.needs_rates or asked is None:
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
    counted = PerClient(clients, in_time / rates.p[clients]).select(asked)
    for client, probability in counted.items():
        if probability == 0.0 and asked[client] > 0.0:
            engine = settings.engine
            setting, got = (
                ("engine.round_timeout", engine.round_timeout)
                if _build_quorum(settings).waits_for_all
                else ("engine.quorum", engine.quorum)
            )
            raise SettingsError(
                f"{setting} must be so large that each client is in time in some round with "
                f"strategy={settings.strategy.name} (client {client} was in none of {NUM_SIMULATED_ROUNDS} "
                f"rounds played ahead), got {got}; a longer engine.grace_seconds or "
                "engine.round_timeout lets it in, too"
            )
    return rates.with_counted(counted)


def _build_quorum(settings: Settings) -> Quorum:
    engine = settings.engine
    return Quorum(engine.quorum, engine.quorum_clients, engine.grace_seconds)


def _can_be_late(settings: Settings, population: Population, times: LatencyModel | None) -> bool:
    """Say whether the reply of a client that is asked and available may come too late to count."""
    if not _build_quorum(settings).waits_for_all:
        # In process all reply at once, unless their times are simulated.
        return times is not None or settings.engine.name != "in-process"
    if times is None:
        return False
    return _compute_max_seconds(settings, population, times) > settings.engine.round_timeout


def _compute_max_seconds(settings: Settings, population: Population, times: LatencyModel) -> float:
    """Return the longest time of any client in so many rounds played ahead."""
    seed, clients = settings.seed, population.sorted_clients
    if not times.is_stationary:
        every = product(clients.tolist(), range(1, settings.rounds + 1))
        return max(times.get_seconds(seed, client, t) for client, t in every)
    draw, rng = times.make_sampler(seed, clients), make_generator(seed, STREAM_NAME)
    return max(float(draw(rng).max()) for _ in range(NUM_SIMULATED_ROUNDS))


def _estimate_timely_fraction(
    settings: Settings,
    selection: Any,
    population: Population,
    processes: Sequence[AvailabilityProcess] | None,
    times: LatencyModel,
) -> FloatArray:
    """Return the share of rounds played ahead in which each client's reply is in time, shape (N,).

    The rounds have the clients, the rules and the clock of the run, and streams of their own.
    """
    sampling = replace(selection.sampling, seed=derive_seed(settings.seed, STREAM_NAME))
    selection = replace(selection, sampling=sampling)
    clients, quorum, clock = population.sorted_clients, _build_quorum(settings), Clock()
    draw = times.make_sampler(settings.seed, clients)
    states: list[int | None] = [None] * len(clients)
    place_of = {client: i for i, client in enumerate(clients.tolist())}
    counts = np.zeros(len(clients))
    for t in range(NUM_SIMULATED_ROUNDS):
        rng = make_generator(settings.seed, STREAM_NAME, t + 1)
        seconds = draw(rng).tolist()
        states, there = _advance_processes(processes, states, t + 1, rng)
        busy = clock.busy_clients
        asked = sorted(selection.plan(t, population, ClientReports()).clients)
        answers = []
        for client in asked:
            i = place_of[client]
            if client in busy:
                answers.append(ClientOutcome(client, "busy"))
            elif there[i]:
                answers.append(ClientOutcome(client, "trained", seconds=seconds[i]))
            else:
                answers.append(ClientOutcome(client, "unavailable"))
        closing = close_virtual_round(
            clock,
            t + 1,
            answers,
            quorum,
            priority=population.priority,
            deadline=settings.engine.round_timeout,
        )
        clock = closing.clock
        counts[[place_of[answer.client] for answer in closing.outcomes if answer.is_usable]] += 1
    return counts / NUM_SIMULATED_ROUNDS


def _advance_processes(
    processes: Sequence[AvailabilityProcess] | None,
    states: Sequence[int | None],
    server_round: int,
    rng: np.random.Generator,
) -> tuple[list[int | None], list[bool]]:
    """Return the states of the clients' processes in the next round, and who is available."""
    if processes is None:
        return list(states), [True] * len(states)
    moved: list[int | None] = []
    there = []
    for process, before in zip(processes, states, strict=True):
        state = process.advance(before, server_round, rng)
        moved.append(state)
        there.append(process.is_available(state))
    return moved, there
