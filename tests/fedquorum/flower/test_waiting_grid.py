"""``WaitingGrid`` over Flower's real message store, with honest and hostile nodes."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fedquorum import ComposedStrategy, Population, StandardProtocol
from fedquorum.flower.codec import encode_arrays
from fedquorum.flower.waiting_grid import Arrival, AwaitableGrid, PendingMessage, WaitingGrid
from fedquorum.registry import build_rules
from fedquorum.rules.decisions import LateReply
from fedquorum.rules.rule import RunContext
from fedquorum.server.quorum import Quorum
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as StoredMessage
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.run import Run
from flwr.superlink.servicer.runtime import runtime_handlers

from server_app.engines.in_process import InProcessGrid
from tests.builders_superlink import (
    Behavior,
    Federation,
    SuperNode,
    build_object_tree,
    encode_object,
)

GROUP = "train 1"
SOON = 0.6  # seconds; a deadline for which a test waits
ENOUGH = 20.0  # seconds; a deadline for which no test waits


def make_messages(nodes: Iterable[SuperNode]) -> list[Message]:
    """Return a message for each node."""
    content = RecordDict({"arrays": encode_arrays({"w": np.arange(3.0)})})
    return [Message(content, node.id, MessageType.TRAIN, group_id=GROUP) for node in nodes]


def make_honest_reply(message: Message, value: float = 1.0) -> Message:
    """Return an honest reply."""
    content = RecordDict(
        {"arrays": encode_arrays({"w": np.full(3, value)}), "metrics": MetricRecord({"x": value})}
    )
    return Message(content, reply_to=message)


def behave_honestly(node: SuperNode, message: Message) -> None:
    """Reply at once."""
    node.push(make_honest_reply(message, float(node.id)))


def index_by_node(federation: Federation, arrivals: Iterable[Arrival]) -> dict[int, Message]:
    """Return the replies by the index of their nodes."""
    places = {node.id: place for place, node in enumerate(federation.nodes)}
    found = {places[arrival.node]: arrival.message for arrival in arrivals}
    for arrival in arrivals:
        assert arrival.message.metadata.src_node_id == arrival.node
    return found


def get_value(message: Message) -> float:
    """Return the value in an honest reply."""
    value = message.content.metric_records["metrics"]["x"]
    assert isinstance(value, float)
    return value


def get_reason(message: Message) -> str:
    """Return the reason of an error that replaces a reply."""
    assert message.error.reason is not None
    return message.error.reason


def test_replies_are_returned_in_the_order_of_arrival() -> None:
    """All arrive from their nodes, long before Flower would poll a second time."""
    with Federation(behave_honestly, behave_honestly, behave_honestly) as federation:
        started = time.monotonic()
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert time.monotonic() - started < 3.0
        found = index_by_node(federation, arrivals)
        assert {p: get_value(m) for p, m in found.items()} == {
            place: float(node.id) for place, node in enumerate(federation.nodes)
        }
        seconds = [arrival.seconds for arrival in arrivals]
        assert seconds == sorted(seconds)
        assert federation.grid.busy_nodes == frozenset()


def test_a_reply_is_yielded_before_the_others_arrive() -> None:
    """Its reader can then process it and free its memory."""
    read = threading.Event()

    def waits(node: SuperNode, message: Message) -> None:
        assert read.wait(ENOUGH)
        behave_honestly(node, message)

    with Federation(behave_honestly, waits, one_by_one=True) as federation:
        replies = iter(
            federation.grid.send_and_receive(make_messages(federation.nodes), timeout=ENOUGH)
        )
        assert get_value(next(replies)) == float(federation.nodes[0].id)
        read.set()
        assert [get_value(reply) for reply in replies] == [float(federation.nodes[1].id)]


def test_replies_can_be_read_twice_as_flowers_can() -> None:
    """By default they can, as Flower's adaptive clipping counts replies and then reads them."""
    with Federation(behave_honestly, behave_honestly) as federation:
        replies = federation.grid.send_and_receive(make_messages(federation.nodes), timeout=ENOUGH)
        assert [*map(get_value, replies)] == [*map(get_value, replies)]
        assert len([*replies]) == 2


# --- attacks -----------------------------------------------------------------------------------


