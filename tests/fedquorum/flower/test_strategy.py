"""The adapter, driven as Flower drives a strategy, with scripted clients behind the Grid."""

import math
import random
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol, Population, RuleSet, StandardProtocol
from fedquorum.errors import ClientsMissingError, StateError
from fedquorum.flower.codec import (
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
    encode_evaluate_reply,
    encode_train_reply,
)
from fedquorum.rules.participation import FedAUCorrection
from fedquorum.rules.selection import AllClients, EpsilonGate, Sampling
from fedquorum.rules.server_optimizer import Adam
from fedquorum.rules.types import ClientReports, RoundPlan
from fedquorum.rules.weighting import AverageAll, DataFraction, Weighting
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from tests.builders_flower import (
    MODEL,
    ScriptedGrid,
    build_fedalign,
    build_named_strategy,
    collect_first_weights,
    evaluate_round,
    get_state_bytes,
    make_grid,
    make_scripted_app,
    make_standard_app,
    make_train_result,
    request_of,
    run_first_round,
    train_round,
)


def test_one_round_by_hand() -> None:
    """Two priority clients, one admitted, one rejected by the server, one declined."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        assert task.objective.loss == 1.0
        if client == 4:
            return TrainResult(4, Status.DECLINED)
        by, examples, loss = {0: (1, 10, 1.0), 1: (2, 30, 1.0), 2: (4, 20, 0.9), 3: (8, 5, 0.1)}[
            client
        ]
        return make_train_result(client, by, examples=examples, loss=loss)

    strategy = build_fedalign(5, {0, 1}, epsilon=0.2)
    got, report = run_first_round(strategy, make_grid(make_scripted_app(5, fit), 2))
    # p = (10, 30, 20) / 40, A = 1/2: (10 * 1 + 30 * 2 + 20 * 4) / 60 = 2.5
    assert got is not None
    np.testing.assert_allclose(got, MODEL["w"] + 2.5, rtol=1e-6)
    assert got.dtype == np.float32
    assert [d.status for d in report.decisions] == [
        "trained",
        "trained",
        "trained",
        "rejected",
        "declined",
    ]
    assert [d.weight for d in report.decisions] == pytest.approx([1 / 6, 1 / 2, 1 / 3, 0, 0])
    assert report.inclusion_mass == pytest.approx(0.5)
    assert report.theta == pytest.approx(2 / 3)
    assert report.decisions[3].reason == "loss 0.1 < global 1 - epsilon 0.2"
    silent = report.decisions[4]
    assert (silent.num_examples, silent.loss, silent.accuracy) == (None, None, None)


def test_global_loss_is_the_priority_objective() -> None:
    """F(w_0) is evaluated before round 1, weighted by the priority clients' data only."""
    seen: list[float] = []

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        seen.append(task.objective.loss)
        return make_train_result(client, 0.0)

    losses = {0: 1.0, 1: 2.0, 2: 100.0}
    run_first_round(build_fedalign(3, {0, 1}), make_grid(make_scripted_app(3, fit, losses), 3))
    assert seen == [1.5] * 3


@pytest.mark.parametrize("nodes", [1, 2, 4, 20])
def test_any_number_of_nodes_gives_the_same_model(nodes: int) -> None:
    """The distribution of clients over nodes does not change the model's bits."""
    rng = np.random.default_rng(5)
    shifts = {k: rng.normal() for k in range(20)}

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return make_train_result(client, shifts[client], examples=client + 1)

    def result(count: int) -> NDArray[Any] | None:
        return run_first_round(
            build_fedalign(20, {1, 2}), make_grid(make_scripted_app(20, fit), count)
        )[0]

    expected, got = result(1), result(nodes)
    assert expected is not None
    assert got is not None
    assert expected.tobytes() == got.tobytes()


def test_the_order_of_replies_changes_nothing() -> None:
    """Replies are summed by client id, in any order of arrival."""
    rng = np.random.default_rng(6)
    shifts = {k: rng.normal() for k in range(12)}

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return make_train_result(client, shifts[client], examples=client + 1)

    def result(seed: int | None) -> bytes:
        def change(replies: list[Message]) -> list[Message]:
            if seed is not None:
                random.Random(seed).shuffle(replies)
            return replies

        got, _ = run_first_round(
            build_fedalign(12, {0, 5}), make_grid(make_scripted_app(12, fit), 12), change=change
        )
        assert got is not None
        return got.tobytes()

    assert len({result(seed) for seed in (None, 1, 2, 3)}) == 1


