"""Participation processes: their laws, and paths that do not depend on the order of calls."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fedquorum.client.availability.periodic import InterleavedSine, PeriodicProcess, Sine, Staircase
from fedquorum.client.availability.processes import (
    AvailabilityProcess,
    Bernoulli,
    Cooldown,
    Cyclic,
    Markov,
    ProcessState,
    StochasticProcess,
    Trace,
    compute_process_state,
)
from fedquorum.errors import ParameterError
from fedquorum.rng import make_generator
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

PROCESSES: list[AvailabilityProcess] = [
    Bernoulli(0.3),
    Markov(0.3, 0.4),
    Markov(0.02),
    Cyclic(0.3, 10),
    Cyclic(0.3, 10, "inactive"),
    Cooldown(Bernoulli(0.5), 3),
    PeriodicProcess(0.5, Staircase(period=6)),
    PeriodicProcess(0.5, InterleavedSine(period=7, phase=2)),
    Trace(frozenset({2, 3, 7})),
]


def draw_paths(
    process: AvailabilityProcess, clients: int, rounds: int, seed: int = 0
) -> NDArray[np.bool_]:
    """Return the availability, shape (clients, rounds), drawn from one generator."""
    rng = np.random.default_rng(seed)
    found = np.zeros((clients, rounds), dtype=bool)
    for client in range(clients):
        state = None
        for t in range(rounds):
            state = process.advance(state, t + 1, rng)
            found[client, t] = process.is_available(state)
    return found


def assert_rate(found: NDArray[np.bool_], p: float) -> None:
    """Check the mean of independent draws against p, to four standard deviations."""
    assert found.mean() == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / found.size))


# --- laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_bernoulli(p: float) -> None:
    """The client is available with p, whatever happened in the previous round."""
    found = draw_paths(Bernoulli(p), 1, 40_000)[0]
    assert_rate(found, p)
    assert_rate(found[1:][found[:-1]], p)
    assert_rate(found[1:][~found[:-1]], p)


@pytest.mark.parametrize(
    "process",
    [
        Bernoulli(0.02),
        Markov(0.02),
        Markov(0.3),
        Markov(0.8, 0.5),
        Cyclic(0.02),
        Cyclic(0.3, 10),
        Cyclic(0.999, 10),
        Cooldown(Bernoulli(0.2), 3),
        Cooldown(Bernoulli(0.8), 5),
    ],
    ids=repr,
)
def test_stationary_from_the_first_round(process: StochasticProcess) -> None:
    """In each of the first rounds the fraction of available clients is the stationary one."""
    found = draw_paths(process, 20_000, 4)
    for t in range(4):
        assert_rate(found[:, t], process.rate)


@pytest.mark.parametrize(
    ("p", "max_transition", "a", "b"),
    [
        (0.5, 0.05, 0.05, 0.05),
        (0.2, 0.05, 0.05, 0.2),
        (0.1, 0.05, 0.05, 0.45),
        (0.02, 0.05, 1 / 49, 1.0),  # 0.05 * 49 = 2.45 > 1, and 0.05 / 2.45 = 1 / 49
        (0.25, 1.0, 1 / 3, 1.0),
        (0.8, 1.0, 1.0, 0.25),
        (1.0, 0.05, 0.05, 0.0),
    ],
)
def test_markov_transitions_by_hand(p: float, max_transition: float, a: float, b: float) -> None:
    """b = a (1/p - 1), both scaled down where it exceeds 1; p is stationary: p b = (1 - p) a."""
    chain = Markov(p, max_transition)
    assert chain.transitions == pytest.approx((a, b), abs=1e-15)
    assert p * b == pytest.approx((1 - p) * a, abs=1e-15)
    assert chain.rate == p


@pytest.mark.parametrize("chain", [Markov(0.3, 0.4), Markov(0.1), Markov(0.02)], ids=repr)
def test_markov_moves_by_its_transitions(chain: Markov) -> None:
    """The fractions of transitions in a long path are a and b, whatever the past."""
    found = draw_paths(chain, 1, 200_000)[0]
    a, b = chain.transitions
    now, following = found[:-1], found[1:]
    assert_rate(following[~now], a)
    assert_rate(~following[now], b)
    before = found[:-2]
    assert_rate(following[1:][before & ~now[1:]], a)


@pytest.mark.parametrize("process", [Bernoulli(1.0), Markov(1.0), Cyclic(1.0, 7)], ids=repr)
def test_a_probability_of_one_is_always_available(process: StochasticProcess) -> None:
    """With p = 1 the client is available in every round."""
    assert process.rate == 1
    assert draw_paths(process, 20, 30).all()


@pytest.mark.parametrize(
    ("p", "period", "active"),
    [
        (0.3, 10, 3),
        (0.26, 10, 3),
        (0.25, 10, 2),  # halves round to even, as in NumPy and the authors' code
        (0.02, 100, 2),
        (0.001, 100, 1),
        (0.999, 100, 99),
        (0.5, 2, 1),
        (0.9, 2, 1),
        (1.0, 100, 100),
        (0.575, 100, 58),
    ],
)
@pytest.mark.parametrize("start", ["stationary", "inactive"])
def test_cycle(p: float, period: int, active: int, start: str) -> None:
    """Every period has max(1, round(T_c p)) consecutive active rounds, and an inactive one."""
    cycle = Cyclic(p, period, start)
    assert (cycle.active_rounds, cycle.rate) == (active, active / period)
    for path in draw_paths(cycle, 30, 3 * period):
        np.testing.assert_array_equal(path[period:], path[:-period])
        assert path[:period].sum() == active
        begins = ~path[:-1] & path[1:]
        assert begins[: period + 1].sum() >= (1 if active < period else 0)
        assert begins.sum() <= 3


def test_a_stationary_cycle_starts_anywhere() -> None:
    """Round 1 is at each position of the period equally often."""
    rng = np.random.default_rng(0)
    positions = np.array([Cyclic(0.3, 10).advance(None, 1, rng) for _ in range(20_000)])
    for place in range(10):
        assert_rate(positions == place, 0.1)


@pytest.mark.slow
def test_a_cycle_that_starts_inactive() -> None:
    """The first active part is whole, and starts in each of rounds 1..(inactive) equally often."""
    found = draw_paths(Cyclic(0.3, 10, "inactive"), 20_000, 13)
    first = found.argmax(axis=1)
    assert set(first) == set(range(7))
    for t in range(7):
        assert_rate(first == t, 1 / 7)
    for k in range(3):
        assert found[np.arange(len(first)), first + k].all()
    assert not found[np.arange(len(first)), first + 3].any()


@pytest.mark.parametrize(
    ("p", "rest", "rate"), [(0.2, 3, 0.125), (0.8, 5, 0.16), (1.0, 1, 0.5), (0.3, 0, 0.3)]
)
def test_resting_rates_by_hand(p: float, rest: int, rate: float) -> None:
    """p / (1 + R p)."""
    assert Cooldown(Bernoulli(p), rest).rate == pytest.approx(rate, rel=1e-15)


def test_a_client_rests_for_r_rounds_and_is_then_available_as_before() -> None:
    """After each available round the client rests for R rounds, then is available with p."""
    found = draw_paths(Cooldown(Bernoulli(0.5), 3), 1, 40_000)[0]
    there = np.flatnonzero(found[:-4])
    for k in (1, 2, 3):
        assert not found[there + k].any()
    assert_rate(found[there + 4], 0.5)


def test_without_rest_a_path_is_that_of_the_process() -> None:
    """The paths are equal to the bit, by the same draws."""
    for p in (0.02, 0.5, 1.0):
        for client in range(5):
            resting = list_states(Cooldown(Bernoulli(p), 0), client, 40)
            assert resting == list_states(Bernoulli(p), client, 40)


def test_trace() -> None:
    """The client is available in exactly the given rounds."""
    trace = Trace(frozenset({2, 3, 7}))
    assert [t + 1 for t in np.flatnonzero(draw_paths(trace, 1, 20)[0])] == [2, 3, 7]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bernoulli(0.0), "p must be a number > 0 and <= 1, got 0.0"),
        (lambda: Bernoulli(math.nan), "p must be a number > 0 and <= 1, got nan"),
        (lambda: Markov(1.5), "p must be a number > 0 and <= 1, got 1.5"),
        (lambda: Markov(0.5, 0.0), "max_transition must be a number > 0 and <= 1, got 0.0"),
        (lambda: Cyclic(-0.1), "p must be a number > 0 and <= 1, got -0.1"),
        (lambda: Cyclic(0.5, 1), "period must be a whole number >= 2, got 1"),
        (lambda: Cooldown(Bernoulli(0.5), -1), "rest must be a whole number >= 0, got -1"),
        (
            lambda: Cooldown(Markov(0.5), 2),  # type: ignore[arg-type]
            (
                "process must be Bernoulli (the rate of another process with rests is not known), "
                "got 'Markov'"
            ),
        ),
        (lambda: Cyclic(0.5, start="now"), "start must be one of stationary, inactive, got 'now'"),
    ],
)
def test_impossible_parameters(make: Callable[[], AvailabilityProcess], message: str) -> None:
    """The error names the parameter, its range and the value."""
    with pytest.raises(ParameterError) as caught:
        make()
    assert str(caught.value) == message


# --- paths -----------------------------------------------------------------------------------


def list_states(
    process: AvailabilityProcess, client: int, rounds: int, seed: int = 4
) -> list[ProcessState]:
    """Return the states of rounds 1, 2, ..., computed in each round."""
    found: list[ProcessState] = []
    for t in range(1, rounds + 1):
        last = found[-1] if found else None
        found.append(
            compute_process_state(process, seed=seed, client=client, server_round=t, last=last)
        )
    return found


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
@given(asked=st.lists(st.integers(1, 25), min_size=1, max_size=6))
def test_a_path_does_not_depend_on_the_order_of_calls(
    process: AvailabilityProcess, asked: list[int]
) -> None:
    """Rounds may be skipped, repeated, revisited later, or computed without a last state."""
    expected = list_states(process, 3, 25)
    last = None
    for t in asked:
        last = compute_process_state(process, seed=4, client=3, server_round=t, last=last)
        assert last == expected[t - 1]
        assert last == compute_process_state(process, seed=4, client=3, server_round=t)


def test_draws_are_of_seed_round_and_client() -> None:
    """Round t of client k is drawn from (seed, "availability", t, k)."""
    states = [m.state for m in list_states(Bernoulli(0.3), 5, 30, seed=2)]
    draws = [make_generator(2, "availability", t, 5).random() for t in range(1, 31)]
    assert states == [int(draw < 0.3) for draw in draws]


@pytest.mark.parametrize("process", PROCESSES[:-1], ids=repr)
def test_clients_and_seeds_differ(process: AvailabilityProcess) -> None:
    """Another client or another seed has another path."""
    found = {
        tuple(m.state for m in list_states(process, client, 60, seed))
        for client, seed in ((0, 0), (1, 0), (0, 1), (2, 7))
    }
    assert len(found) > 1


def test_clients_are_independent() -> None:
    """One client's availability is independent of the next client's in the same round."""
    found = np.array(
        [[m.state for m in list_states(Bernoulli(0.5), k, 200)] for k in range(40)], dtype=bool
    )
    assert_rate(found, 0.5)
    assert_rate(found[1:] == found[:-1], 0.5)
    assert_rate(found[:, 1:] == found[:, :-1], 0.5)


def test_rounds_count_from_one() -> None:
    """There is no round 0."""
    with pytest.raises(ValueError, match="rounds count from 1, got 0"):
        compute_process_state(Bernoulli(0.5), seed=1, client=0, server_round=0)


@pytest.mark.parametrize(
    "process", [Bernoulli(0.3), PeriodicProcess(0.3, Sine()), Trace(frozenset({2_000}))]
)
def test_skipped_rounds_of_memoryless_processes_take_no_draws(
    monkeypatch: pytest.MonkeyPatch, process: AvailabilityProcess
) -> None:
    """A client that is first selected in a late round draws only for that round."""
    drawn: list[int] = []

    def note_draw(*words: Any) -> np.random.Generator:
        drawn.append(words[2])
        return make_generator(*words)

    monkeypatch.setattr("fedquorum.client.availability.processes.make_generator", note_draw)
    compute_process_state(process, seed=1, client=4, server_round=2_000)
    assert drawn == [2_000]
