"""Rounds in which late updates count, against asynchronous training played event by event."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol
from fedquorum.errors import ParameterError
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
)
from fedquorum.rng import make_generator
from fedquorum.rules.staleness import LateUpdates
from fedquorum.server.quorum import Quorum

from tests.builders_flower import (
    build_named_strategy,
    get_state_bytes,
    make_grid,
    make_scripted_app,
    train_round,
)
from tests.reference import late

N = 8
START = [1.0, -2.0, 0.5]
TARGETS = np.random.default_rng(7).normal(size=(N, 3)).tolist()
NAMES = {"fedbuff": "average_participating", "fedau": "fedau", "mifa": "mifa"}


def train(client: int, t: int, w: list[float]) -> list[float]:
    """Return a model after one noisy step on |x - u_k|^2 / 2, with the noise of round t."""
    noise = make_generator(0, "test", t, client).normal(size=len(w)).tolist()
    pairs = zip(w, TARGETS[client], noise, strict=True)
    return [x - 0.1 * (x - u + 0.1 * z) for x, u, z in pairs]


@cache
def draw_seconds(client: int, t: int) -> float:
    return float(make_generator(1, "test", t, client).lognormal(client / N, 0.5))


def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
    trained = np.array(train(client, task.server_round, arrays["w"].tolist()))
    return TrainResult(client, Status.DONE, num_examples=10, arrays={"w": trained})


def build(name: str, buffer: int, updates: LateUpdates) -> ComposedStrategy:
    protocol = NativeProtocol(virtual_clock=True, quorum=Quorum(buffer), late_updates=updates)
    return build_named_strategy(name, N, communication=protocol)


def run_rounds(
    strategy: ComposedStrategy,
    rounds: int,
    get_seconds: Callable[[int, int], float],
    nodes: int = 3,
) -> tuple[list[float], list[int]]:
    """Return the model after the rounds, and the staleness of the updates by round and client."""
    grid = make_grid(make_scripted_app(N, fit, get_seconds=get_seconds), nodes)
    model, staleness = encode_arrays({"w": np.array(START)}), []
    for number in range(1, rounds + 1):
        model = train_round(strategy, grid, number, model) or model
        decisions = strategy.step_result.report.decisions
        staleness += [d.staleness for d in decisions if d.staleness is not None]
    return decode_arrays(model)["w"].tolist(), staleness


@pytest.mark.slow
@pytest.mark.parametrize("a", [0.0, 0.5])
@pytest.mark.parametrize("rule", NAMES)
def test_rounds_match_training_event_by_event(rule: str, a: float) -> None:
    """FedBuff, FedAU over late updates and MIFA agree with the reference over 200 steps."""
    server = late.Server(START, N, rule, 2, a, train, draw_seconds)
    for _ in range(200):
        server.run_round()
    found, staleness = run_rounds(build(NAMES[rule], 2, LateUpdates(a)), 200, draw_seconds)
    np.testing.assert_allclose(found, server.w, rtol=0, atol=1e-12)
    if rule != "mifa":
        assert sorted(staleness) == sorted(server.staleness)
        assert max(staleness) > 5


def test_two_halves_that_take_turns_are_delayed_sgd() -> None:
    """Everybody takes a second, but half of them 1.5 in round 1: then every update is one late."""
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    expected = late.run_delayed_sgd(START, halves, 40, 0.5, train)
    strategy = build("average_participating", N // 2, LateUpdates(0.5, concurrency=N))
    found, staleness = run_rounds(
        strategy, 40, lambda k, t: 1.5 if t == 1 and k in halves[1] else 1.0
    )
    assert staleness == [0] * 4 + [1] * 4 * 39
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["average_participating", "average_all", "fedau", "mifa"])
def test_a_quorum_of_all_under_way_is_synchronous_to_the_bit(name: str) -> None:
    """So is nobody late; and any number of nodes gives the same bits."""
    grid = make_grid(make_scripted_app(N, fit), 3)
    model, other = encode_arrays({"w": np.array(START)}), build_named_strategy(name, N)
    for number in range(1, 11):
        model = train_round(other, grid, number, model) or model
    expected = decode_arrays(model)["w"].tolist()
    for nodes in (1, 8):
        strategy = build(name, N, LateUpdates(concurrency=N))
        assert run_rounds(strategy, 10, draw_seconds, nodes)[0] == expected
    assert run_rounds(build(name, 2, LateUpdates()), 10, lambda *_: 1.0)[0] == expected


@pytest.mark.parametrize("rule", ["average_all", "fedau"])
@pytest.mark.parametrize("a", [0.0, 0.5, 1.0])
def test_the_limit_between_a_fast_and_a_slow_client(rule: str, a: float) -> None:
    """Optima 0 and 1, the slow one takes P rounds: 1 / (1 + P^(1 + a)), with omega 1 / (1 + P^a).

    The step tends to 0: the error shrinks with it.
    """
    period = 4

    def run(step: float, rounds: int) -> float:
        server = late.Server(
            [0.5],
            2,
            rule,
            1,
            a,
            lambda k, t, w: [w[0] - step * (w[0] - k)],
            lambda k, t: float(period) if k else 1.0,
        )
        for _ in range(rounds):
            server.run_round()
        return server.w[0]

    exponent = a if rule == "fedau" else 1 + a
    expected = 1 / (1 + period**exponent)
    errors = [abs(run(step, int(30 / step)) - expected) for step in (0.2, 0.05, 0.01)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.03 * expected


@pytest.mark.parametrize("a", [0.0, 0.5])
@pytest.mark.parametrize("rule", ["average_all", "fedau"])
def test_fast_and_slow_clients_match_the_reference_at_finite_steps(rule: str, a: float) -> None:
    """Several replies at the same time count in the same round."""

    def seconds(client: int, _: int) -> float:
        return 4.0 if client >= N // 2 else 1.0

    server = late.Server(START, N, rule, 1, a, train, seconds)
    for _ in range(60):
        server.run_round()
    found, _ = run_rounds(build(rule, 1, LateUpdates(a)), 60, seconds)
    np.testing.assert_allclose(found, server.w, rtol=0, atol=1e-12)


def test_a_message_expires_and_an_old_update_is_refused() -> None:
    """Both clients are free again, and are asked in the next round."""
    protocol = NativeProtocol(
        virtual_clock=True,
        quorum=Quorum(2),
        round_timeout=3.5,
        late_updates=LateUpdates(max_staleness=1),
    )
    strategy = build_named_strategy("average_participating", N, communication=protocol)
    times = {6: 100.0, 7: 3.0}
    grid = make_grid(
        make_scripted_app(N, fit, get_seconds=lambda k, t: times.get(k, 1.0)),
        2,
    )
    model, statuses = encode_arrays({"w": np.array(START)}), []
    for number in range(1, 6):
        model = train_round(strategy, grid, number, model) or model
        decisions = strategy.step_result.report.decisions
        statuses.append({d.client: (d.status, d.start_round) for d in decisions if d.client > 5})
    assert statuses == [
        {6: ("late", 1), 7: ("late", 1)},
        {},
        {7: ("rejected", 1)},
        {6: ("failed", 1), 7: ("late", 4)},
        {6: ("late", 5)},
    ]
    # Client 7 still trains from the model of round 4, but its update cannot count any more.
    sent = {name for name in get_state_bytes(strategy) if name.startswith("sent.")}
    assert sent == {"sent.5.w"}


def test_late_updates_are_refused_where_they_cannot_count() -> None:
    """With a quorum of priority clients, and with rules by losses."""
    with pytest.raises(ParameterError, match="quorum_clients must be asked with late_replies"):
        NativeProtocol(virtual_clock=True, quorum=Quorum(2, "priority"), late_updates=LateUpdates())
    with pytest.raises(ParameterError, match="late_replies must be discard with qfedavg"):
        build("qfedavg", 2, LateUpdates())