def test_limits_of_the_gate() -> None:
    """eps = 0 equals FedAvg on the priority clients, eps = inf FedAvg on all, to the last bit."""
    rng = np.random.default_rng(7)
    shifts = {k: rng.normal() for k in range(8)}
    population = Population(tuple(range(8)), frozenset({1, 4}))

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        if task.epsilon == 0 and not task.priority:
            return TrainResult(client, Status.DECLINED)
        return make_train_result(
            client, shifts[client], examples=3 * client + 1, loss=float(client)
        )

    def result(strategy: ComposedStrategy) -> bytes:
        got, _ = run_first_round(strategy, make_grid(make_scripted_app(8, fit), 2))
        assert got is not None
        return got.tobytes()

    assert result(build_fedalign(8, {1, 4}, epsilon=0.0)) == result(
        build_named_strategy("fedavg_priority", population)
    )
    assert result(build_fedalign(8, {1, 4}, epsilon=math.inf)) == result(
        build_named_strategy("fedavg", population)
    )
    assert result(build_named_strategy("fedavg", population)) != result(
        build_named_strategy("fedavg_priority", population)
    )


def test_limits_of_priority_weights() -> None:
    """Weights of 1 and 0 equal FedALIGN, all weights 1 FedAvg on all, to the last bit."""
    rng = np.random.default_rng(9)
    shifts = {k: rng.normal() for k in range(8)}
    everyone = tuple(range(8))

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        return make_train_result(client, shifts[client], examples=3 * client + 1, loss=client / 8)

    def result(strategy: ComposedStrategy) -> bytes:
        got, _ = run_first_round(strategy, make_grid(make_scripted_app(8, fit), 2))
        assert got is not None
        return got.tobytes()

    def build_weighted(weights: dict[int, float], **options: Any) -> ComposedStrategy:
        population = Population(everyone, frozenset(weights), weights)
        return build_named_strategy("fedalign", population, warmup_fraction=0.0, **options)

    assert result(build_weighted({1: 1.0, 4: 1.0}, epsilon=0.4)) == result(
        build_fedalign(8, {1, 4}, epsilon=0.4)
    )
    assert result(build_weighted(dict.fromkeys(everyone, 1.0), epsilon=0.0)) == result(
        build_named_strategy("fedavg", Population(everyone, frozenset({1})))
    )
    assert result(build_weighted({1: 1.0, 4: 0.5}, epsilon=0.4)) != result(
        build_fedalign(8, {1, 4}, epsilon=0.4)
    )


BAD_REPLIES: dict[str, tuple[Callable[[TrainResult], TrainResult], str]] = {}


def bad(reason: str) -> Callable[[Callable[[TrainResult], TrainResult]], None]:
    def register(make: Callable[[TrainResult], TrainResult]) -> None:
        BAD_REPLIES[make.__name__] = (make, reason)

    return register


def with_metrics(reply: TrainResult, **changes: Any) -> TrainResult:
    return replace(reply, **changes)


def with_arrays(reply: TrainResult, arrays: NamedArrays | None) -> TrainResult:
    return replace(reply, arrays=arrays)


@bad("holds NaN or Inf")
def nan_weights(reply: TrainResult) -> TrainResult:
    return with_arrays(reply, {"w": np.array([np.nan, 0, 0], dtype=np.float32)})


@bad("holds NaN or Inf")
def infinite_weights(reply: TrainResult) -> TrainResult:
    return with_arrays(reply, {"w": np.array([np.inf, 0, 0], dtype=np.float32)})


@bad(r"has shape \(2,\), the model's \(3,\)")
def wrong_shape(reply: TrainResult) -> TrainResult:
    return with_arrays(reply, {"w": np.zeros(2, dtype=np.float32)})


@bad("has dtype float64")
def wrong_dtype(reply: TrainResult) -> TrainResult:
    return with_arrays(reply, {"w": np.zeros(3)})


@bad(r"arrays v are none of the model's, the model's arrays w are missing")
def wrong_key(reply: TrainResult) -> TrainResult:
    return with_arrays(reply, {"v": MODEL["w"]})


@bad("no arrays in the reply")
def no_arrays(reply: TrainResult) -> TrainResult:
    return with_arrays(reply, None)


@bad("num-examples is 0")
def no_examples(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, num_examples=0)


@bad("num-examples is -5")
def negative_examples(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, num_examples=-5)


@bad("num-examples is 1e[+]30")
def absurd_examples(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, num_examples=1e30)


@bad("num-examples is nan")
def nan_examples(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, num_examples=math.nan)


@bad("loss is nan")
def nan_loss(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, loss=math.nan)


@bad("loss is -1.0")
def negative_loss(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, loss=-1.0)


