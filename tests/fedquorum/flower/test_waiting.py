"""The grid that waits itself, over Flower's real message store: honest nodes and hostile ones."""

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
from fedquorum.decisions import LateReply
from fedquorum.flower.codec import encode_arrays
from fedquorum.flower.waiting import Arrival, AwaitableGrid, PendingMessage, WaitingGrid
from fedquorum.named import build_rules
from fedquorum.quorum import Quorum
from fedquorum.rule import RunContext
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

from server_app.in_process import InProcessGrid
from tests.builders_superlink import (
    Behaviour,
    Federation,
    SuperNode,
    build_object_tree,
    encode_object,
)

GROUP = "train 1"
SOON = 0.6  # seconds: a deadline that a test waits for
ENOUGH = 20.0  # seconds: a deadline that no test waits for


def make_messages(nodes: Iterable[SuperNode]) -> list[Message]:
    """Return a message for each node."""
    content = RecordDict({"arrays": encode_arrays({"w": np.arange(3.0)})})
    return [Message(content, node.id, MessageType.TRAIN, group_id=GROUP) for node in nodes]


def answer(message: Message, value: float = 1.0) -> Message:
    """Return an honest reply."""
    content = RecordDict(
        {"arrays": encode_arrays({"w": np.full(3, value)}), "metrics": MetricRecord({"x": value})}
    )
    return Message(content, reply_to=message)


def honest(node: SuperNode, message: Message) -> None:
    """Reply at once."""
    node.push(answer(message, float(node.id)))


def by_node(federation: Federation, arrivals: Iterable[Arrival]) -> dict[int, Message]:
    """Return the replies by the place of their nodes."""
    places = {node.id: place for place, node in enumerate(federation.nodes)}
    found = {places[arrival.node]: arrival.message for arrival in arrivals}
    for arrival in arrivals:
        assert arrival.message.metadata.src_node_id == arrival.node
    return found


def value_of(message: Message) -> float:
    """Return what an honest reply holds."""
    value = message.content.metric_records["metrics"]["x"]
    assert isinstance(value, float)
    return value


def reason_of(message: Message) -> str:
    """Return why there is an error in the place of a reply."""
    assert message.error.reason is not None
    return message.error.reason


def test_replies_arrive_as_they_come() -> None:
    """All of them, from their nodes, long before Flower would look for the second time."""
    with Federation(honest, honest, honest) as federation:
        started = time.monotonic()
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert time.monotonic() - started < 3.0
        found = by_node(federation, arrivals)
        assert {p: value_of(m) for p, m in found.items()} == {
            place: float(node.id) for place, node in enumerate(federation.nodes)
        }
        seconds = [arrival.seconds for arrival in arrivals]
        assert seconds == sorted(seconds)
        assert federation.grid.busy_nodes == frozenset()


def test_a_reply_is_handed_over_before_the_others_are_there() -> None:
    """So that its reader can be done with it, and its memory be free again."""
    read = threading.Event()

    def waits(node: SuperNode, message: Message) -> None:
        assert read.wait(ENOUGH)
        honest(node, message)

    with Federation(honest, waits, one_by_one=True) as federation:
        replies = iter(
            federation.grid.send_and_receive(make_messages(federation.nodes), timeout=ENOUGH)
        )
        assert value_of(next(replies)) == float(federation.nodes[0].id)
        read.set()
        assert [value_of(reply) for reply in replies] == [float(federation.nodes[1].id)]


def test_replies_can_be_read_twice_as_flowers_can() -> None:
    """By default; Flower's adaptive clipping counts them, and then reads them."""
    with Federation(honest, honest) as federation:
        replies = federation.grid.send_and_receive(make_messages(federation.nodes), timeout=ENOUGH)
        assert [*map(value_of, replies)] == [*map(value_of, replies)]
        assert len([*replies]) == 2


# --- attacks -----------------------------------------------------------------------------------


def as_another(node: SuperNode, message: Message, *, victim: Message) -> None:
    """Push an object that says it is the victim's reply."""
    node.push(answer(message), says=answer(victim, 666.0))


