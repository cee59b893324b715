"""Test the mod: it skips unavailable clients, in this app and in other ClientApps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.client.availability import (
    AvailabilityProcess,
    Bernoulli,
    Cooldown,
    Cyclic,
    InterleavedSine,
    Markov,
    PeriodicProcess,
    Staircase,
    Trace,
)
from fedquorum.client.availability.processes import compute_process_state
from fedquorum.flower.codec import (
    PROTOCOL_VERSION,
    EvaluateRequest,
    NamedArrays,
    Status,
    TrainRequest,
    TrainResult,
    decode_train_reply,
    encode_arrays,
    encode_evaluate_request,
    encode_train_reply,
    encode_train_request,
)
from fedquorum.flower.mods import AvailabilityMod, NodeAvailability
from fedquorum.rules.types import Objective, RoundPlan
from flwr.app import (
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from client_app import app as client_app
from client_app.node.client import FederatedClient
from server_app.engines.in_process import InProcessGrid
from tests.client_app.clients import assert_same_result

NUM_CLIENTS, SEED = 5, 3
OVERRIDES = (
    f"data=synth data.num_clients={NUM_CLIENTS} data.num_priority=2 data.sizes=equal "
    f"data.samples_per_client=20 client.device=cpu client.local_epochs=1 seed={SEED}"
)
HALF = f"{OVERRIDES} availability=bernoulli availability.p=0.5"
MODEL: NamedArrays = {
    "linear.weight": np.zeros((10, 60), dtype=np.float32),
    "linear.bias": np.zeros(10, dtype=np.float32),
}


pytestmark = pytest.mark.usefixtures("no_node_from_before")


def train_request(server_round: int, clients: tuple[int, ...]) -> RecordDict:
    call = RoundPlan(clients, epsilon=1e9, criterion="loss")
    priority = tuple(k < 2 for k in clients)
    request = TrainRequest(server_round, call, priority, Objective(1.0, 0.5))
    return encode_train_request(encode_arrays(MODEL), request)


def send_request(
    grid: InProcessGrid, content: RecordDict, kind: str = MessageType.TRAIN, node: int = 1
) -> Message:
    (reply,) = grid.send_and_receive([Message(content, node, kind)])
    return reply


# --- our ClientApp ---------------------------------------------------------------------------


def make_grid(num_nodes: int, overrides: str) -> InProcessGrid:
    return InProcessGrid(
        client_app.app, {"experiment": "custom", "overrides": overrides}, num_nodes
    )


def run_round(grid: InProcessGrid, num_nodes: int, server_round: int) -> dict[int, TrainResult]:
    """Return every client's result after a request to all clients."""
    results: dict[int, TrainResult] = {}
    for j in range(num_nodes):
        selected = tuple(range(j, NUM_CLIENTS, num_nodes))
        reply = send_request(grid, train_request(server_round, selected), node=j + 1)
        of_node = decode_train_reply(reply.content)
        assert [result.client for result in of_node] == list(selected)
        results |= {result.client: result for result in of_node if result.client is not None}
    return results


def list_available(
    server_round: int, process: AvailabilityProcess | None = None, clients: int = NUM_CLIENTS
) -> list[int]:
    """Return the clients that are available in a round, from the process."""
    law = process or Bernoulli(0.5)
    return [
        k
        for k in range(clients)
        if law.is_available(
            compute_process_state(law, seed=SEED, client=k, server_round=server_round).state
        )
    ]


@pytest.mark.parametrize("num_nodes", [1, 2, 5])
def test_available_clients_reply_as_without_the_mod(num_nodes: int) -> None:
    """Those available are as without the mod, on any number of nodes; the others are not there."""
    grid, always = make_grid(num_nodes, HALF), make_grid(1, OVERRIDES)
    seen = set()
    for server_round in range(1, 7):
        results = run_round(grid, num_nodes, server_round)
        expected = run_round(always, 1, server_round)
        available = list_available(server_round)
        for k, result in results.items():
            if k in available:
                assert_same_result(result, expected[k])
            else:
                assert result == TrainResult(k, Status.UNAVAILABLE)
        seen.add(len(available))
    assert len(seen) > 1