@bad("accuracy is 1.5")
def impossible_accuracy(reply: TrainResult) -> TrainResult:
    return with_metrics(reply, accuracy=1.5)


@pytest.mark.parametrize("name", sorted(BAD_REPLIES))
def test_a_bad_reply_is_rejected_without_effect(name: str) -> None:
    """The model has the bits of a round without the bad client; the report has the reason."""
    spoil, reason = BAD_REPLIES[name]

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        reply = make_train_result(client, 0.1 * client, examples=client + 1)
        return spoil(reply) if client == 3 else reply

    def silent(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        reply = make_train_result(client, 0.1 * client, examples=client + 1)
        return TrainResult(3, Status.DECLINED) if client == 3 else reply

    got, report = run_first_round(
        build_fedalign(4, {0, 1}), make_grid(make_scripted_app(4, fit), 4)
    )
    expected, _ = run_first_round(
        build_fedalign(4, {0, 1}), make_grid(make_scripted_app(4, silent), 4)
    )
    assert got is not None
    assert expected is not None
    assert got.tobytes() == expected.tobytes()
    decision = report.decisions[3]
    assert (decision.status, decision.weight) == ("rejected", 0.0)
    assert re.search(reason, str(decision.reason))


def test_a_bad_client_among_others_on_a_node_is_rejected_alone() -> None:
    """NaN from one client of a shared node does not cost the other clients their updates."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        reply = make_train_result(client, 1.0)
        return nan_update(reply) if client == 3 else reply

    def nan_update(reply: TrainResult) -> TrainResult:
        return with_arrays(reply, {"w": np.full(3, np.nan, dtype=np.float32)})

    _, report = run_first_round(build_fedalign(4, {0, 1}), make_grid(make_scripted_app(4, fit), 1))
    assert [d.status for d in report.decisions] == ["trained"] * 3 + ["rejected"]


def test_unreadable_reply_rejects_the_clients_of_its_node() -> None:
    """A reply without metrics is attributed to the clients selected at its node."""

    def change(replies: list[Message]) -> list[Message]:
        replies[1] = Message(RecordDict(), reply_to=request_of(replies[1]))
        return replies

    _, report = run_first_round(
        build_fedalign(4, {0, 2}),
        make_grid(make_scripted_app(4, lambda k, c, a: make_train_result(k, 1.0)), 2),
        change=change,
    )
    assert [d.status for d in report.decisions] == ["trained", "rejected", "trained", "rejected"]
    assert "needs the record 'metrics'" in str(report.decisions[1].reason)


def test_a_client_id_that_the_node_does_not_own_is_rejected() -> None:
    """A node that replies for another node's client does not affect it; the trail has a note."""

    def change(replies: list[Message]) -> list[Message]:
        stolen = encode_train_reply([make_train_result(0, 100.0)])
        replies[3] = Message(stolen, reply_to=request_of(replies[3]))
        return replies

    got, report = run_first_round(
        build_fedalign(4, {0, 1}),
        make_grid(make_scripted_app(4, lambda k, c, a: make_train_result(k, 1.0)), 4),
        change=change,
    )
    assert got is not None
    np.testing.assert_allclose(got, MODEL["w"] + 1.0, rtol=1e-6)
    assert report.decisions[3].status == "rejected"
    assert report.decisions[3].reason == "its node replied for 0, not asked there"


def test_failures_are_recorded_with_their_reason() -> None:
    """An error or a missing reply costs the round only these clients."""

    def change(replies: list[Message]) -> list[Message]:
        replies[2] = Message(Error(1, "boom"), reply_to=request_of(replies[2]))
        return replies[:3]

    _, report = run_first_round(
        build_fedalign(4, {0, 1}),
        make_grid(make_scripted_app(4, lambda k, c, a: make_train_result(k, 1.0)), 4),
        change=change,
    )
    outcome = [(d.status, d.reason) for d in report.decisions]
    assert outcome[2] == ("failed", "boom")
    assert outcome[3] == ("failed", "no reply in time")
    assert report.num_admitted == 2


@pytest.mark.parametrize("what", ["all silent", "all failed", "no reply"])
def test_empty_rounds_keep_the_model(what: str) -> None:
    """Without updates no model is returned, and the round is reported as empty."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        status = Status.DECLINED if what == "all silent" else Status.FAILED
        return TrainResult(client, status)

    strategy = build_fedalign(3, {0})
    got, report = run_first_round(
        strategy,
        make_grid(make_scripted_app(3, fit), 3),
        change=lambda replies: [] if what == "no reply" else replies,
    )
    assert got is None
    assert report.is_empty
    assert report.theta is None


def test_only_the_server_decides_who_has_priority() -> None:
    """A client that claims priority in its reply is gated like any other."""

    def change(replies: list[Message]) -> list[Message]:
        for reply in replies:
            reply.content.metric_records["metrics"]["priority"] = 1.0
        return replies

    app = make_scripted_app(2, lambda k, task, arrays: make_train_result(k, 1.0, loss=0.0))
    _, report = run_first_round(
        build_fedalign(2, {0}, epsilon=0.1), make_grid(app, 2), change=change
    )
    assert [d.status for d in report.decisions] == ["trained", "rejected"]


EVERYONE = Population.from_size(4)


def only(*there: tuple[int, ...]) -> ClientApp:
    """Return clients 0 to 3; those in ``there[t - 1]`` train in round t, with updates of 1."""

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        assert not task.needs_evaluation
        if client not in there[task.server_round - 1]:
            return TrainResult(client, Status.UNAVAILABLE)
        moved_on: NamedArrays = {"w": arrays["w"] + np.float32(1)}
        return TrainResult(client, Status.DONE, num_examples=5.0 + client, arrays=moved_on)

    return make_scripted_app(4, fit)


def test_fedau_by_hand() -> None:
    """c_n = omega_n / N: a client of every second round gets weight 2 once that was observed."""
    strategy = build_named_strategy("fedau", EVERYONE)
    there = ((0, 1), (0,), (0, 1), (0,), (0, 1))
    path = collect_first_weights(strategy, make_grid(only(*there), 2), 5)
    # omega of client 1: 1, 1, (1), then the mean of intervals 1 and 2 = 1.5
    assert np.diff([1.0, *path]).tolist() == pytest.approx([0.5, 0.25, 0.5, 0.25, 0.25 + 1.5 / 4])
    report = strategy.step_result.report
    assert {d.client: (d.status, d.participation_correction) for d in report.decisions} == {
        0: ("trained", 1.0),
        1: ("trained", 1.5),
        2: ("unavailable", 1.0),
        3: ("unavailable", 1.0),
    }
    assert strategy.step_result.state_bytes == 4 * 4 * 8
    assert math.isnan(report.objective.loss)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("average_participating", [1, 1, 0, 1]),
        ("average_all", [0.5, 0.25, 0, 0.5]),
        ("known_statistics", [0.75, 1, 0, 1.5]),
        # omega: 1 and 1; 2 rounds / 1; no client; 4 / 2 for both
        ("empirical", [0.5, 0.5, 0, 1]),
        # y = (1, 1, 0, 0): (1 - 0) + 2 / 4; then no step; then ((1 - 1) + (1 - 0)) / 2 + 3 / 4
        ("fedvarp", [1, 1.5, 0, 0 + 0.75]),
        # the mean of all last updates, also in the empty round
        ("mifa", [0.5, 0.75, 0.75, 0.75]),
    ],
)
def test_baselines_by_hand(name: str, steps: list[float]) -> None:
    """These are the steps of four rounds: with two clients, another one, none, and two."""
    rates = {0: 1.0, 1: 0.5, 2: 0.25, 3: 1.0}
    strategy = build_named_strategy(name, EVERYONE, rates=rates)
    path = collect_first_weights(strategy, make_grid(only((0, 1), (2,), (), (1, 2)), 2), 4)
    assert np.diff([1.0, *path]).tolist() == pytest.approx(steps)


def test_a_memory_holds_one_model_per_client(tmp_path: Path) -> None:
    """FedVarp and MIFA store one model per client; in files the numbers are the same."""
    there = ((0, 1), (2,), (), (1, 2))
    in_memory = build_named_strategy("fedvarp", EVERYONE)
    in_files = build_named_strategy("fedvarp", EVERYONE, memory_dir=str(tmp_path))
    paths = [collect_first_weights(s, make_grid(only(*there), 2), 4) for s in (in_memory, in_files)]
    assert paths[0] == paths[1]
    sizes = {s.step_result.state_bytes for s in (in_memory, in_files)}
    assert sizes == {4 * 3 * 4 + 3 * 8}
    assert [path.stat().st_size > 4 * 3 * 4 for path in tmp_path.iterdir()] == [True]


def test_clients_that_join_late_are_registered_from_then_on() -> None:
    """Round 1 starts with two of four clients; N is 2, and 4 once the others have connected."""
    strategy = build_named_strategy(
        "fedau", EVERYONE, communication=NativeProtocol(startup_clients=2)
    )
    grid = ScriptedGrid(only((0, 2), (0, 1, 2, 3)), {}, 2, there=[1])
    steps = []
    for number in (1, 2):
        train_round(strategy, grid, number)
        steps.append([(d.status, d.weight) for d in strategy.step_result.report.decisions])
        grid.there = {1, 2}
    away = ("unavailable", 0.0)
    assert steps[0] == [("trained", 0.5), away, ("trained", 0.5), away]
    assert steps[1] == [("trained", 0.25)] * 4


@pytest.mark.slow
def test_aggregation_takes_constant_memory() -> None:
    """Beyond the replies it takes the memory of a few models, for any number of clients."""
    size = 100_000
    model: NamedArrays = {"w": np.zeros(size, dtype=np.float32)}

    def peak(clients: int) -> float:
        strategy = build_named_strategy("fedau", clients)
        app = make_scripted_app(clients, lambda k, task, arrays: TrainResult(k, Status.DONE))
        grid = make_grid(app, clients)
        messages = list(strategy.configure_train(1, encode_arrays(model), ConfigRecord(), grid))
        one = encode_arrays({"w": np.ones(size, dtype=np.float32)})
        replies = []
        for message in messages:
            asked: dict[str, Any] = dict(message.content.config_records["config"])
            content = encode_train_reply(
                [TrainResult(asked["client-id"][0], Status.DONE, num_examples=10)]
            )
            content["arrays"] = one
            replies.append(Message(content, reply_to=message))
        tracemalloc.start()
        strategy.aggregate_train(1, replies)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert strategy.step_result.report.num_admitted == clients
        return most / (4 * size)

    few, many = peak(10), peak(1000)
    assert few < 15
    assert many < few + 12  # stored for 1,000 clients beside arrays: decisions, metrics


def test_missing_clients_are_named() -> None:
    """The first round waits for all clients, and the error after the timeout names missing ones."""
    population = Population(tuple(range(5)), frozenset({0}))
    strategy = build_named_strategy(
        "fedavg", population, communication=NativeProtocol(startup_timeout=0.3)
    )
    app = make_scripted_app(3, lambda k, c, a: make_train_result(k, 1.0))
    with pytest.raises(ClientsMissingError, match=r"3 of 5 clients found on 1 nodes.*: 3, 4"):
        strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), make_grid(app, 1))


def test_a_node_that_cannot_take_part_stops_the_start() -> None:
    """A ClientApp that fails on the query ends the wait immediately, with its reason."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no data here")

    strategy = build_fedalign(2, {0})
    with pytest.raises(ClientsMissingError, match="cannot take part: ValueError: no data here"):
        strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), make_grid(app, 1))


