"""Simulated response times, from the mod on the node to the server's virtual clock."""

import math
from collections.abc import Mapping

import pytest
from fedquorum.client.latency import TraceLatency
from fedquorum.flower.codec import NamedArrays, TrainResult, TrainTask
from fedquorum.flower.mods import NodeResponseTimes, ResponseTimeMod, is_train_message
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.rules.decisions import ClientDecision, RoundReport
from fedquorum.server.quorum import Quorum
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from client_app.node.node import compute_hosted_clients
from tests.builders_flower import (
    Change,
    build_named_strategy,
    make_grid,
    make_scripted_app,
    make_train_result,
    run_first_round,
)

K = 4
TIMES = {0: 1.0, 1: 2.0, 2: 3.0, 3: 8.0}


def fit(client: int, task: TrainTask, model: NamedArrays) -> TrainResult:
    """Train like any client."""
    return make_train_result(client, 1.0)


def broken(client: int, task: TrainTask, model: NamedArrays) -> TrainResult:
    """Raise an error on the node."""
    raise RuntimeError(f"client {client} broke")


def erring(message: Message, context: Context) -> Message:
    """Reply to training with an error, as another mod may."""
    if is_train_message(message):
        return Message(Error(1, "not today"), reply_to=message)
    return make_scripted_app(K, fit)(message, context)


def make_timed_app(times: Mapping[int, float] | None, inner: ClientAppCallable) -> ClientApp:
    """Return an app whose clients take these seconds; None for nodes without times."""

    def of_node(context: Context) -> NodeResponseTimes | None:
        hosted = compute_hosted_clients(dict(context.node_config), K)
        if times is None:
            return None
        return NodeResponseTimes(1, hosted, TraceLatency({k: [(1, times[k])] for k in hosted}))

    app = ClientApp(mods=[ResponseTimeMod(of_node)])
    for register in (app.train, app.query, app.evaluate):
        register()(inner)
    return app


def run_quorum_round(app: ClientApp, change: Change = lambda replies: replies) -> RoundReport:
    """Run a round, closed by two of four replies, with two nodes of two clients each."""
    communication = NativeProtocol(virtual_clock=True, quorum=Quorum(2), round_timeout=10.0)
    strategy = build_named_strategy("fedavg", K, communication=communication)
    return run_first_round(strategy, make_grid(app, 2), change=change)[1]


def get_status_and_seconds(decisions: tuple[ClientDecision, ...]) -> list[tuple[str, float | None]]:
    """Return the clients' statuses and seconds."""
    return [(decision.status, decision.reply_seconds) for decision in decisions]


def test_the_seconds_of_each_client_decide_who_is_in_time() -> None:
    """Each client's seconds count, although all replies leave at once."""
    report = run_quorum_round(make_timed_app(TIMES, make_scripted_app(K, fit)))
    assert get_status_and_seconds(report.decisions) == [
        ("trained", 1.0),
        ("trained", 2.0),
        ("late", 3.0),
        ("late", 8.0),
    ]
    assert (report.simulated_seconds, report.num_admitted) == (2.0, 2)


@pytest.mark.parametrize(
    "app",
    [make_scripted_app(K, fit), make_timed_app(None, make_scripted_app(K, fit))],
    ids=["no mod", "no times"],
)
def test_a_reply_without_seconds_is_rejected(app: ClientApp) -> None:
    """The server cannot tell whether it was in time."""
    report = run_quorum_round(app)
    assert {decision.reason for decision in report.decisions} == {
        "its reply says no simulated seconds"
    }
    assert report.count("rejected") == K


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 2e15])
def test_impossible_seconds_are_rejected(seconds: float) -> None:
    """They would turn back or stop the clock; the node's other client counts."""
    report = run_quorum_round(make_timed_app({**TIMES, 1: seconds}, make_scripted_app(K, fit)))
    first, second, *_ = report.decisions
    assert first.status == "trained"
    assert (second.status, second.reason) == (
        "rejected",
        f"simulated seconds are {seconds}, not in [0, 1e+15]",
    )
    assert report.simulated_seconds == 3.0


def test_seconds_that_are_no_numbers_are_rejected() -> None:
    """All clients of the node are rejected, as its reply violates the protocol."""

    def in_words(replies: list[Message]) -> list[Message]:
        times = replies[0].content["response-times"]
        assert isinstance(times, ConfigRecord)
        times["seconds"] = ["fast", "slow"]
        return replies

    report = run_quorum_round(make_timed_app(TIMES, make_scripted_app(K, fit)), in_words)
    refused = ("rejected", "'seconds' must be numbers")
    found = [(decision.status, decision.reason) for decision in report.decisions]
    assert found == [refused, ("trained", None), refused, ("trained", None)]
    assert report.simulated_seconds == 8.0


@pytest.mark.parametrize(
    ("app", "reasons"),
    [
        (
            make_scripted_app(K, broken),
            {"RuntimeError: client 0 broke", "RuntimeError: client 1 broke"},
        ),
        (erring, {"not today"}),
    ],
    ids=["raised", "replied"],
)
def test_an_error_of_the_app_takes_no_seconds(app: ClientAppCallable, reasons: set[str]) -> None:
    """It arrives unchanged, and the clock stops if no client replies."""
    report = run_quorum_round(make_timed_app(TIMES, app))
    assert get_status_and_seconds(report.decisions) == [("failed", None)] * K
    assert {decision.reason for decision in report.decisions} == reasons
    assert report.simulated_seconds == 0.0