def push_as_another(node: SuperNode, message: Message, *, victim: Message) -> None:
    """Push an object that claims to be the victim's reply."""
    node.push(make_honest_reply(message), says=make_honest_reply(victim, 666.0))


def make_attacker_and_victim(pause: float) -> tuple[Behavior, Behavior]:
    """Return a node that forges the other's reply, and one that replies after ``pause`` seconds."""
    messages: dict[int, Message] = {}
    both = threading.Barrier(2)

    def attack(node: SuperNode, message: Message) -> None:
        messages[0] = message
        both.wait()
        push_as_another(node, message, victim=messages[1])

    def victim(node: SuperNode, message: Message) -> None:
        messages[1] = message
        both.wait()
        time.sleep(pause)
        behave_honestly(node, message)

    return attack, victim


def test_no_node_replies_as_another() -> None:
    """The forged reply fails the attacker; the victim's own reply counts."""
    # The forged reply arrives first.
    with Federation(*make_attacker_and_victim(0.2)) as federation:
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = index_by_node(federation, arrivals)
        assert get_reason(found[0]) == (
            "the reply cannot be used: it names another node and another message"
        )
        assert get_value(found[1]) == float(federation.nodes[1].id)


@pytest.mark.parametrize(
    ("field", "value"),
    [("_group_id", "train 7"), ("_message_type", "evaluate"), ("_reply_to_message_id", "0" * 64)],
)
def test_a_reply_that_contradicts_its_message_is_refused(field: str, value: str) -> None:
    """The reason names the contradiction."""

    def attack(node: SuperNode, message: Message) -> None:
        said = make_honest_reply(message)
        said.metadata.__dict__[field] = value
        node.push(make_honest_reply(message), says=said)

    with Federation(attack, behave_honestly) as federation:
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = index_by_node(federation, arrivals)
        assert get_reason(found[0]).startswith("the reply cannot be used: it names another ")
        assert found[1].has_content()


def push_body_that_is_no_protobuf(node: SuperNode, message: Message) -> None:
    """Push a message whose body cannot be parsed."""
    root, content = encode_object("Message", [], b"\xff\xff\xff")
    node.push_raw(make_honest_reply(message), root, {root: content})


def push_root_that_is_no_message(node: SuperNode, message: Message) -> None:
    """Push a record where a message must be."""
    content = RecordDict()
    node.push_raw(
        make_honest_reply(message), content.object_id, {content.object_id: content.deflate()}
    )


def push_content_of_another_kind(node: SuperNode, message: Message) -> None:
    """Push a message whose content is a metric record."""
    child, inner = encode_object("MetricRecord", [], b"")
    body = message_to_proto(Message(RecordDict(), reply_to=message)).SerializeToString()
    root, content = encode_object("Message", [child], body)
    node.push_raw(make_honest_reply(message), root, {root: content, child: inner})


def push_array_without_chunks(node: SuperNode, message: Message) -> None:
    """Push an array with unannounced chunks."""
    body = json.dumps({"dtype": "f8", "shape": [3], "stype": "x", "arraychunk_ids": [5]}).encode()
    root, content = encode_object("Array", [], body)
    node.push_raw(make_honest_reply(message), root, {root: content})


def push_list_as_body(node: SuperNode, message: Message) -> None:
    """Push an array whose body is a list."""
    root, content = encode_object("Array", [], b"[]")
    node.push_raw(make_honest_reply(message), root, {root: content})


HOSTILE = [
    push_body_that_is_no_protobuf,
    push_root_that_is_no_message,
    push_content_of_another_kind,
    push_array_without_chunks,
    push_list_as_body,
]


@pytest.mark.parametrize("attack", HOSTILE)
def test_an_unreadable_reply_is_one_failure(attack: Behavior) -> None:
    """The other replies of the same poll are not lost."""
    with Federation(behave_honestly, attack, behave_honestly) as federation:
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = index_by_node(federation, arrivals)
        assert get_reason(found[1]).startswith("the reply cannot be used: ")
        assert len(get_reason(found[1])) < 500
        assert found[0].has_content()
        assert found[2].has_content()