def test_a_late_broken_node_is_left_out() -> None:
    """During the run, a new node that fails on the query is left out with a warning."""
    grid = ScriptedGrid(make_scripted_app(3, lambda k, c, a: make_train_result(k, 1.0)), {}, 3)
    strategy = build_fedalign(3, {0})
    run_first_round(strategy, grid)
    grid.there = (1, 2, 3, 99)
    grid.reply = lambda message: (
        Message(Error(1, "no data here"), reply_to=message)
        if message.metadata.dst_node_id == 99
        else None
    )
    _, report = run_first_round(strategy, grid)
    assert report.count("trained") == 3


@pytest.mark.parametrize(
    ("spoiled", "expected"),
    [
        ({"num_examples": -5.0}, 2.0),
        ({"num_examples": math.nan}, 2.0),
        ({"loss": -1.0}, 2.0),
        ({"accuracy": 7.0}, 2.0),
        ({"loss": math.inf}, math.inf),
    ],
)
def test_impossible_evaluations_do_not_enter_the_global_loss(
    spoiled: dict[str, float], expected: float
) -> None:
    """F(w) covers the priority clients with possible evaluations; a diverged loss is possible."""
    strategy = build_named_strategy("fedavg", 2)
    grid = make_grid(make_scripted_app(2, lambda k, c, a: make_train_result(k, 1.0)), 2)
    run_first_round(strategy, grid)
    good = {"num_examples": 10.0, "loss": 2.0, "accuracy": 0.5}
    replies = []
    for message in strategy.configure_evaluate(1, encode_arrays(MODEL), ConfigRecord(), grid):
        client = dict(message.content.config_records["config"])["client-id"]
        assert isinstance(client, list)
        numbers: dict[str, Any] = {**good, **spoiled} if client == [1] else good
        answer = EvaluateResult(int(client[0]), Status.DONE, **numbers)
        replies.append(Message(encode_evaluate_reply([answer]), reply_to=message))
    measured = strategy.aggregate_evaluate(1, replies)
    assert measured is not None
    assert measured["global-loss"] == expected