def test_an_unavailable_result_has_id_and_status_only() -> None:
    """An unavailable client's result has only its id and status."""
    rounds = {len(list_available(t)): t for t in range(1, 40)}
    grid = make_grid(1, HALF)
    reply = send_request(grid, train_request(rounds[2], (0, 1, 2, 3, 4)))
    metrics = dict(reply.content.metric_records["metrics"])
    assert metrics.pop("client-id") == [0, 1, 2, 3, 4]
    statuses, number = metrics.pop("status"), metrics.pop("protocol")
    assert number == PROTOCOL_VERSION
    assert statuses == [0 if k in list_available(rounds[2]) else 2 for k in range(5)]
    assert all(isinstance(v, list) and len(v) == 2 for v in metrics.values())
    assert reply.content.array_records["arrays"]["linear.bias"].shape == (2, 10)
    absent = next(k for k in range(5) if k not in list_available(rounds[2]))
    reply = send_request(grid, train_request(rounds[2], (absent,)))
    content = {name: dict(record) for name, record in reply.content.items()}
    assert content == {"metrics": {"client-id": absent, "status": 2, "protocol": PROTOCOL_VERSION}}


def test_results_are_in_the_requested_order() -> None:
    """Results come in the requested order, each with its client's numbers."""
    server_round = next(t for t in range(1, 40) if len(list_available(t)) == 3)
    selected = (4, 1, 0, 3, 2)
    reply = send_request(make_grid(1, HALF), train_request(server_round, selected))
    results = decode_train_reply(reply.content)
    assert [result.client for result in results] == list(selected)
    expected = run_round(make_grid(1, OVERRIDES), 1, server_round)
    for result in results:
        assert result.client is not None
        if result.client in list_available(server_round):
            assert_same_result(result, expected[result.client])


def test_no_client_is_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If no client is available, nothing is computed and all statuses are UNAVAILABLE."""

    def join(*_: Any) -> None:
        raise AssertionError("nobody is there")

    monkeypatch.setattr(FederatedClient, "evaluate_and_decide", join)
    path = tmp_path / "trace.csv"
    path.write_text("round,client,available\n1,0,1\n")
    grid = make_grid(1, f"{OVERRIDES} availability=trace 'availability.path={path}'")
    reply = send_request(grid, train_request(2, (0, 1, 2)))
    content = {name: dict(record) for name, record in reply.content.items()}
    assert content == {
        "metrics": {"client-id": [0, 1, 2], "status": [2, 2, 2], "protocol": PROTOCOL_VERSION}
    }


def test_evaluation_and_queries_pass() -> None:
    """Unavailable clients are evaluated and reply to queries; no process advances."""
    grid, always = make_grid(1, f"{HALF} availability.p=0.02"), make_grid(1, OVERRIDES)
    request = EvaluateRequest(1, tuple(range(5)), (True,) * 5, (True,) * 5)
    content = encode_evaluate_request(encode_arrays(MODEL), request)
    got, expected = (send_request(g, content, MessageType.EVALUATE).content for g in (grid, always))
    assert dict(got.metric_records["metrics"]) == dict(expected.metric_records["metrics"])
    assert got.metric_records["metrics"]["status"] == [0] * 5
    query = send_request(grid, RecordDict(), MessageType.QUERY).content
    assert query.metric_records["metrics"]["client-id"] == [0, 1, 2, 3, 4]
    assert len(grid._contexts[1].state) == 0


def test_an_error_in_the_settings_is_the_nodes() -> None:
    """A trace that is not there is an error reply to the query, so the run does not start."""
    grid = make_grid(1, f"{OVERRIDES} availability=trace availability.path=/no/such.csv")
    reply = send_request(grid, RecordDict(), MessageType.QUERY)
    assert reply.has_error()
    assert "availability.path: a trace must be a CSV file" in str(reply.error.reason)


def test_always_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process the message is passed on unchanged, and nothing is stored."""
    passed = []
    grid = make_grid(1, OVERRIDES)
    message = Message(RecordDict(), 1, MessageType.TRAIN)

    def app(received: Message, _: Context) -> Message:
        passed.append(received)
        return received

    assert client_app._apply_run_mods(message, grid._contexts[1], app) is message
    assert passed == [message]
    assert len(grid._contexts[1].state) == 0


# --- other people's ClientApps ---------------------------------------------------------------


@dataclass
class Foreign:
    """A ClientApp in Flower's standard form, one client per node, that records requests."""

    process: Callable[[int], AvailabilityProcess]
    selected: list[dict[str, Any]] = field(default_factory=list)
    fails: bool = False

    def grid(self, num_nodes: int = 1) -> InProcessGrid:
        return InProcessGrid(self.app(), {}, num_nodes)

    def app(self) -> ClientApp:
        app = ClientApp(mods=[AvailabilityMod(self.availability)])

        @app.train()
        @app.train("again")
        def train(message: Message, _: Context) -> Message:
            self.selected.append(dict(message.content.config_records["config"]))
            if self.fails:
                raise RuntimeError("out of memory")
            content = RecordDict()
            content["arrays"] = message.content["arrays"]
            content["metrics"] = MetricRecord({"num-examples": 7, "train_loss": 0.5})
            return Message(content, reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, _: Context) -> Message:
            content = RecordDict()
            content["metrics"] = MetricRecord({"num-examples": 7})
            return Message(content, reply_to=message)

        return app

    def availability(self, context: Context) -> NodeAvailability:
        client = int(context.node_config["partition-id"])
        return NodeAvailability(SEED, (client,), self.process)