def attacker_and_victim(pause: float) -> tuple[Behaviour, Behaviour]:
    """Return a node that forges the other's reply, and one that replies ``pause`` s later."""
    messages: dict[int, Message] = {}
    both = threading.Barrier(2)

    def attack(node: SuperNode, message: Message) -> None:
        messages[0] = message
        both.wait()
        as_another(node, message, victim=messages[1])

    def victim(node: SuperNode, message: Message) -> None:
        messages[1] = message
        both.wait()
        time.sleep(pause)
        honest(node, message)

    return attack, victim


def test_no_node_answers_as_another() -> None:
    """The forged reply is the attacker's failure; the victim's own reply counts."""
    # The forged one comes first.
    with Federation(*attacker_and_victim(0.2)) as federation:
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = by_node(federation, arrivals)
        assert reason_of(found[0]) == (
            "the reply cannot be used: it names another node and another message"
        )
        assert value_of(found[1]) == float(federation.nodes[1].id)


@pytest.mark.parametrize(
    ("field", "value"),
    [("_group_id", "train 7"), ("_message_type", "evaluate"), ("_reply_to_message_id", "0" * 64)],
)
def test_a_reply_that_contradicts_its_message(field: str, value: str) -> None:
    """It is refused, and the words say what is wrong."""

    def attack(node: SuperNode, message: Message) -> None:
        said = answer(message)
        said.metadata.__dict__[field] = value
        node.push(answer(message), says=said)

    with Federation(attack, honest) as federation:
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = by_node(federation, arrivals)
        assert reason_of(found[0]).startswith("the reply cannot be used: it names another ")
        assert found[1].has_content()


def body_that_is_no_protobuf(node: SuperNode, message: Message) -> None:
    """Push a message whose body cannot be parsed."""
    root, content = encode_object("Message", [], b"\xff\xff\xff")
    node.push_raw(answer(message), root, {root: content})


def root_that_is_no_message(node: SuperNode, message: Message) -> None:
    """Push a record where a message must be."""
    content = RecordDict()
    node.push_raw(answer(message), content.object_id, {content.object_id: content.deflate()})


def content_of_another_kind(node: SuperNode, message: Message) -> None:
    """Push a message whose content is a metric record."""
    child, inner = encode_object("MetricRecord", [], b"")
    body = message_to_proto(Message(RecordDict(), reply_to=message)).SerializeToString()
    root, content = encode_object("Message", [child], body)
    node.push_raw(answer(message), root, {root: content, child: inner})


def array_without_parts(node: SuperNode, message: Message) -> None:
    """Push an array whose parts are not announced."""
    body = json.dumps({"dtype": "f8", "shape": [3], "stype": "x", "arraychunk_ids": [5]}).encode()
    root, content = encode_object("Array", [], body)
    node.push_raw(answer(message), root, {root: content})


def list_as_body(node: SuperNode, message: Message) -> None:
    """Push an array whose body is a list."""
    root, content = encode_object("Array", [], b"[]")
    node.push_raw(answer(message), root, {root: content})


HOSTILE = [
    body_that_is_no_protobuf,
    root_that_is_no_message,
    content_of_another_kind,
    array_without_parts,
    list_as_body,
]


@pytest.mark.parametrize("attack", HOSTILE)
def test_what_cannot_be_read_is_one_failure(attack: Behaviour) -> None:
    """The other replies of the same look are not lost."""
    with Federation(honest, attack, honest) as federation:
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = by_node(federation, arrivals)
        assert reason_of(found[1]).startswith("the reply cannot be used: ")
        assert len(reason_of(found[1])) < 500
        assert found[0].has_content()
        assert found[2].has_content()


def bomb(parts: int) -> Behaviour:
    """Return a node whose array names one part of a MiB so many times."""

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
            answer(message),
            root,
            dict([(root, root_content), (record, record_content), (array, array_content), part]),
        )

    return attack