def test_the_first_round_waits_for_late_nodes() -> None:
    """Nodes connect one by one; the round starts with the last client."""
    app = make_scripted_app(3, lambda k, c, a: make_train_result(k, 1.0))
    _, report = run_first_round(build_fedalign(3, {0}), ScriptedGrid(app, {}, 3, arriving=True))
    assert report.count("trained") == 3


def test_a_disconnected_node_is_unavailable() -> None:
    """A client whose node disconnected gets no message and is recorded as unavailable."""
    grid = ScriptedGrid(make_scripted_app(3, lambda k, c, a: make_train_result(k, 1.0)), {}, 3)
    strategy = build_fedalign(3, {0})
    run_first_round(strategy, grid)
    grid.there = {1, 2}
    _, report = run_first_round(strategy, grid)
    assert report.decisions[2].status == "unavailable"
    assert report.decisions[2].reason == "its node is not connected"


def test_evaluation_requests_only_test_losses_from_non_priority_clients() -> None:
    """Only priority clients report training losses; with ``priority``, others report nothing."""
    app = make_scripted_app(4, lambda k, c, a: make_train_result(k, 1.0))
    population = Population(tuple(range(4)), frozenset({0, 1}))
    for evaluated, expected in (("all", [0, 1, 2, 3]), ("priority", [0, 1])):
        communication = NativeProtocol(evaluated_clients=evaluated)
        strategy = build_named_strategy(
            "fedalign", population, num_rounds=2, communication=communication
        )
        grid = make_grid(app, 2)
        run_first_round(strategy, grid)
        messages = strategy.configure_evaluate(1, encode_arrays(MODEL), ConfigRecord(), grid)
        strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
        assert [e.client for e in strategy.step_result.evaluations] == expected
        assert all(math.isnan(e.loss) != e.priority for e in strategy.step_result.evaluations)


