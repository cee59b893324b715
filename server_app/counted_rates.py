"""How often a simulated run counts each client: available, asked and, if time decides, in time."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from fedquorum import Population
from fedquorum.client.availability.processes import Process
from fedquorum.client.availability.rates import SimulatedRates
from fedquorum.client.response_times import ResponseTimes
from fedquorum.composition import Rules
from fedquorum.errors import SettingsError
from fedquorum.quorum import Quorum
from fedquorum.round import ClientAnswer
from fedquorum.streams import derived_seed, stream
from fedquorum.types import ByClient, FloatArray, Told
from fedquorum.virtual_clock import Clock, close

from client_app.availability import client_processes, simulated_rates
from client_app.data import FederatedData
from client_app.response_times import response_times
from conf.schema.checks import check_countable
from conf.schema.settings import Settings

ROUNDS_AHEAD = 10_000
PURPOSE = "rates-ahead"


def counted_rates(
    settings: Settings, rules: Rules, population: Population, data: FederatedData
) -> SimulatedRates | None:
    """Return how often a run counts each client; None if its availability does not tell.

    The probability that an available client counts is that of being asked. If a quorum or the
    deadline decides on lateness too, it is counted in rounds played ahead, only for rules that need
    it; for others it is unknown.

    Raises
    ------
    SettingsError
        If the rules need it and it cannot be counted.
    """
    rates = simulated_rates(settings, data)
    if rates is None:
        return None
    times = response_times(settings.response_time, data.num_clients)
    asked = rules.selection.known_probabilities(population)
    if not _time_decides(settings, population, times):
        return rates.counted_with(asked)
    if not rules.weighting.needs_rates or asked is None:
        return rates.counted_with(None)
    check_countable(settings, rules)
    if times is None or not times.steady:
        raise SettingsError(
            f"response_time.path must have one line for each client with "
            f"strategy={settings.strategy.name} where lateness decides (rates that change cannot "
            f"be counted ahead), got {getattr(settings.response_time, 'path', None)}"
        )
    process = client_processes(settings, data)
    clients = population.ascending
    processes = None if process is None else [process(k) for k in clients.tolist()]
    in_time = _share_in_time(settings, rules.selection, population, processes, times)
    counted = ByClient(clients, in_time / rates.p[clients]).among(asked)
    for client, probability in counted.items():
        if probability == 0.0 and asked[client] > 0.0:
            engine = settings.engine
            setting, got = (
                ("engine.round_timeout", engine.round_timeout)
                if _quorum(settings).waits_for_all
                else ("engine.quorum", engine.quorum)
            )
            raise SettingsError(
                f"{setting} must be so large that each client is in time in some round with "
                f"strategy={settings.strategy.name} (client {client} was in none of {ROUNDS_AHEAD} "
                f"rounds played ahead), got {got}; a longer engine.grace_seconds or "
                "engine.round_timeout lets it in, too"
            )
    return rates.counted_with(counted)


def _quorum(settings: Settings) -> Quorum:
    engine = settings.engine
    return Quorum(engine.quorum, engine.quorum_clients, engine.grace_seconds)


def _time_decides(settings: Settings, population: Population, times: ResponseTimes | None) -> bool:
    """Say whether the reply of a client that is asked and available may come too late to count."""
    if not _quorum(settings).waits_for_all:
        # In process all reply at once, unless their times are simulated.
        return times is not None or settings.engine.name != "in-process"
    if times is None:
        return False
    return _slowest(settings, population, times) > settings.engine.round_timeout


def _slowest(settings: Settings, population: Population, times: ResponseTimes) -> float:
    """Return the longest time of any client in so many rounds played ahead."""
    seed, clients = settings.seed, population.ascending
    if not times.steady:
        every = product(clients.tolist(), range(1, settings.rounds + 1))
        return max(times.seconds(seed, client, t) for client, t in every)
    draw, rng = times.ahead(seed, clients), stream(seed, PURPOSE)
    return max(float(draw(rng).max()) for _ in range(ROUNDS_AHEAD))


def _share_in_time(
    settings: Settings,
    selection: Any,
    population: Population,
    processes: Sequence[Process] | None,
    times: ResponseTimes,
) -> FloatArray:
    """Return the share of rounds played ahead in which each client's reply is in time, shape (N,).

    The rounds have the clients, the rules and the clock of the run, and streams of their own.
    """
    sampling = replace(selection.sampling, seed=derived_seed(settings.seed, PURPOSE))
    selection = replace(selection, sampling=sampling)
    clients, quorum, clock = population.ascending, _quorum(settings), Clock()
    draw = times.ahead(settings.seed, clients)
    states: list[int | None] = [None] * len(clients)
    place_of = {client: i for i, client in enumerate(clients.tolist())}
    counts = np.zeros(len(clients))
    for t in range(ROUNDS_AHEAD):
        rng = stream(settings.seed, PURPOSE, t + 1)
        seconds = draw(rng).tolist()
        states, there = _moved(processes, states, t + 1, rng)
        busy = clock.busy
        asked = sorted(selection.call(t, population, Told()).clients)
        answers = []
        for client in asked:
            i = place_of[client]
            if client in busy:
                answers.append(ClientAnswer(client, "busy"))
            elif there[i]:
                answers.append(ClientAnswer(client, "trained", seconds=seconds[i]))
            else:
                answers.append(ClientAnswer(client, "unavailable"))
        closing = close(
            clock,
            t + 1,
            answers,
            quorum,
            priority=population.priority,
            deadline=settings.engine.round_timeout,
        )
        clock = closing.clock
        counts[[place_of[answer.client] for answer in closing.answers if answer.usable]] += 1
    return counts / ROUNDS_AHEAD


def _moved(
    processes: Sequence[Process] | None,
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
        there.append(process.available(state))
    return moved, there