def test_an_array_that_names_one_part_many_times() -> None:
    """It is refused before it takes the memory."""
    with Federation(bomb(parts=10_000), honest) as federation:
        federation.grid.limit_replies({node.id: 2 * 2**20 for node in federation.nodes})
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = by_node(federation, arrivals)
        assert "bytes, more than 2097152" in reason_of(found[0])
        assert found[1].has_content()


def test_a_reply_that_is_too_large() -> None:
    """It is read no further than allowed."""

    def attack(node: SuperNode, message: Message) -> None:
        content = RecordDict({"arrays": encode_arrays({"w": np.zeros(10**6)})})
        node.push(Message(content, reply_to=message))

    with Federation(attack, honest) as federation:
        federation.grid.limit_replies({node.id: 10**5 for node in federation.nodes})
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        found = by_node(federation, arrivals)
        assert "it is larger than 100000 bytes" in reason_of(found[0])
        assert found[1].has_content()


def announces_only(node: SuperNode, message: Message) -> None:
    """Announce objects and never upload them."""
    reply = answer(message)
    root = reply.object_id
    objects = {root: reply.deflate()}
    stored: StoredMessage = message_to_proto(Message(RecordDict(), reply_to=message))
    stored.metadata.message_id = root
    node.push_objects(stored, build_object_tree(root, objects), {})


def test_objects_that_never_come_hold_no_round() -> None:
    """An exchange ends at its deadline, with the replies of the others."""
    with Federation(announces_only, honest) as federation:
        for _ in range(2):
            started = time.monotonic()
            arrivals = federation.grid.send_and_collect(
                make_messages(federation.nodes), timeout=SOON
            )
            assert time.monotonic() - started < SOON + 2.0
            assert set(by_node(federation, arrivals)) == {1}, by_node(federation, arrivals)


def test_a_query_that_is_answered_as_another() -> None:
    """Queries are answered outside of exchanges, and a forged answer is the attacker's failure."""
    with Federation(*attacker_and_victim(0.0)) as federation:
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
        assert "it names another node and another message" in reason_of(found[first])
        assert value_of(found[second]) == float(federation.nodes[1].id)
        assert grid.busy_nodes == frozenset()


def failing(code: int, *, beyond: int = 0) -> Callable[..., Any]:
    """Return a SuperLink's answer to questions for more than so many messages: an HTTP status."""
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
    """Where the SuperLink refuses to name several at once; another refusal ends the exchange."""
    too_large = httpx.codes.REQUEST_ENTITY_TOO_LARGE
    with Federation(honest, honest, honest) as federation:
        monkeypatch.setattr(runtime_handlers, "pull_messages", failing(too_large, beyond=1))
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(by_node(federation, arrivals)) == {0, 1, 2}
    with Federation(honest) as federation:
        monkeypatch.setattr(runtime_handlers, "pull_messages", failing(httpx.codes.UNAUTHORIZED))
        with pytest.raises(httpx.HTTPStatusError, match="status 401"):
            federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)


def test_a_reply_counts_where_the_superlink_cannot_forget_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It forgets it with the run."""

    def gone(*_: object) -> None:
        raise httpx.ConnectError("the SuperLink is gone")

    with Federation(honest) as federation:
        monkeypatch.setattr(runtime_handlers, "confirm_message_received", gone)
        for _ in range(2):
            arrivals = federation.grid.send_and_collect(
                make_messages(federation.nodes), timeout=ENOUGH
            )
            assert set(by_node(federation, arrivals)) == {0}


def test_a_reply_of_too_many_objects_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be a request to the SuperLink."""
    monkeypatch.setattr("fedquorum.flower.superlink_reader.MAX_OBJECTS", 3)
    with Federation(honest) as federation:
        [arrival] = federation.grid.send_and_collect(
            make_messages(federation.nodes), timeout=ENOUGH
        )
        told = "the reply cannot be used: it has more than 3 objects"
        assert reason_of(arrival.message) == told