def test_flowers_own_loop_runs_the_strategy() -> None:
    """Flower's ``Strategy.start`` runs it like one of Flower's strategies."""
    app = make_scripted_app(
        4,
        lambda k, c, arrays: TrainResult(
            k,
            Status.DONE,
            num_examples=10,
            loss=1.0,
            accuracy=0.5,
            arrays={"w": arrays["w"] + np.float32(1)},
        ),
    )
    strategy = build_fedalign(4, {0, 1})
    result = strategy.start(make_grid(app, 2), encode_arrays(MODEL), num_rounds=3)
    np.testing.assert_allclose(decode_arrays(result.arrays)["w"], MODEL["w"] + 3)
    assert result.evaluate_metrics_clientapp[3]["global-loss"] == 1.0


def test_a_standard_client_app_is_understood() -> None:
    """One client per node may reply in Flower's standard form: arrays and num-examples."""
    app = make_scripted_app(2, lambda k, c, a: make_train_result(k, 1.0))

    def change(replies: list[Message]) -> list[Message]:
        return [
            Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord({"w": reply.content.array_records["arrays"]["w"]}),
                        "metrics": MetricRecord({"num-examples": 7}),
                    }
                ),
                reply_to=request_of(reply),
            )
            for reply in replies
        ]

    population = Population((0, 1), frozenset({0}))
    got, report = run_first_round(
        build_named_strategy("fedavg", population), make_grid(app, 2), change=change
    )
    assert got is not None
    np.testing.assert_allclose(got, MODEL["w"] + 1.0, rtol=1e-6)
    assert [d.num_examples for d in report.decisions] == [7, 7]


def build_gated_strategy(population: Population) -> ComposedStrategy:
    """Return a gated strategy with omega, data and Adam, which has every kind of state."""
    rules = RuleSet(
        EpsilonGate(num_rounds=9, epsilon=0.5, warmup_fraction=0.0),
        FedAUCorrection(base=DataFraction().with_fixed_denominator()),
        Adam(0.1),
    )
    return ComposedStrategy(rules, population=population)


@pytest.mark.parametrize("name", ["fedvarp", "fedau", "mifa", "gated"])
def test_a_strategy_resumes_from_its_state(name: str) -> None:
    """A new strategy with the state after a round decides the next one with the same bits."""
    app = make_scripted_app(
        3, lambda k, config, arrays: make_train_result(k, k + 1.0, examples=10 + k)
    )

    def make(population: Population) -> ComposedStrategy:
        return (
            build_gated_strategy(population)
            if name == "gated"
            else build_named_strategy(name, population)
        )

    def play(strategy: ComposedStrategy, server_round: int) -> bytes:
        arrays = train_round(strategy, make_grid(app, 3), server_round)
        assert arrays is not None
        return decode_arrays(arrays)["w"].tobytes()

    first = make(Population.from_size(3))
    play(first, 1)
    second = make(Population.from_size(3))
    second.restore(first.get_state(), MODEL)
    assert second.get_state().keys() == first.get_state().keys()
    assert second.step_result.state_bytes == first.step_result.state_bytes
    assert play(first, 2) == play(second, 2)


