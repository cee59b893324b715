"""The adapter, driven as Flower drives a strategy, with scripted clients behind the Grid."""

import math
import random
import re
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from client_app.node import hosted_clients
from server_app.in_process import InProcessGrid
from strategies import (
    MIFA,
    Communication,
    ComposedStrategy,
    FedALIGN,
    FedAU,
    FedAvg,
    FedAvgAll,
    FedAvgParticipating,
    FedVarp,
    KnownStatistics,
    LocalOnly,
    Population,
)
from strategies.codec import (
    ClientReply,
    NamedArrays,
    Status,
    decode_arrays,
    decode_request,
    encode_arrays,
    encode_hosted_clients,
    encode_replies,
)
from strategies.directory import ClientsMissingError
from strategies.report import TrainReport
from strategies.selection import EpsilonGate
from strategies.server_optimizer import Adam
from strategies.state import StateError
from strategies.weighting import DataFraction
from strategies.weighting import FedAU as FedAUWeighting

MODEL: NamedArrays = {"w": np.array([1.0, -2.0, 0.5], dtype=np.float32)}
Script = Callable[[int, dict[str, Any], NamedArrays], ClientReply]


def moved(client: int, by: float, *, examples: float = 10, loss: float = 1.0) -> ClientReply:
    """Return a client that trained and moved every weight of MODEL by ``by``."""
    metrics = {"num-examples": examples, "loss": loss, "accuracy": 0.5}
    arrays: NamedArrays = {"w": (MODEL["w"] + np.float32(by)).astype(np.float32)}
    return ClientReply(client, Status.DONE, metrics, arrays)