def make_bomb(parts: int) -> Behavior:
    """Return a node whose array repeats a chunk of 1 MiB ``parts`` times."""

    def attack(node: SuperNode, message: Message) -> None:
        part = encode_object("ArrayChunk", [], b"\0" * 2**20)
        body = json.dumps(
            {"dtype": "u1", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * parts}
        ).encode()
        array, array_content = encode_object("Array", [part[0]], body)
        names = json.dumps({"w": 0}).encode()
        record, record_content = encode_object("ArrayRecord", [array], names)
        root_body = message_to_proto(Message(RecordDict(), reply_to=message)).SerializeToString()
        root, root_content = encode_object("Message", [record], root_body)
        node.push_raw(
            make_honest_reply(message),
            root,
            dict([(root, root_content), (record, record_content), (array, array_content), part]),
        )

    return attack


def test_an_array_that_repeats_one_chunk_is_refused() -> None:
    """The grid refuses it before it takes the memory."""
    with Federation(make_bomb(parts=10_000), behave_honestly) as federation:
        federation.grid.limit_replies({node.id: 2 * 2**20 for node in federation.nodes})
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = index_by_node(federation, arrivals)
        assert "bytes, more than 2097152" in get_reason(found[0])
        assert found[1].has_content()


def test_a_reply_that_is_too_large_is_refused() -> None:
    """It is read only up to the limit."""

    def attack(node: SuperNode, message: Message) -> None:
        content = RecordDict({"arrays": encode_arrays({"w": np.zeros(10**6)})})
        node.push(Message(content, reply_to=message))

    with Federation(attack, behave_honestly) as federation:
        federation.grid.limit_replies({node.id: 10**5 for node in federation.nodes})
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = index_by_node(federation, arrivals)
        assert "it is larger than 100000 bytes" in get_reason(found[0])
        assert found[1].has_content()


def announce_only(node: SuperNode, message: Message) -> None:
    """Announce objects and never upload them."""
    reply = make_honest_reply(message)
    root = reply.object_id
    objects = {root: reply.deflate()}
    stored: StoredMessage = message_to_proto(Message(RecordDict(), reply_to=message))
    stored.metadata.message_id = root
    node.push_objects(stored, build_object_tree(root, objects), {})


@pytest.mark.slow
def test_objects_that_never_arrive_delay_no_round() -> None:
    """An exchange ends at its deadline, with the replies of the others."""
    with Federation(announce_only, behave_honestly) as federation:
        for _ in range(2):
            started = time.monotonic()
            arrivals = federation.grid.send_and_collect(
                make_messages(federation.nodes), timeout=SOON
            )
            assert time.monotonic() - started < SOON + 2.0
            assert set(index_by_node(federation, arrivals)) == {1}, index_by_node(
                federation, arrivals
            )


def test_a_forged_query_reply_is_refused() -> None:
    """Replies to queries arrive outside of exchanges; a forged one fails the attacker."""
    with Federation(*make_attacker_and_victim(0.0)) as federation:
        grid = federation.grid
        queries = [
            Message(RecordDict(), node.id, MessageType.QUERY, group_id=GROUP)
            for node in federation.nodes
        ]
        first, second = grid.push_messages(queries)
        found: dict[str, Message] = {}
        until = time.monotonic() + ENOUGH
        while len(found) < 2 and time.monotonic() < until:
            replies = grid.pull_messages([first, second])
            found |= {reply.metadata.reply_to_message_id: reply for reply in replies}
        assert "it names another node and another message" in get_reason(found[first])
        assert get_value(found[second]) == float(federation.nodes[1].id)
        assert grid.busy_nodes == frozenset()


def make_failing_superlink(code: int, *, beyond: int = 0) -> Callable[..., Any]:
    """Return a SuperLink that answers requests for more than ``beyond`` messages with ``code``."""
    pull = runtime_handlers.pull_messages

    def pull_limited(request: PullAppMessagesRequest, *others: Any) -> Any:
        if len(request.message_ids) <= beyond:
            return pull(request, *others)
        response = httpx.Response(code, request=httpx.Request("POST", "http://superlink"))
        raise httpx.HTTPStatusError(f"status {code}", request=response.request, response=response)

    return pull_limited