def test_early_calls_are_refused() -> None:
    """There is no report before a round, and no replies to a round that was not configured."""
    strategy = build_fedalign(2, {0})
    assert strategy.step_result.evaluations == ()
    assert strategy.step_result.traffic.bytes_down == 0
    with pytest.raises(StateError, match="no round has been aggregated yet"):
        _ = strategy.step_result.report
    with pytest.raises(StateError, match="round 3 was not configured"):
        strategy.aggregate_train(3, [])


def test_the_state_of_a_memory_needs_a_strategy_with_one() -> None:
    """A strategy without a memory raises an error instead of dropping the updates."""
    app = make_scripted_app(3, lambda k, config, arrays: make_train_result(k, 1.0))
    remembering = build_named_strategy("fedvarp", 3)
    run_first_round(remembering, make_grid(app, 3))
    with pytest.raises(StateError, match="'memory' is of a strategy that keeps the clients' upd"):
        build_named_strategy("average_participating", 3).restore(remembering.get_state(), MODEL)


def test_estimates_are_reported_for_unselected_clients_too() -> None:
    """With half of the clients selected, the others have omegas too, but no decisions."""
    app = make_scripted_app(4, lambda k, config, arrays: make_train_result(k, 1.0))
    strategy = build_named_strategy("fedau", EVERYONE, fraction=0.5, seed=3)
    _, report = run_first_round(strategy, make_grid(app, 4))
    assert [d.client for d in report.decisions] == list(report.plan.clients)
    assert [d.participation_correction for d in report.decisions] == [1.0, 1.0]


# --- one plan, one result, and a rejected round --------------------------------------------


@dataclass(frozen=True)
class Counting(AllClients):
    """Selects all or a sample; notes the rounds whose plans were computed."""

    computed: list[int] = field(default_factory=list)

    def plan(self, t: int, population: Population, reports: ClientReports) -> RoundPlan:
        """Return the plan."""
        self.computed.append(t)
        return super().plan(t, population, reports)


@pytest.mark.parametrize("standard", [False, True])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("weighting", [AverageAll(), DataFraction()])
def test_a_rounds_plan_is_computed_once(
    *, standard: bool, fraction: float, weighting: Weighting[Any]
) -> None:
    """The plan is computed once, whether it is needed early or in the round."""
    selection = Counting(Sampling(fraction))
    app = make_scripted_app(4, lambda k, task, arrays: make_train_result(k, 1.0))
    strategy = ComposedStrategy(
        RuleSet(selection, weighting),
        population=Population.open() if standard else EVERYONE,
        communication=StandardProtocol(min_available_nodes=2) if standard else None,
    )
    strategy.start(make_grid(make_standard_app() if standard else app, 4), encode_arrays(MODEL), 3)
    assert selection.computed[:3] == [0, 1, 2]
    assert len(set(selection.computed)) == len(selection.computed)


def test_f_of_the_initial_model_has_its_own_step() -> None:
    """``configure_train`` evaluates nothing; ``start`` takes the step if the rules need it."""
    app = make_scripted_app(3, lambda k, task, arrays: make_train_result(k, 1.0), {0: 2.0, 1: 4.0})
    strategy, grid = build_fedalign(3, {0, 1}), ScriptedGrid(app, {}, 3)
    assert strategy.needs_initial_evaluation
    train_round(strategy, grid)
    assert grid.kinds == ["query"] * 3 + ["train"] * 3
    assert math.isnan(strategy.step_result.report.objective.loss)

    strategy, grid = build_fedalign(3, {0, 1}), ScriptedGrid(app, {}, 3)
    messages = list(strategy.configure_initial(encode_arrays(MODEL), grid))
    assert [m.metadata.dst_node_id for m in messages] == [1, 2]
    strategy.aggregate_initial(grid.send_and_receive(messages))
    assert [(e.client, e.loss) for e in strategy.step_result.evaluations] == [(0, 2.0), (1, 4.0)]
    assert not strategy.needs_initial_evaluation
    train_round(strategy, grid)
    assert strategy.step_result.report.objective.loss == 3.0
    assert grid.kinds == ["query"] * 3 + ["evaluate"] * 2 + ["train"] * 3

    grid = ScriptedGrid(app, {}, 3)
    build_fedalign(3, {0, 1}).start(grid, encode_arrays(MODEL), num_rounds=1)
    assert grid.kinds == ["query"] * 3 + ["evaluate"] * 2 + ["train"] * 3 + ["evaluate"] * 3
    assert not build_named_strategy("fedau", 3).needs_initial_evaluation
    assert not build_fedalign(3, {0}, communication=StandardProtocol()).needs_initial_evaluation