def test_an_object_that_the_superlink_lost_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It will never come, unlike one that is on its way."""

    def lost(*_: object) -> PullObjectResponse:
        return PullObjectResponse(object_found=False)

    with Federation(honest) as federation:
        monkeypatch.setattr(runtime_handlers, "pull_object", lost)
        [arrival] = federation.grid.send_and_collect(
            make_messages(federation.nodes), timeout=ENOUGH
        )
        told = "the reply cannot be used: one of its objects is not there"
        assert reason_of(arrival.message) == told


# --- quorum ------------------------------------------------------------------------------------


def slow(seconds: float) -> Behaviour:
    """Return a node that replies after so many seconds."""

    def behave(node: SuperNode, message: Message) -> None:
        time.sleep(seconds)
        honest(node, message)

    return behave


def test_a_quorum_ends_the_exchange() -> None:
    """Who is late is busy meanwhile, and its reply comes later, to nobody."""
    replied: set[int] = set()

    def both(arrival: Arrival) -> bool:
        replied.add(arrival.node)
        return len(replied) == 2

    with Federation(honest, honest, slow(1.0), enough=both) as federation:
        grid = federation.grid
        arrivals = grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(by_node(federation, arrivals)) == {0, 1}
        assert grid.closed_early
        assert grid.busy_nodes == {federation.nodes[2].id}
        replied.clear()
        arrivals = grid.send_and_collect(make_messages(federation.nodes[:2]), timeout=ENOUGH)
        assert set(by_node(federation, arrivals)) == {0, 1}
        until = time.monotonic() + ENOUGH
        late: list[Arrival] = []
        while not late and time.monotonic() < until:
            grid.send_and_collect(make_messages(federation.nodes[:1]), timeout=ENOUGH)
            late = grid.take_late_arrivals()
        assert [arrival.node for arrival in late] == [federation.nodes[2].id]
        assert late[0].seconds > 1.0
        assert grid.busy_nodes == frozenset()


def test_grace_waits_a_little_longer() -> None:
    """Replies that come soon after the quorum still count."""
    with Federation(honest, slow(0.3), enough=lambda _: True, grace=5.0) as federation:
        started = time.monotonic()
        arrivals = federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(by_node(federation, arrivals)) == {0, 1}
        assert time.monotonic() - started < 5.0


@pytest.mark.slow
def test_a_message_lives_until_its_deadline() -> None:
    """Then its node is no longer busy, and its reply is nobody's."""
    with Federation(slow(1.5)) as federation:
        grid = federation.grid
        assert grid.send_and_collect(make_messages(federation.nodes), timeout=SOON) == []
        assert not grid.closed_early
        assert grid.busy_nodes == frozenset()
        time.sleep(1.5)
        arrivals = grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert set(by_node(federation, arrivals)) == {0}
        assert grid.take_late_arrivals() == []


@pytest.mark.filterwarnings("ignore:No path_separator found:DeprecationWarning")  # Flower's Alembic
@pytest.mark.parametrize("database", ["superlink.db", FLWR_IN_MEMORY_DB_NAME])
def test_the_superlink_keeps_no_message_that_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    """With each would stay the model of its round, until the run ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedquorum.flower.waiting.EXPIRY_MARGIN_SECONDS", 0.1)

    def mute(_node: SuperNode, _message: Message) -> None:
        """Never reply."""

    with Federation(honest, mute, database=database) as federation:
        grid, state = federation.grid, federation.link.state
        assert grid.send_and_collect(make_messages(federation.nodes[1:]), timeout=SOON) == []
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
    """They may have been made long before, as with a large model and many nodes."""
    with Federation(honest, honest) as federation:
        messages = make_messages(federation.nodes)
        for message in messages:
            message.metadata.__dict__["_created_at"] -= 60.0
        arrivals = federation.grid.send_and_collect(messages, timeout=ENOUGH)
        assert set(by_node(federation, arrivals)) == {0, 1}


def test_messages_that_expire_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink refuses them: nobody replies in time, and the next exchange is as any other."""
    monkeypatch.setattr("fedquorum.flower.waiting.EXPIRY_MARGIN_SECONDS", 0.0)
    with Federation(honest) as federation:
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
        assert set(by_node(federation, arrivals)) == {0}