def test_replies_that_are_too_large_together_are_pulled_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SuperLink refuses several at once; any other refusal ends the exchange."""
    too_large = httpx.codes.REQUEST_ENTITY_TOO_LARGE
    with Federation(behave_honestly, behave_honestly, behave_honestly) as federation:
        monkeypatch.setattr(
            runtime_handlers, "pull_messages", make_failing_superlink(too_large, beyond=1)
        )
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0, 1, 2}
    with Federation(behave_honestly) as federation:
        monkeypatch.setattr(
            runtime_handlers, "pull_messages", make_failing_superlink(httpx.codes.UNAUTHORIZED)
        )
        with pytest.raises(httpx.HTTPStatusError, match="status 401"):
            federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)


def test_a_reply_counts_if_the_superlink_cannot_delete_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SuperLink deletes it with the run."""

    def gone(*_: object) -> None:
        raise httpx.ConnectError("the SuperLink is gone")

    with Federation(behave_honestly) as federation:
        monkeypatch.setattr(runtime_handlers, "confirm_message_received", gone)
        for _ in range(2):
            arrivals = federation.grid.send_and_collect(
                make_messages(federation.nodes), timeout=ENOUGH
            )
            assert set(index_by_node(federation, arrivals)) == {0}


def test_a_reply_of_too_many_objects_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object would be a request to the SuperLink."""
    monkeypatch.setattr("fedquorum.flower.superlink_reader.MAX_OBJECTS", 3)
    with Federation(behave_honestly) as federation:
        [arrival] = federation.grid.send_and_collect(
            make_messages(federation.nodes), timeout=ENOUGH
        )
        reason = "the reply cannot be used: it has more than 3 objects"
        assert get_reason(arrival.message) == reason


def test_an_object_that_the_superlink_lost_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It will never arrive, unlike one that is being uploaded."""

    def lost(*_: object) -> PullObjectResponse:
        return PullObjectResponse(object_found=False)

    with Federation(behave_honestly) as federation:
        monkeypatch.setattr(runtime_handlers, "pull_object", lost)
        [arrival] = federation.grid.send_and_collect(
            make_messages(federation.nodes), timeout=ENOUGH
        )
        reason = "the reply cannot be used: one of its objects is not there"
        assert get_reason(arrival.message) == reason


# --- quorum ------------------------------------------------------------------------------------


def make_slow_node(seconds: float) -> Behavior:
    """Return a node that replies after these seconds."""

    def behave(node: SuperNode, message: Message) -> None:
        time.sleep(seconds)
        behave_honestly(node, message)

    return behave


@pytest.mark.slow
def test_a_quorum_ends_the_exchange() -> None:
    """A late node is busy meanwhile, and its reply arrives outside the exchange."""
    replied: set[int] = set()

    def both(arrival: Arrival) -> bool:
        replied.add(arrival.node)
        return len(replied) == 2

    with Federation(
        behave_honestly, behave_honestly, make_slow_node(1.0), enough=both
    ) as federation:
        grid = federation.grid
        arrivals = grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0, 1}
        assert grid.closed_early
        assert grid.busy_nodes == {federation.nodes[2].id}
        replied.clear()
        arrivals = grid.send_and_collect(make_messages(federation.nodes[:2]), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0, 1}
        until = time.monotonic() + ENOUGH
        late: list[Arrival] = []
        while not late and time.monotonic() < until:
            grid.send_and_collect(make_messages(federation.nodes[:1]), timeout=ENOUGH)
            late = grid.take_late_arrivals()
        assert [arrival.node for arrival in late] == [federation.nodes[2].id]
        assert late[0].seconds > 1.0
        assert grid.busy_nodes == frozenset()


def test_grace_waits_a_little_longer() -> None:
    """Replies that arrive soon after the quorum still count."""
    with Federation(
        behave_honestly, make_slow_node(0.3), enough=lambda _: True, grace=5.0
    ) as federation:
        started = time.monotonic()
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0, 1}
        assert time.monotonic() - started < 5.0


@pytest.mark.slow
def test_a_message_expires_at_its_deadline() -> None:
    """Its node is then no longer busy, and its reply is ignored."""
    with Federation(make_slow_node(1.5)) as federation:
        grid = federation.grid
        assert grid.send_and_collect(make_messages(federation.nodes), timeout=SOON) == []
        assert not grid.closed_early
        assert grid.busy_nodes == frozenset()
        time.sleep(1.5)
        arrivals = grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0}
        assert grid.take_late_arrivals() == []