def make_standard_request(server_round: int, **further: Any) -> RecordDict:
    """Return a request as Flower's own strategies make it."""
    content = RecordDict()
    content["arrays"] = encode_arrays(MODEL)
    content["config"] = ConfigRecord({"server-round": server_round, **further})
    return content


@pytest.mark.parametrize(
    "process",
    [
        *(Bernoulli(0.5), Markov(0.5, 0.5), Cyclic(0.5, 4), Trace(frozenset({2}))),
        *(Cooldown(Bernoulli(0.5), 2), PeriodicProcess(0.5, Staircase(period=4))),
        PeriodicProcess(0.6, InterleavedSine(period=4, cut=0.3)),
    ],
)
@pytest.mark.parametrize("kind", ["train", "train.again"])
def test_a_standard_client_app(process: AvailabilityProcess, kind: str) -> None:
    """Available: the request and the reply are as they were; else id and status, no call."""
    foreign = Foreign(lambda _: process)
    grid = foreign.grid(num_nodes=3)
    selected = []
    for server_round in range(1, 9):
        present = list_available(server_round, process, clients=3)
        for client in range(3):
            request = make_standard_request(server_round, lr=[0.1, 0.2])
            reply = send_request(grid, request, kind, node=client + 1)
            metrics = dict(reply.content.metric_records["metrics"])
            if client in present:
                selected.append({"server-round": server_round, "lr": [0.1, 0.2]})
                assert metrics == {"num-examples": 7, "train_loss": 0.5}
                assert list(reply.content) == ["arrays", "metrics"]
            else:
                assert metrics == {"client-id": client, "status": 2, "protocol": PROTOCOL_VERSION}
                assert list(reply.content) == ["metrics"]
    assert foreign.selected == selected
    assert 0 < len(selected) < 8 * 3


def test_our_strategies_read_the_reply_of_a_standard_client_app() -> None:
    """The reply decodes to that client's unavailable result."""
    foreign = Foreign(lambda _: Trace(frozenset()))
    reply = send_request(foreign.grid(2), train_request(1, (1,)), node=2)
    assert decode_train_reply(reply.content) == [TrainResult(1, Status.UNAVAILABLE)]


def test_an_evaluation_of_a_standard_client_app_passes() -> None:
    """Also of a client that is never available."""
    foreign = Foreign(lambda _: Trace(frozenset()))
    reply = send_request(foreign.grid(), make_standard_request(1), MessageType.EVALUATE)
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 7}


def test_a_failing_client_app_fails() -> None:
    """An exception becomes an error reply, as without the mod."""
    foreign = Foreign(lambda _: Bernoulli(1.0), fails=True)
    reply = send_request(foreign.grid(), make_standard_request(1))
    assert reply.has_error()
    assert "RuntimeError: out of memory" in str(reply.error.reason)


@pytest.mark.parametrize("config", [{}, {"server-round": 0}, {"server-round": 1.5}])
def test_a_request_without_a_round(config: dict[str, Any]) -> None:
    """The process needs a round to be in; without it the error says so."""
    request = make_standard_request(1)
    request["config"] = ConfigRecord(config)
    reply = send_request(Foreign(lambda _: Bernoulli(0.5)).grid(), request)
    assert "'server-round' must be a whole number >= 1 in 'config', got" in str(reply.error.reason)


def test_a_client_of_another_node() -> None:
    """A request for a client that is not hosted here is refused, not answered for it."""
    reply = send_request(Foreign(lambda _: Bernoulli(0.5)).grid(2), train_request(1, (0, 1)))
    assert "clients [1] are not on this node, which hosts [0]" in str(reply.error.reason)


def several(process: Callable[[int], AvailabilityProcess]) -> AvailabilityMod:
    return AvailabilityMod(lambda _: NodeAvailability(SEED, (2, 4, 6), process))


def context() -> Context:
    grid = Foreign(lambda _: Bernoulli(0.5)).grid()
    return grid._contexts[1]