def test_a_grid_that_fails_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the SuperLink is gone: nothing says that messages have expired."""

    def fail(_messages: Iterable[Message]) -> Iterable[str]:
        raise ConnectionError("the SuperLink is gone")

    with Federation(honest) as federation:
        monkeypatch.setattr(federation.grid.inner, "push_messages", fail)
        with pytest.raises(ConnectionError, match="is gone"):
            federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)


def test_a_superlink_that_is_gone_ends_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its error, at once: nobody waits for replies that cannot be fetched."""

    def gone(*_: object) -> None:
        raise ConnectionError("the SuperLink is gone")

    with Federation(honest) as federation:
        monkeypatch.setattr(runtime_handlers, "pull_messages", gone)
        started = time.monotonic()
        with pytest.raises(ConnectionError, match="is gone"):
            federation.grid.send_and_collect(make_messages(federation.nodes), timeout=ENOUGH)
        assert time.monotonic() - started < ENOUGH / 2


# --- other grids -------------------------------------------------------------------------------


def answering() -> ClientApp:
    """Return an app that answers each training and each query."""
    app = ClientApp()

    @app.train()
    @app.query()
    def reply(message: Message, context: Context) -> Message:
        return answer(message, float(context.node_id))

    return app


class Patient(InProcessGrid, AwaitableGrid):
    """Nodes of which one more has replied each time that somebody waits; some are never done."""

    def __init__(self, count: int, never: Collection[int] = ()) -> None:
        super().__init__(answering(), {}, count)
        self.never = never
        self.waited: list[tuple[int, float]] = []

    def wait(self, message_ids: Collection[str], timeout: float) -> None:
        self.waited.append((len(message_ids), timeout))
        if len(self.waited) > self.num_nodes:
            time.sleep(min(timeout, 0.05))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        heard = {node for node in range(1, len(self.waited) + 1) if node not in self.never}
        there = {k for k, reply in self._answers.items() if reply.metadata.src_node_id in heard}
        return super().pull_messages(k for k in message_ids if k in there)


def to_nodes(grid: Grid, kind: str = MessageType.TRAIN) -> list[Message]:
    """Return a message for each node of a grid."""
    return [Message(RecordDict(), node, kind, group_id=GROUP) for node in grid.get_node_ids()]


def test_a_grid_that_can_wait_is_used_to_wait() -> None:
    """For what is still missing, a second at a time, without a thread that looks meanwhile."""
    inner = Patient(3)
    threads = set(threading.enumerate())
    arrivals = WaitingGrid(inner).send_and_collect(to_nodes(inner), timeout=ENOUGH)
    assert [(a.node, value_of(a.message)) for a in arrivals] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [missing for missing, _ in inner.waited] == [3, 2, 1]
    assert all(0 < seconds <= 1.0 for _, seconds in inner.waited)
    assert set(threading.enumerate()) <= threads


def test_a_grid_that_can_wait_does_so_until_the_deadline() -> None:
    """And no longer; who has not replied then is busy no more, since its message expired."""
    inner = Patient(2, never={2})
    grid = WaitingGrid(inner)
    started = time.monotonic()
    arrivals = grid.send_and_collect(to_nodes(inner), timeout=SOON)
    assert SOON <= time.monotonic() - started < SOON + 2.0
    assert [arrival.node for arrival in arrivals] == [1]
    assert grid.busy_nodes == frozenset()
    assert min(seconds for _, seconds in inner.waited) < SOON


def test_queries_over_a_grid_that_can_wait_are_kept_until_they_are_fetched() -> None:
    """They are in no exchange, and their nodes are not busy; each reply is given away once."""
    inner = Patient(2)
    grid = WaitingGrid(inner)
    keys = list(grid.push_messages(to_nodes(inner, MessageType.QUERY)))
    assert grid.busy_nodes == frozenset()
    assert list(grid.pull_messages(keys)) == []
    inner.wait(keys, 0.0)
    inner.wait(keys, 0.0)
    assert [*map(value_of, grid.pull_messages(keys[1:]))] == [2.0]
    assert [*map(value_of, grid.pull_messages(keys))] == [1.0]
    assert list(grid.pull_messages(keys)) == []