def test_one_exchange_may_close_before_its_timeout() -> None:
    """A round of several exchanges has one deadline; the next exchange has its own again."""
    with Federation(make_slow_node(1.0)) as federation:
        grid = federation.grid
        grid.close_by(time.monotonic() + SOON / 10)
        started = time.monotonic()
        assert grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH) == []
        assert time.monotonic() - started < 1.0
        assert grid.busy_nodes == frozenset()
        arrivals = grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # Flower's Alembic
@pytest.mark.parametrize("receives", [True, False])
@pytest.mark.parametrize("database", ["superlink.db", FLWR_IN_MEMORY_DB_NAME])
def test_the_superlink_deletes_messages_without_a_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, receives: bool
) -> None:
    """Otherwise each would keep the model of its round until the run ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedquorum.flower.waiting_grid.EXPIRY_MARGIN_SECONDS", 0.1)

    def mute(_node: SuperNode, _message: Message) -> None:
        """Never reply."""

    with Federation(behave_honestly, mute, database=database) as federation:
        grid, state = federation.grid, federation.link.state
        silent = federation.nodes[1] if receives else federation.link.connect_node()
        assert grid.send_and_collect(make_messages([silent]), timeout=SOON) == []
        time.sleep(0.3)
        objects = vars(state.object_store)["store"]
        until = time.monotonic() + ENOUGH
        left = [1]
        while any(left) and time.monotonic() < until:
            assert (
                len(grid.send_and_collect(make_messages(federation.nodes[:1]), timeout=ENOUGH)) == 1
            )
            time.sleep(0.1)  # a thread confirms the reply
            left = [len(objects), state.num_message_ins(), state.num_message_res()]
        assert left == [0, 0, 0]


def test_the_deadline_counts_from_when_messages_are_sent() -> None:
    """They may have been created long before, as with a large model and many nodes."""
    with Federation(behave_honestly, behave_honestly) as federation:
        messages = make_messages(federation.nodes)
        for message in messages:
            message.metadata.__dict__["_created_at"] -= 60.0
        arrivals = federation.grid.send_and_collect(messages, timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0, 1}


def test_messages_that_expire_before_they_are_sent_get_no_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SuperLink refuses them: no node replies in time, and the next exchange works."""
    monkeypatch.setattr("fedquorum.flower.waiting_grid.EXPIRY_MARGIN_SECONDS", 0.0)
    with Federation(behave_honestly) as federation:
        grid = federation.grid
        with monkeypatch.context() as patch:
            push = grid.inner.push_messages

            def late(messages: Iterable[Message]) -> Iterable[str]:
                time.sleep(SOON + 0.1)
                return push(messages)

            patch.setattr(grid.inner, "push_messages", late)
            assert grid.send_and_collect(make_messages(federation.nodes), timeout=SOON) == []
        assert grid.busy_nodes == frozenset()
        arrivals = grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(index_by_node(federation, arrivals)) == {0}


def test_a_grid_that_fails_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, as no message has expired."""

    def fail(_messages: Iterable[Message]) -> Iterable[str]:
        raise ConnectionError("the SuperLink is gone")

    with Federation(behave_honestly) as federation:
        monkeypatch.setattr(federation.grid.inner, "push_messages", fail)
        with pytest.raises(ConnectionError, match="is gone"):
            federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)


def test_a_lost_superlink_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once with the error, without waiting for replies that cannot be fetched."""

    def gone(*_: object) -> None:
        raise ConnectionError("the SuperLink is gone")

    with Federation(behave_honestly) as federation:
        monkeypatch.setattr(runtime_handlers, "pull_messages", gone)
        started = time.monotonic()
        with pytest.raises(ConnectionError, match="is gone"):
            federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert time.monotonic() - started < ENOUGH / 2


# --- other grids -------------------------------------------------------------------------------


def make_replying_app() -> ClientApp:
    """Return an app that answers each training and each query."""
    app = ClientApp()

    @app.train()
    @app.query()
    def reply(message: Message, context: Context) -> Message:
        return make_honest_reply(message, float(context.node_id))

    return app