def scripted_app(
    num_clients: int, fit: Script, losses: dict[int, float] | None = None
) -> ClientApp:
    """Return a ClientApp whose clients train as ``fit`` says and measure ``losses``."""
    app = ClientApp()

    def hosted(context: Context) -> tuple[int, ...]:
        return hosted_clients(dict(context.node_config), num_clients)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(encode_hosted_clients(hosted(context)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, configs = decode_request(message.content, hosted(context))
        return Message(
            encode_replies([fit(k, config, arrays) for k, config in configs.items()]),
            reply_to=message,
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        _, configs = decode_request(message.content, hosted(context))
        replies = []
        for k, config in configs.items():
            metrics = {"num-examples": 10.0, "test-loss": 1.0, "test-accuracy": 0.5}
            if config["measure-train"]:
                metrics |= {"loss": (losses or {}).get(k, 1.0), "accuracy": 0.5}
            replies.append(ClientReply(k, Status.DONE, metrics))
        return Message(encode_replies(replies), reply_to=message)

    return app


def play_round(
    strategy: ComposedStrategy[Any],
    grid: InProcessGrid,
    *,
    change: Callable[[list[Message]], Iterable[Message]] = lambda replies: replies,
) -> tuple[NDArray[Any] | None, TrainReport]:
    """Play round 1; ``change`` may tamper with the replies on their way."""
    messages = strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    arrays, _ = strategy.aggregate_train(1, change(replies))
    return None if arrays is None else decode_arrays(arrays)["w"], strategy.train_report


def fedalign(num_clients: int, priority: set[int], **options: Any) -> FedALIGN:
    population = Population(tuple(range(num_clients)), frozenset(priority))
    return FedALIGN(population, num_rounds=10, **{"warmup_fraction": 0.0, **options})


def grid_of(app: ClientApp, nodes: int) -> InProcessGrid:
    return InProcessGrid(app, {}, nodes)


def test_one_round_by_hand() -> None:
    """Two priority clients, one admitted, one refused by the server, one silent."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        assert config["global-loss"] == 1.0
        if client == 4:
            return ClientReply(4, Status.SILENT)
        by, examples, loss = {0: (1, 10, 1.0), 1: (2, 30, 1.0), 2: (4, 20, 0.9), 3: (8, 5, 0.1)}[
            client
        ]
        return moved(client, by, examples=examples, loss=loss)

    strategy = fedalign(5, {0, 1}, epsilon=0.2)
    got, report = play_round(strategy, grid_of(scripted_app(5, fit), 2))
    # p = (10, 30, 20) / 40, A = 1/2: (10 * 1 + 30 * 2 + 20 * 4) / 60 = 2.5
    assert got is not None
    np.testing.assert_allclose(got, MODEL["w"] + 2.5, rtol=1e-6)
    assert got.dtype == np.float32
    assert [d.status for d in report.decisions] == [
        "trained",
        "trained",
        "trained",
        "rejected",
        "silent",
    ]
    assert [d.weight for d in report.decisions] == pytest.approx([1 / 6, 1 / 2, 1 / 3, 0, 0])
    assert report.inclusion_mass == pytest.approx(0.5)
    assert report.theta == pytest.approx(2 / 3)
    assert report.decisions[3].reason == "loss 0.1 < global 1 - epsilon 0.2"
    silent = report.decisions[4]
    assert (silent.num_examples, silent.loss, silent.accuracy) == (None, None, None)


def test_global_loss_is_the_priority_objective() -> None:
    """F(w_0) is measured before round 1, weighted by the priority clients' data alone."""
    seen: list[float] = []

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        seen.append(config["global-loss"])
        return moved(client, 0.0)

    losses = {0: 1.0, 1: 2.0, 2: 100.0}
    play_round(fedalign(3, {0, 1}), grid_of(scripted_app(3, fit, losses), 3))
    assert seen == [1.5] * 3


@pytest.mark.parametrize("nodes", [1, 2, 4, 20])
def test_any_number_of_nodes_gives_the_same_model(nodes: int) -> None:
    """How clients are spread over nodes changes nothing, to the last bit."""
    rng = np.random.default_rng(5)
    shifts = {k: rng.normal() for k in range(20)}

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        return moved(client, shifts[client], examples=client + 1)

    def result(count: int) -> NDArray[Any] | None:
        return play_round(fedalign(20, {1, 2}), grid_of(scripted_app(20, fit), count))[0]

    expected, got = result(1), result(nodes)
    assert expected is not None
    assert got is not None
    assert expected.tobytes() == got.tobytes()


def test_the_order_of_replies_changes_nothing() -> None:
    """Replies are summed by client id, whatever order they arrive in."""
    rng = np.random.default_rng(6)
    shifts = {k: rng.normal() for k in range(12)}

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        return moved(client, shifts[client], examples=client + 1)

    def result(seed: int | None) -> bytes:
        def change(replies: list[Message]) -> list[Message]:
            if seed is not None:
                random.Random(seed).shuffle(replies)
            return replies

        got, _ = play_round(fedalign(12, {0, 5}), grid_of(scripted_app(12, fit), 12), change=change)
        assert got is not None
        return got.tobytes()

    assert len({result(seed) for seed in (None, 1, 2, 3)}) == 1


def test_limits_of_the_gate() -> None:
    """eps = 0 is FedAvg on the priority clients and eps = inf FedAvg on all, to the last bit."""
    rng = np.random.default_rng(7)
    shifts = {k: rng.normal() for k in range(8)}
    population = Population(tuple(range(8)), frozenset({1, 4}))

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        if "epsilon" in config and config["epsilon"] == 0 and not config["priority"]:
            return ClientReply(client, Status.SILENT)
        return moved(client, shifts[client], examples=3 * client + 1, loss=float(client))

    def result(strategy: ComposedStrategy[Any]) -> bytes:
        got, _ = play_round(strategy, grid_of(scripted_app(8, fit), 2))
        assert got is not None
        return got.tobytes()

    assert result(fedalign(8, {1, 4}, epsilon=0.0)) == result(
        FedAvg(population, priority_only=True)
    )
    assert result(fedalign(8, {1, 4}, epsilon=math.inf)) == result(FedAvg(population))
    assert result(FedAvg(population)) != result(FedAvg(population, priority_only=True))


def test_limits_of_priority_weights() -> None:
    """Weights of 1 and 0 are FedALIGN, 1 for everyone FedAvg on all, to the last bit."""
    rng = np.random.default_rng(9)
    shifts = {k: rng.normal() for k in range(8)}
    everyone = tuple(range(8))

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        return moved(client, shifts[client], examples=3 * client + 1, loss=client / 8)

    def result(strategy: ComposedStrategy[Any]) -> bytes:
        got, _ = play_round(strategy, grid_of(scripted_app(8, fit), 2))
        assert got is not None
        return got.tobytes()

    def weighted(weights: dict[int, float], **options: Any) -> FedALIGN:
        population = Population(everyone, frozenset(weights), weights)
        return FedALIGN(population, num_rounds=10, warmup_fraction=0.0, **options)

    assert result(weighted({1: 1.0, 4: 1.0}, epsilon=0.4)) == result(
        fedalign(8, {1, 4}, epsilon=0.4)
    )
    assert result(weighted(dict.fromkeys(everyone, 1.0), epsilon=0.0)) == result(
        FedAvg(Population(everyone, frozenset({1})))
    )
    assert result(weighted({1: 1.0, 4: 0.5}, epsilon=0.4)) != result(
        fedalign(8, {1, 4}, epsilon=0.4)
    )


BAD_REPLIES: dict[str, tuple[Callable[[ClientReply], ClientReply], str]] = {}


def bad(reason: str) -> Callable[[Callable[[ClientReply], ClientReply]], None]:
    def register(make: Callable[[ClientReply], ClientReply]) -> None:
        BAD_REPLIES[make.__name__] = (make, reason)

    return register


def with_metrics(reply: ClientReply, **changes: float) -> ClientReply:
    metrics = {**reply.metrics, **{k.replace("_", "-"): v for k, v in changes.items()}}
    return ClientReply(reply.client, reply.status, metrics, reply.arrays)


def with_arrays(reply: ClientReply, arrays: NamedArrays | None) -> ClientReply:
    return ClientReply(reply.client, reply.status, reply.metrics, arrays)


@bad("holds NaN or Inf")
def nan_weights(reply: ClientReply) -> ClientReply:
    return with_arrays(reply, {"w": np.array([np.nan, 0, 0], dtype=np.float32)})


@bad("holds NaN or Inf")
def infinite_weights(reply: ClientReply) -> ClientReply:
    return with_arrays(reply, {"w": np.array([np.inf, 0, 0], dtype=np.float32)})


@bad(r"has shape \(2,\), the model's \(3,\)")
def wrong_shape(reply: ClientReply) -> ClientReply:
    return with_arrays(reply, {"w": np.zeros(2, dtype=np.float32)})


@bad("has dtype float64")
def wrong_dtype(reply: ClientReply) -> ClientReply:
    return with_arrays(reply, {"w": np.zeros(3)})


@bad(r"arrays are named \['v'\]")
def wrong_key(reply: ClientReply) -> ClientReply:
    return with_arrays(reply, {"v": MODEL["w"]})


@bad("no arrays in the reply")
def no_arrays(reply: ClientReply) -> ClientReply:
    return with_arrays(reply, None)


@bad("num-examples is 0")
def no_examples(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, num_examples=0)


@bad("num-examples is -5")
def negative_examples(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, num_examples=-5)


@bad("num-examples is 1e[+]30")
def absurd_examples(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, num_examples=1e30)


@bad("num-examples is nan")
def nan_examples(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, num_examples=math.nan)


@bad("loss is nan")
def nan_loss(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, loss=math.nan)


@bad("loss is -1.0")
def negative_loss(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, loss=-1.0)


@bad("accuracy is 1.5")
def impossible_accuracy(reply: ClientReply) -> ClientReply:
    return with_metrics(reply, accuracy=1.5)


@pytest.mark.parametrize("name", sorted(BAD_REPLIES))
def test_a_bad_reply_is_rejected_and_touches_nothing(name: str) -> None:
    """The model is that of a round without the bad client, to the last bit; the reason is told."""
    spoil, reason = BAD_REPLIES[name]

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        reply = moved(client, 0.1 * client, examples=client + 1)
        return spoil(reply) if client == 3 else reply

    def silent(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        reply = moved(client, 0.1 * client, examples=client + 1)
        return ClientReply(3, Status.SILENT) if client == 3 else reply

    got, report = play_round(fedalign(4, {0, 1}), grid_of(scripted_app(4, fit), 4))
    expected, _ = play_round(fedalign(4, {0, 1}), grid_of(scripted_app(4, silent), 4))
    assert got is not None
    assert expected is not None
    assert got.tobytes() == expected.tobytes()
    decision = report.decisions[3]
    assert (decision.status, decision.weight) == ("rejected", 0.0)
    assert re.search(reason, str(decision.reason))


def test_a_bad_client_among_others_on_a_node_is_rejected_alone() -> None:
    """NaN from one client of a shared node does not cost the other clients their updates."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        reply = moved(client, 1.0)
        return nan_update(reply) if client == 3 else reply

    def nan_update(reply: ClientReply) -> ClientReply:
        return with_arrays(reply, {"w": np.full(3, np.nan, dtype=np.float32)})

    _, report = play_round(fedalign(4, {0, 1}), grid_of(scripted_app(4, fit), 1))
    assert [d.status for d in report.decisions] == ["trained"] * 3 + ["rejected"]


def test_unreadable_reply_rejects_the_clients_of_its_node() -> None:
    """A reply without metrics is attributed to the clients asked at that node."""

    def change(replies: list[Message]) -> list[Message]:
        replies[1] = Message(RecordDict(), reply_to=_request_of(replies[1]))
        return replies

    _, report = play_round(
        fedalign(4, {0, 2}),
        grid_of(scripted_app(4, lambda k, c, a: moved(k, 1.0)), 2),
        change=change,
    )
    assert [d.status for d in report.decisions] == ["trained", "rejected", "trained", "rejected"]
    assert "needs the record 'metrics'" in str(report.decisions[1].reason)


def _request_of(reply: Message) -> Message:
    sent = reply.metadata
    return Message(RecordDict(), sent.src_node_id, sent.message_type, group_id=sent.group_id)


def test_a_client_id_that_the_node_does_not_own_is_rejected() -> None:
    """A node that answers for another's client changes nothing about it, and the trail tells."""

    def change(replies: list[Message]) -> list[Message]:
        stolen = encode_replies([moved(0, 100.0)])
        replies[3] = Message(stolen, reply_to=_request_of(replies[3]))
        return replies

    got, report = play_round(
        fedalign(4, {0, 1}),
        grid_of(scripted_app(4, lambda k, c, a: moved(k, 1.0)), 4),
        change=change,
    )
    assert got is not None
    np.testing.assert_allclose(got, MODEL["w"] + 1.0, rtol=1e-6)
    assert report.decisions[3].status == "rejected"
    assert report.decisions[3].reason == "its node replied for [0], not asked there"


def test_failures_are_recorded_with_their_reason() -> None:
    """An error reply and a missing reply cost the round only these clients."""

    def change(replies: list[Message]) -> list[Message]:
        replies[2] = Message(Error(1, "boom"), reply_to=_request_of(replies[2]))
        return replies[:3]

    _, report = play_round(
        fedalign(4, {0, 1}),
        grid_of(scripted_app(4, lambda k, c, a: moved(k, 1.0)), 4),
        change=change,
    )
    outcome = [(d.status, d.reason) for d in report.decisions]
    assert outcome[2] == ("failed", "boom")
    assert outcome[3] == ("failed", "no reply in time")
    assert report.admitted == 2


@pytest.mark.parametrize("what", ["all silent", "all failed", "no reply"])
def test_empty_rounds_keep_the_model(what: str) -> None:
    """Nothing to combine: no model is returned, the round is reported as empty."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        status = Status.SILENT if what == "all silent" else Status.FAILED
        return ClientReply(client, status)

    strategy = fedalign(3, {0})
    got, report = play_round(
        strategy,
        grid_of(scripted_app(3, fit), 3),
        change=lambda replies: [] if what == "no reply" else replies,
    )
    assert got is None
    assert report.empty
    assert report.theta is None


def test_priority_is_the_servers_knowledge() -> None:
    """A client that claims priority in its reply is gated like any other."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        reply = moved(client, 1.0, loss=0.0)
        return with_metrics(reply, priority=1.0)

    _, report = play_round(fedalign(2, {0}, epsilon=0.1), grid_of(scripted_app(2, fit), 2))
    assert [d.status for d in report.decisions] == ["trained", "rejected"]


def test_local_only_keeps_the_model_and_wants_no_update() -> None:
    """Replies without arrays count as trained, with weight 0; arrays are refused."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        assert config["own-model"] is True
        reply = moved(client, 1.0)
        return reply if client == 2 else replace(reply, arrays=None)

    strategy = LocalOnly(Population((0, 1, 2), frozenset({0})))
    new_model, report = play_round(strategy, grid_of(scripted_app(3, fit), 3))
    assert new_model is None
    assert [(d.status, d.weight) for d in report.decisions] == [
        ("trained", 0.0),
        ("trained", 0.0),
        ("rejected", 0.0),
    ]
    assert report.decisions[2].reason == "arrays, though none were asked for"
    assert (report.inclusion_mass, report.theta) == (None, None)


def participation(strategy: ComposedStrategy[Any], app: ClientApp, rounds: int) -> list[float]:
    """Play rounds as the run loop does; return the first weight of the model after each."""
    grid, arrays, path = grid_of(app, 2), encode_arrays(MODEL), []
    for number in range(1, rounds + 1):
        messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
        new, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        arrays = arrays if new is None else new
        config = ConfigRecord({"measure-test": False})
        messages = strategy.configure_evaluate(number, arrays, config, grid)
        strategy.aggregate_evaluate(number, grid.send_and_receive(messages))
        path.append(float(decode_arrays(arrays)["w"][0]))
    return path


EVERYONE = Population((0, 1, 2, 3), frozenset({0, 1, 2, 3}))


def only(*there: tuple[int, ...]) -> ClientApp:
    """Return clients 0 to 3 of which ``there[t - 1]`` take part in round t; each moves by 1."""

    def fit(client: int, config: dict[str, Any], arrays: NamedArrays) -> ClientReply:
        assert config["measure"] is False
        if client not in there[config["server-round"] - 1]:
            return ClientReply(client, Status.UNAVAILABLE)
        moved_on: NamedArrays = {"w": arrays["w"] + np.float32(1)}
        return ClientReply(client, Status.DONE, {"num-examples": 5.0 + client}, moved_on)

    return scripted_app(4, fit)


def test_fedau_by_hand() -> None:
    """c_n = omega_n / N: who comes every second round weighs 2 once that was seen."""
    strategy = FedAU(EVERYONE)
    there = ((0, 1), (0,), (0, 1), (0,), (0, 1))
    path = participation(strategy, only(*there), 5)
    # omega of client 1: 1, 1, (1), then the mean of intervals 1 and 2 = 1.5
    assert np.diff([1.0, *path]).tolist() == pytest.approx([0.5, 0.25, 0.5, 0.25, 0.25 + 1.5 / 4])
    report = strategy.train_report
    assert {d.client: (d.status, d.omega) for d in report.decisions} == {
        0: ("trained", 1.0),
        1: ("trained", 1.5),
        2: ("unavailable", 1.0),
        3: ("unavailable", 1.0),
    }
    assert strategy.state_bytes == 4 * 4 * 8
    assert math.isnan(report.measure.loss)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (FedAvgParticipating, [1, 1, 0, 1]),
        (FedAvgAll, [0.5, 0.25, 0, 0.5]),
        (partial(KnownStatistics, probabilities={0: 1, 1: 0.5, 2: 0.25, 3: 1}), [0.75, 1, 0, 1.5]),
        # y = (1, 1, 0, 0): (1 - 0) + 2 / 4; then no step; then ((1 - 1) + (1 - 0)) / 2 + 3 / 4
        (FedVarp, [1, 1.5, 0, 0 + 0.75]),
        # the mean of all last updates, also in the empty round
        (MIFA, [0.5, 0.75, 0.75, 0.75]),
    ],
)
def test_baselines_by_hand(
    make: Callable[[Population], ComposedStrategy[Any]], steps: list[float]
) -> None:
    """The steps of four rounds: two clients, another one, nobody, two."""
    strategy = make(EVERYONE)
    path = participation(strategy, only((0, 1), (2,), (), (1, 2)), 4)
    assert np.diff([1.0, *path]).tolist() == pytest.approx(steps)


def test_server_state_of_a_memory_is_a_model_per_client(tmp_path: Path) -> None:
    """FedVarp and MIFA keep one model for each client; in files the numbers are the same."""
    there = ((0, 1), (2,), (), (1, 2))
    in_memory, in_files = FedVarp(EVERYONE), FedVarp(EVERYONE, memory_dir=tmp_path)
    paths = [participation(s, only(*there), 4) for s in (in_memory, in_files)]
    assert paths[0] == paths[1]
    assert in_memory.state_bytes == in_files.state_bytes == 4 * 3 * 4 + 3 * 8
    assert [path.stat().st_size > 4 * 3 * 4 for path in tmp_path.iterdir()] == [True]


def test_clients_that_join_late_are_known_from_then_on() -> None:
    """Round 1 begins with two of four clients; N is 2, and 4 when the others have come."""

    class Late(InProcessGrid):
        nodes = 1

        def get_node_ids(self) -> Iterable[int]:
            return list(super().get_node_ids())[: self.nodes]

    strategy = FedAU(EVERYONE, communication=Communication(startup_clients=2))
    grid = Late(only((0, 2), (0, 1, 2, 3)), {}, 2)
    steps = []
    for number in (1, 2):
        messages = strategy.configure_train(number, encode_arrays(MODEL), ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(messages))
        steps.append([(d.status, d.weight) for d in strategy.train_report.decisions])
        grid.nodes = 2
    away = ("unavailable", 0.0)
    assert steps[0] == [("trained", 0.5), away, ("trained", 0.5), away]
    assert steps[1] == [("trained", 0.25)] * 4


def test_aggregation_streams() -> None:
    """Beyond the replies themselves it takes a few models of memory, for any number of clients."""
    size = 100_000
    model: NamedArrays = {"w": np.zeros(size, dtype=np.float32)}

    def peak(clients: int) -> float:
        population = Population(tuple(range(clients)), frozenset(range(clients)))
        strategy = FedAU(population)
        app = scripted_app(clients, lambda k, config, arrays: ClientReply(k, Status.DONE))
        grid = grid_of(app, clients)
        messages = list(strategy.configure_train(1, encode_arrays(model), ConfigRecord(), grid))
        one = encode_arrays({"w": np.ones(size, dtype=np.float32)})
        replies = []
        for message in messages:
            asked: dict[str, Any] = dict(message.content.config_records["config"])
            metrics = MetricRecord({"client-id": asked["client-id"][0], "num-examples": 10})
            replies.append(
                Message(RecordDict({"arrays": one, "metrics": metrics}), reply_to=message)
            )
        tracemalloc.start()
        strategy.aggregate_train(1, replies)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert strategy.train_report.admitted == clients
        return most / (4 * size)

    few, many = peak(10), peak(1000)
    assert few < 15
    assert many < few + 12  # what is kept of 1,000 clients beside arrays: decisions, metrics


def test_missing_clients_are_named() -> None:
    """The first round waits for all clients, and says which are missing when time is up."""
    population = Population(tuple(range(5)), frozenset({0}))
    strategy = FedAvg(population, communication=Communication(startup_timeout=0.3))
    app = scripted_app(3, lambda k, c, a: moved(k, 1.0))
    with pytest.raises(ClientsMissingError, match=r"3 of 5 clients found on 1 nodes.*: 3, 4"):
        strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid_of(app, 1))


def test_a_node_that_cannot_take_part_stops_the_start() -> None:
    """A ClientApp that fails on the query ends the wait at once, with its reason."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        raise ValueError("no data here")

    strategy = fedalign(2, {0})
    with pytest.raises(ClientsMissingError, match="cannot take part: ValueError: no data here"):
        strategy.configure_train(1, encode_arrays(MODEL), ConfigRecord(), grid_of(app, 1))


def test_a_late_node_that_cannot_take_part_costs_nothing() -> None:
    """Once the run goes on, a new node that fails on the query is left out with a warning."""

    class Grid(InProcessGrid):
        broken = False

        def get_node_ids(self) -> Iterable[int]:
            return [*super().get_node_ids(), *([99] if self.broken else [])]

        def _answer(self, message: Message) -> Message:
            if message.metadata.dst_node_id == 99:
                return Message(Error(1, "no data here"), reply_to=message)
            return super()._answer(message)

    grid = Grid(scripted_app(3, lambda k, c, a: moved(k, 1.0)), {}, 3)
    strategy = fedalign(3, {0})
    play_round(strategy, grid)
    grid.broken = True
    _, report = play_round(strategy, grid)
    assert report.count("trained") == 3


@pytest.mark.parametrize(
    ("spoiled", "expected"),
    [
        ({"num-examples": -5.0}, 2.0),
        ({"num-examples": math.nan}, 2.0),
        ({"loss": -1.0}, 2.0),
        ({"accuracy": 7.0}, 2.0),
        ({"loss": math.inf}, math.inf),
    ],
)
def test_impossible_evaluations_do_not_enter_the_global_loss(
    spoiled: dict[str, float], expected: float
) -> None:
    """F(w) is over the priority clients whose measurements can be; a diverged loss can."""
    population = Population((0, 1), frozenset({0, 1}))
    strategy = FedAvg(population)
    grid = grid_of(scripted_app(2, lambda k, c, a: moved(k, 1.0)), 2)
    play_round(strategy, grid)
    good = {"num-examples": 10.0, "loss": 2.0, "accuracy": 0.5}
    replies = []
    for message in strategy.configure_evaluate(1, encode_arrays(MODEL), ConfigRecord(), grid):
        client = dict(message.content.config_records["config"])["client-id"]
        assert isinstance(client, list)
        metrics = {**good, **spoiled} if client == [1] else good
        reply = ClientReply(int(client[0]), Status.DONE, metrics)
        replies.append(Message(encode_replies([reply]), reply_to=message))
    measured = strategy.aggregate_evaluate(1, replies)
    assert measured is not None
    assert measured["global-loss"] == expected


def test_nodes_that_come_late_are_waited_for() -> None:
    """Nodes appear one by one; the round starts when the last client is there."""

    class SlowGrid(InProcessGrid):
        looks = 0

        def get_node_ids(self) -> Iterable[int]:
            self.looks += 1
            return list(super().get_node_ids())[: self.looks]

    app = scripted_app(3, lambda k, c, a: moved(k, 1.0))
    _, report = play_round(fedalign(3, {0}), SlowGrid(app, {}, 3))
    assert report.count("trained") == 3


def test_a_node_that_left_is_unavailable() -> None:
    """A client whose node is gone is not asked by message, and recorded as unavailable."""

    class Grid(InProcessGrid):
        gone = False

        def get_node_ids(self) -> Iterable[int]:
            nodes = list(super().get_node_ids())
            return nodes[:-1] if self.gone else nodes

    grid = Grid(scripted_app(3, lambda k, c, a: moved(k, 1.0)), {}, 3)
    strategy = fedalign(3, {0})
    play_round(strategy, grid)
    grid.gone = True
    _, report = play_round(strategy, grid)
    assert report.decisions[2].status == "unavailable"
    assert report.decisions[2].reason == "its node is not connected"


def test_evaluation_asks_non_priority_clients_for_nothing_but_tests() -> None:
    """Training losses are asked of priority clients only; ``priority`` asks nobody else."""
    app = scripted_app(4, lambda k, c, a: moved(k, 1.0))
    population = Population(tuple(range(4)), frozenset({0, 1}))
    for evaluated, expected in (("all", [0, 1, 2, 3]), ("priority", [0, 1])):
        strategy = FedALIGN(
            population, num_rounds=2, communication=Communication(evaluated_clients=evaluated)
        )
        grid = grid_of(app, 2)
        play_round(strategy, grid)
        messages = strategy.configure_evaluate(1, encode_arrays(MODEL), ConfigRecord(), grid)
        strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
        assert [e.client for e in strategy.evaluations] == expected
        assert all(math.isnan(e.loss) != e.priority for e in strategy.evaluations)


def test_flowers_own_loop_runs_the_strategy() -> None:
    """``Strategy.start`` of Flower drives it like any of its own strategies."""
    app = scripted_app(
        4,
        lambda k, c, arrays: ClientReply(
            k,
            Status.DONE,
            {"num-examples": 10, "loss": 1.0, "accuracy": 0.5},
            {"w": arrays["w"] + np.float32(1)},
        ),
    )
    strategy = fedalign(4, {0, 1})
    result = strategy.start(grid_of(app, 2), encode_arrays(MODEL), num_rounds=3)
    np.testing.assert_allclose(decode_arrays(result.arrays)["w"], MODEL["w"] + 3)
    assert result.evaluate_metrics_clientapp[3]["global-loss"] == 1.0


def test_a_standard_client_app_is_understood() -> None:
    """One client per node may reply in Flower's bare form: arrays and num-examples."""
    app = scripted_app(2, lambda k, c, a: moved(k, 1.0))

    def change(replies: list[Message]) -> list[Message]:
        return [
            Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord({"w": reply.content.array_records["arrays"]["w"]}),
                        "metrics": MetricRecord({"num-examples": 7}),
                    }
                ),
                reply_to=_request_of(reply),
            )
            for reply in replies
        ]

    population = Population((0, 1), frozenset({0}))
    got, report = play_round(FedAvg(population), grid_of(app, 2), change=change)
    assert got is not None
    np.testing.assert_allclose(got, MODEL["w"] + 1.0, rtol=1e-6)
    assert [d.num_examples for d in report.decisions] == [7, 7]


def gated(population: Population) -> ComposedStrategy[Any]:
    """Return a gate with omega and data, moved by Adam: everything that is remembered at once."""
    return ComposedStrategy(
        population,
        selection=EpsilonGate(num_rounds=9, epsilon=0.5, warmup_fraction=0.0),
        weighting=FedAUWeighting(base=DataFraction()),
        server_optimizer=Adam(0.1),
    )


@pytest.mark.parametrize("make", [FedVarp, FedAU, MIFA, gated])
def test_a_strategy_goes_on_from_its_state(
    make: Callable[..., ComposedStrategy[Any]],
) -> None:
    """A new strategy with the state after a round decides the next as the old one, to the bit."""
    app = scripted_app(3, lambda k, config, arrays: moved(k, k + 1.0, examples=10 + k))

    def play(strategy: ComposedStrategy[Any], server_round: int) -> bytes:
        grid = grid_of(app, 3)
        messages = strategy.configure_train(
            server_round, encode_arrays(MODEL), ConfigRecord(), grid
        )
        arrays, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        assert arrays is not None
        return decode_arrays(arrays)["w"].tobytes()

    first = make(Population.of(3))
    play(first, 1)
    second = make(Population.of(3))
    second.restore(first.state(), MODEL)
    assert second.state().keys() == first.state().keys()
    assert second.state_bytes == first.state_bytes
    assert play(first, 2) == play(second, 2)


def test_what_is_asked_too_early() -> None:
    """No report before a round, and no replies to a round that was not configured."""
    strategy = fedalign(2, {0})
    assert strategy.measured_before == ()
    assert strategy.traffic.bytes_down == 0
    with pytest.raises(RuntimeError, match="no round has been aggregated yet"):
        _ = strategy.train_report
    with pytest.raises(RuntimeError, match="round 3 was not configured"):
        strategy.aggregate_train(3, [])


def test_the_state_of_a_memory_is_of_a_strategy_that_has_one() -> None:
    """A strategy without a memory says so, rather than leave the updates out."""
    app = scripted_app(3, lambda k, config, arrays: moved(k, 1.0))
    remembering = FedVarp(Population.of(3))
    play_round(remembering, grid_of(app, 3))
    with pytest.raises(StateError, match="'memory' is of a strategy that keeps the clients' upd"):
        FedAvgParticipating(Population.of(3)).restore(remembering.state(), MODEL)


def test_estimates_are_told_of_the_clients_that_were_asked() -> None:
    """With half of the clients asked there are omegas of the others too, but no decisions."""
    app = scripted_app(4, lambda k, config, arrays: moved(k, 1.0))
    strategy = FedAU(EVERYONE, fraction=0.5, seed=3)
    _, report = play_round(strategy, grid_of(app, 4))
    assert [d.client for d in report.decisions] == list(report.call.clients)
    assert [d.omega for d in report.decisions] == [1.0, 1.0]