def test_a_message_that_the_grid_does_not_take_is_not_waited_for() -> None:
    """As one to a node that has just left: the exchange ends with the replies of the others."""

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


def test_any_other_grid_waits_as_it_does() -> None:
    """All goes through unchanged; how long its replies took is noted nevertheless."""
    inner = InProcessGrid(answering(), {}, 2)
    grid = WaitingGrid(inner)
    run = Run.create_empty(7)
    grid.set_run(run)
    assert grid.run is inner.run is run
    assert list(grid.get_node_ids()) == [1, 2]
    arrivals = grid.send_and_collect(to_nodes(grid), timeout=ENOUGH)
    assert [(a.node, value_of(a.message)) for a in arrivals] == [(1, 1.0), (2, 2.0)]
    assert grid.seconds.keys() == {1, 2}
    keys = list(grid.push_messages(to_nodes(grid, MessageType.QUERY)))
    assert [*map(value_of, grid.pull_messages(keys))] == [1.0, 2.0]
    message = grid.create_message(RecordDict(), MessageType.TRAIN, 2, GROUP, ttl=5.0)
    sent = message.metadata
    assert (sent.dst_node_id, sent.message_type, sent.group_id, sent.ttl) == (
        2,
        "train",
        GROUP,
        5.0,
    )


def test_a_reply_without_records_is_refused() -> None:
    """Whatever grid it came through."""
    [message] = make_messages([Federation(honest).nodes[0]])
    reply = Message(RecordDict(), reply_to=message)
    reply.__dict__["_content"] = MetricRecord({"x": 1.0})
    arrival = PendingMessage(message, 1.0, 9.0, 10**6).build_arrival(reply, 3.5)
    assert reason_of(arrival.message) == "the reply's content is a MetricRecord"
    assert (arrival.node, arrival.seconds) == (message.metadata.dst_node_id, 2.5)


def averaging(clients: int, quorum: Quorum) -> ComposedStrategy:
    """Return FedAvg with so many clients that are a node each."""
    rules = build_rules({"name": "fedavg"}, {"name": "sgd"}, RunContext())
    protocol = StandardProtocol(quorum=quorum)
    return ComposedStrategy(rules, population=Population.from_size(clients), communication=protocol)


def trains(node: SuperNode, message: Message) -> None:
    """Reply as a ClientApp written for FedAvg."""
    metrics = MetricRecord({"num-examples": 10, "train_loss": 1.0})
    arrays = message.content["arrays"]
    node.push(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message))


def trains_slowly(node: SuperNode, message: Message) -> None:
    """Reply when the round is over, but in time for its deadline."""
    time.sleep(1.5)
    trains(node, message)


@pytest.mark.slow
def test_a_client_that_misses_a_quorum_is_late_then_busy_then_selected_again() -> None:
    """The late reply counts in no round, and the records tell how late it was."""
    strategy = averaging(3, Quorum(2))
    arrays = encode_arrays({"w": np.zeros(3, np.float32)})
    seen: list[str] = []
    late: list[LateReply] = []
    with Federation(trains, trains, trains_slowly) as federation:
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
    """By default, and a client that misses the deadline has failed."""
    strategy = averaging(2, Quorum())
    arrays = encode_arrays({"w": np.zeros(3, np.float32)})
    with Federation(trains, trains_slowly) as federation:
        grid = strategy.build_waiting_grid(federation.grid.inner)
        for server_round, timeout in ((1, ENOUGH), (2, SOON)):
            messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
            strategy.aggregate_train(server_round, grid.send_and_receive(messages, timeout=timeout))
            statuses = sorted(d.status for d in strategy.step_result.report.decisions)
            assert statuses == (["trained"] * 2 if server_round == 1 else ["failed", "trained"])