class Patient(InProcessGrid, AwaitableGrid):
    """Nodes, one more of which has replied at each wait; some never reply."""

    def __init__(self, count: int, never: Collection[int] = ()) -> None:
        super().__init__(make_replying_app(), {}, count)
        self.never = never
        self.waited: list[tuple[int, float]] = []

    def wait(self, message_ids: Collection[str], timeout: float) -> None:
        self.waited.append((len(message_ids), timeout))
        if len(self.waited) > self.num_nodes:
            time.sleep(min(timeout, 0.05))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replied = {node for node in range(1, len(self.waited) + 1) if node not in self.never}
        available = {
            k for k, reply in self._replies.items() if reply.metadata.src_node_id in replied
        }
        return super().pull_messages(k for k in message_ids if k in available)


def to_nodes(grid: Grid, kind: str = MessageType.TRAIN) -> list[Message]:
    """Return a message for each node of a grid."""
    return [Message(RecordDict(), node, kind, group_id=GROUP) for node in grid.get_node_ids()]


def test_a_grid_that_can_wait_is_used_to_wait() -> None:
    """It waits for missing replies, a second at a time, without a polling thread."""
    inner = Patient(3)
    threads = set(threading.enumerate())
    arrivals = WaitingGrid(inner).send_and_collect(to_nodes(inner), timeout=ENOUGH)
    assert [(a.node, get_value(a.message)) for a in arrivals] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [missing for missing, _ in inner.waited] == [3, 2, 1]
    assert all(0 < seconds <= 1.0 for _, seconds in inner.waited)
    assert set(threading.enumerate()) <= threads


def test_a_grid_that_can_wait_does_so_until_the_deadline() -> None:
    """It waits no longer; then no node is busy, since the messages expired."""
    inner = Patient(2, never={2})
    grid = WaitingGrid(inner)
    started = time.monotonic()
    arrivals = grid.send_and_collect(to_nodes(inner), timeout=SOON)
    assert SOON <= time.monotonic() - started < SOON + 2.0
    assert [arrival.node for arrival in arrivals] == [1]
    assert grid.busy_nodes == frozenset()
    assert min(seconds for _, seconds in inner.waited) < SOON


def test_query_replies_of_an_awaitable_grid_are_stored_until_fetched() -> None:
    """They belong to no exchange, do not make nodes busy, and are returned once."""
    inner = Patient(2)
    grid = WaitingGrid(inner)
    keys = list(grid.push_messages(to_nodes(inner, MessageType.QUERY)))
    assert grid.busy_nodes == frozenset()
    assert list(grid.pull_messages(keys)) == []
    inner.wait(keys, 0.0)
    inner.wait(keys, 0.0)
    assert [*map(get_value, grid.pull_messages(keys[1:]))] == [2.0]
    assert [*map(get_value, grid.pull_messages(keys))] == [1.0]
    assert list(grid.pull_messages(keys)) == []


def test_the_exchange_does_not_wait_for_an_unaccepted_message() -> None:
    """The node may just have left: the exchange ends with the replies of the others."""

    class Refusing(Patient):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            left = [m for m in messages if m.metadata.dst_node_id != 1]
            return super().push_messages(left)

    inner = Refusing(2)
    grid = WaitingGrid(inner)
    started = time.monotonic()
    arrivals = grid.send_and_collect(to_nodes(inner), timeout=ENOUGH)
    assert [arrival.node for arrival in arrivals] == [2]
    assert time.monotonic() - started < ENOUGH / 2
    assert not grid.closed_early


def test_any_other_grid_waits_itself() -> None:
    """All calls pass through unchanged; the replies' seconds are noted nevertheless."""
    inner = InProcessGrid(make_replying_app(), {}, 2)
    grid = WaitingGrid(inner)
    run = Run.create_empty(7)
    grid.set_run(run)
    assert grid.run is inner.run is run
    assert list(grid.get_node_ids()) == [1, 2]
    arrivals = grid.send_and_collect(to_nodes(grid), timeout=ENOUGH)
    assert [(a.node, get_value(a.message)) for a in arrivals] == [(1, 1.0), (2, 2.0)]
    assert grid.seconds.keys() == {1, 2}
    keys = list(grid.push_messages(to_nodes(grid, MessageType.QUERY)))
    assert [*map(get_value, grid.pull_messages(keys))] == [1.0, 2.0]
    message = grid.create_message(RecordDict(), MessageType.TRAIN, 2, GROUP, ttl=5.0)
    sent = message.metadata
    assert (sent.dst_node_id, sent.message_type, sent.group_id, sent.ttl) == (
        2,
        "train",
        GROUP,
        5.0,
    )