def test_an_error_reply_passes_unchanged() -> None:
    """An error reply of the ClientApp is passed on unchanged."""
    mod = several(lambda k: Trace(frozenset({1} if k == 4 else ())))
    errors: list[Message] = []

    def app(message: Message, _: Context) -> Message:
        errors.append(Message(Error(0, "no"), reply_to=message))
        return errors[0]

    where = context()
    assert mod(Message(train_request(1, (2, 4, 6)), 1, "train"), where, app) is errors[0]
    assert errors[0].error.reason == "no"


def test_the_app_gets_a_copy_of_the_request() -> None:
    """The app's request lists the available clients; the incoming message does not change."""
    mod = several(lambda k: Trace(frozenset({1} if k != 4 else ())))
    received: list[Message] = []

    def app(message: Message, _: Context) -> Message:
        received.append(message)
        silent = [TrainResult(k, Status.DECLINED) for k in (6, 2)]
        return Message(encode_train_reply(silent), reply_to=message)

    where = context()
    message = Message(train_request(1, (6, 4, 2)), 1, "train")
    before = dict(message.content.config_records["config"])
    reply = mod(message, where, app)
    assert dict(message.content.config_records["config"]) == before
    config = dict(received[0].content.config_records["config"])
    assert config["client-id"] == [6, 2]
    assert config == before | {"client-id": [6, 2], "priority": [False, False]}
    assert received[0].metadata == message.metadata
    assert reply.content.metric_records["metrics"]["client-id"] == [6, 4, 2]
    assert reply.content.metric_records["metrics"]["status"] == [1, 2, 1]


# --- state -----------------------------------------------------------------------------------


def get_statuses(grid: InProcessGrid, server_round: int) -> list[int]:
    results = run_round(grid, 1, server_round)
    return [int(results[k].status) for k in range(NUM_CLIENTS)]


CHAIN = f"{OVERRIDES} availability=markov availability.p=0.5 availability.max_transition=0.3"


def test_state_survives_in_the_context() -> None:
    """The context stores three numbers for each client, and later rounds continue from them."""
    grid = make_grid(1, CHAIN)
    state = grid._contexts[1].state
    for server_round in (1, 2, 4):
        found = get_statuses(grid, server_round)
        chain = Markov(0.5, 0.3)
        stored: dict[str, Any] = dict(state.config_records["availability"])
        assert stored == {
            "run": 0,
            "client-id": [0, 1, 2, 3, 4],
            "round": [server_round] * 5,
            "state": [
                compute_process_state(chain, seed=SEED, client=k, server_round=server_round).state
                for k in range(5)
            ],
        }
        assert found == [0 if s == 1 else 2 for s in stored["state"]]
    state.config_records["availability"]["state"] = [1 - s for s in stored["state"]]
    repeated = get_statuses(grid, 4)
    assert repeated == [2 - s for s in found]
    assert list(state) == ["availability"]


def test_lost_state_and_missed_rounds_change_nothing() -> None:
    """A node that restarted, or skipped rounds, has the state it would have had."""
    grid = make_grid(1, CHAIN)
    expected = {t: get_statuses(grid, t) for t in range(1, 13)}
    assert len({tuple(found) for found in expected.values()}) > 2
    again = make_grid(1, CHAIN)
    assert {t: get_statuses(again, t) for t in (3, 4, 12)} == {t: expected[t] for t in (3, 4, 12)}
    assert get_statuses(make_grid(1, CHAIN), 9) == expected[9]
    assert get_statuses(again, 5) == expected[5]


def test_state_of_another_run_is_not_used() -> None:
    """State of a run with other settings in the context has no effect."""
    grid = make_grid(1, CHAIN)
    expected = [get_statuses(grid, t) for t in (1, 2, 3)]
    other = make_grid(1, CHAIN)
    left = ConfigRecord({"run": 8, "client-id": [0, 1], "round": [1, 1], "state": [0, 1]})
    other._contexts[1].state["availability"] = left
    assert [get_statuses(other, t) for t in (1, 2, 3)] == expected


def test_clients_selected_in_turn_keep_their_state() -> None:
    """Asking for some clients leaves the others' states where they were."""
    grid = make_grid(1, CHAIN)
    expected = {t: get_statuses(grid, t) for t in range(1, 6)}
    other = make_grid(1, CHAIN)
    for server_round, selected in ((1, (0, 3)), (2, (1,)), (4, (3, 2)), (5, (4, 0, 1, 2, 3))):
        reply = send_request(other, train_request(server_round, selected))
        for result in decode_train_reply(reply.content):
            assert int(result.status) == expected[server_round][result.client or 0]