def test_a_step_result_is_complete_and_immutable() -> None:
    """It is complete and frozen after each step, and the next step changes no earlier one."""
    app = make_scripted_app(3, lambda k, task, arrays: make_train_result(k, 1.0), {0: 2.0})
    strategy, grid = build_named_strategy("fedvarp", 3), make_grid(app, 3)
    before = strategy.step_result
    model = train_round(strategy, grid)
    assert model is not None
    trained = strategy.step_result
    assert (before.last_report, before.traffic.bytes_down, before.state_bytes) == (None, 0, 0)
    assert trained.report.count("trained") == 3
    assert trained.traffic.bytes_down > 0 < trained.traffic.bytes_up
    assert trained.state_bytes == 3 * MODEL["w"].nbytes + 3 * 8
    assert trained.evaluations == ()
    evaluate_round(strategy, grid, 1, model)
    evaluated = strategy.step_result
    assert evaluated.last_report is trained.last_report
    assert [e.loss for e in evaluated.evaluations] == [2.0, 1.0, 1.0]
    assert trained.evaluations == ()
    assert evaluated.traffic.bytes_up > trained.traffic.bytes_up
    with pytest.raises(FrozenInstanceError):
        evaluated.state_bytes = 0  # type: ignore[misc]


def stepping(population: Population) -> ComposedStrategy:
    """Return a strategy with state of a weighting, coverage, an optimizer and data."""
    rules = RuleSet(
        EpsilonGate(num_rounds=9, epsilon=5.0, warmup_fraction=0.0),
        FedAUCorrection(base=DataFraction().with_fixed_denominator()),
        Adam(1e5),
    )
    return ComposedStrategy(rules, population=population)


@pytest.mark.parametrize(
    "name", ["fedvarp", "mifa", "fedau", "aaggff_s", "aaggff_d", "afl", "fedavg", "stepping"]
)
def test_a_rejected_round_changes_nothing(name: str) -> None:
    """Memory, weighting's state, coverage, optimizer and the next round have the same bits."""
    model: NamedArrays = {"w": np.array([1.0, -2.0, 0.5], dtype=np.float16)}
    shift = 0.0 if name == "stepping" else 0.5  # Adam's step is as long as its learning rate

    def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
        if (name, client, task.server_round) == ("stepping", 2, 2):
            return TrainResult(2, Status.DECLINED)  # which would end its being covered
        to = {
            1: arrays["w"] + np.float16(shift * (client + 1)),
            2: np.full(3, 6.5e4, dtype=np.float16),
            3: arrays["w"] + np.float16(shift),
        }[task.server_round]
        loss = 1.0 + client + task.server_round
        return replace(
            make_train_result(client, 0.0, examples=client + 3, loss=loss), arrays={"w": to}
        )

    def make() -> ComposedStrategy:
        if name == "stepping":
            return stepping(Population.from_size(3, {0, 1}))
        return build_named_strategy(name, 3, server_lr=3.0)

    grid = make_grid(make_scripted_app(3, fit), 3)
    strategy, spared = make(), make()
    for one in (strategy, spared):
        if one.needs_initial_evaluation:
            messages = one.configure_initial(encode_arrays(model), grid)
            one.aggregate_initial(grid.send_and_receive(messages))
        assert train_round(one, grid, 1, encode_arrays(model)) is not None
    before, size = get_state_bytes(strategy), strategy.step_result.state_bytes
    assert train_round(strategy, grid, 2, encode_arrays(model)) is None
    refused = [d for d in strategy.step_result.report.decisions if d.status != "declined"]
    assert {(d.status, d.weight) for d in refused} == {("rejected", 0.0)}
    assert {d.reason for d in refused} == {"the model would not be finite"}
    assert (get_state_bytes(strategy), strategy.step_result.state_bytes) == (before, size)
    following = [train_round(one, grid, 3, encode_arrays(model)) for one in (strategy, spared)]
    assert following[0] is not None
    assert following[0] == following[1]
    assert get_state_bytes(strategy) == get_state_bytes(spared)
    assert get_state_bytes(strategy) != before or name == "fedavg"