def test_a_reply_without_records_is_refused() -> None:
    """It is refused on any grid."""
    [message] = make_messages([Federation(behave_honestly).nodes[0]])
    reply = Message(RecordDict(), reply_to=message)
    reply.__dict__["_content"] = MetricRecord({"x": 1.0})
    arrival = PendingMessage(message, 1.0, 9.0, 10**6).build_arrival(reply, 3.5)
    assert get_reason(arrival.message) == "the reply's content is a MetricRecord"
    assert (arrival.node, arrival.seconds) == (message.metadata.dst_node_id, 2.5)


def build_averaging_strategy(clients: int, quorum: Quorum) -> ComposedStrategy:
    """Return FedAvg with this many clients, one for each node."""
    rules = build_rules({"name": "fedavg"}, {"name": "sgd"}, RunContext())
    protocol = StandardProtocol(quorum=quorum)
    return ComposedStrategy(rules, population=Population.from_size(clients), communication=protocol)


def train_honestly(node: SuperNode, message: Message) -> None:
    """Reply as a ClientApp written for FedAvg."""
    metrics = MetricRecord({"num-examples": 10, "train_loss": 1.0})
    arrays = message.content["arrays"]
    node.push(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message))


def train_slowly(node: SuperNode, message: Message) -> None:
    """Reply after the round has closed, but before its deadline."""
    time.sleep(1.5)
    train_honestly(node, message)


@pytest.mark.slow
def test_a_client_that_misses_a_quorum_is_late_then_busy_then_selected_again() -> None:
    """The late reply counts in no round, and the records have its delay."""
    strategy = build_averaging_strategy(3, Quorum(2))
    arrays = encode_arrays({"w": np.zeros(3, np.float32)})
    seen: list[str] = []
    late: list[LateReply] = []
    with Federation(train_honestly, train_honestly, train_slowly) as federation:
        # Node ids are random, and the ascending ones are the clients.
        slow_client = sorted(node.id for node in federation.nodes).index(federation.nodes[2].id)
        grid = strategy.build_waiting_grid(federation.grid.inner)
        until = time.monotonic() + ENOUGH
        for server_round in itertools.count(1):
            messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
            strategy.aggregate_train(server_round, grid.send_and_receive(messages, timeout=ENOUGH))
            report = strategy.step_result.report
            of_client = {d.client: d for d in report.decisions}
            seen.append(of_client[slow_client].status)
            late += report.late_replies
            others = {d.status for k, d in of_client.items() if k != slow_client}
            assert others == {"trained"}
            assert report.num_admitted == 2
            if seen.count("late") == 2 or time.monotonic() > until:
                break
            time.sleep(0.05)
    assert seen[0] == "late"
    assert set(seen[1:-1]) == {"busy"}
    assert seen[-1] == "late"
    [reply] = late
    assert (reply.round, reply.client) == (1, slow_client)
    assert 1.4 < reply.reply_seconds < 10.0


@pytest.mark.slow
def test_without_a_quorum_a_round_waits_for_all() -> None:
    """It does by default, and a client that misses the deadline has failed."""
    strategy = build_averaging_strategy(2, Quorum())
    arrays = encode_arrays({"w": np.zeros(3, np.float32)})
    with Federation(train_honestly, train_slowly) as federation:
        grid = strategy.build_waiting_grid(federation.grid.inner)
        for server_round, timeout in ((1, ENOUGH), (2, SOON)):
            messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
            strategy.aggregate_train(server_round, grid.send_and_receive(messages, timeout=timeout))
            statuses = sorted(d.status for d in strategy.step_result.report.decisions)
            assert statuses == (["trained"] * 2 if server_round == 1 else ["failed", "trained"])
