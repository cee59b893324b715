"""A SuperLink in this process: Flower's own message store and handlers, and nodes that may lie."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from fedquorum.flower.waiting_grid import Arrival, WaitingGrid
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.message_pb2 import Message as StoredMessage
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

SECONDS = 3600.0


class SuperLink:
    """Flower's state of one run, with the handlers of its two sides."""

    def __init__(self, database: str = FLWR_IN_MEMORY_DB_NAME) -> None:
        factory = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory())
        self.state = factory.state()
        self.run_id = self.state.create_run(
            "fab", "1", "hash", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        [self.run] = self.state.get_run_info(run_ids=[self.run_id])
        assert self.run.primary_task_id is not None
        self.state.claim_task(self.run.primary_task_id)
        assert self.state.activate_task(self.run.primary_task_id)
        [self.task] = self.state.get_tasks(task_ids=[self.run.primary_task_id])
        # Of the process, which is the ServerApp's.
        TaskIdentity.task_id, TaskIdentity.run_id = self.task.task_id, self.run_id
        TaskIdentity.node_id = SUPERLINK_NODE_ID

    def connect_grid(self) -> HttpGrid:
        """Return Flower's grid of deployments, connected to this state."""
        grid = HttpGrid(token="token")  # noqa: S106
        grid.set_run(self.run)
        vars(grid)["_client"] = _Runtime(self)
        return grid

    def connect_node(self) -> "SuperNode":
        """Return a node that has just connected."""
        node = self.state.create_node(
            NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, secrets.token_bytes(32), SECONDS
        )
        self.state.acknowledge_node_heartbeat(node, SECONDS)
        return SuperNode(self, node)


class _Runtime:
    """The Runtime API without HTTP: every request is handled by Flower's handler."""

    def __init__(self, link: SuperLink) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        handler = getattr(runtime_handlers, _to_snake_case(name))
        # Otherwise the run counts as finished after a minute.
        self._link.state.acknowledge_task_heartbeat(self._link.task.task_id)
        return lambda request: handler(request, self._link.state, self._link.task)


def _to_snake_case(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


class SuperNode:
    """A node that receives messages as Flower does and pushes anything that a test specifies."""

    def __init__(self, link: SuperLink, node_id: int) -> None:
        self._link = link
        self.id = node_id
        self._node = Node(node_id=node_id)

    def receive(self) -> Message | None:
        """Return the next message, None if there is none."""
        state = self._link.state
        request = PullMessagesRequest(node=self._node)
        found = fleet_handlers.pull_messages(request, state, state.object_store)
        if not found.messages_list:
            return None
        [stored], [tree] = found.messages_list, found.message_object_trees
        contents = {
            each.object_id: self._pull(each.object_id) for each in iterate_object_tree(tree)
        }
        if not all(contents.values()):
            return None  # the message expired meanwhile
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = stored.metadata.message_id
        confirm = ConfirmMessageReceivedRequest(
            node=self._node, run_id=self._link.run_id, message_object_id=tree.object_id
        )
        fleet_handlers.confirm_message_received(confirm, state, state.object_store)
        return message

    def _pull(self, object_id: str) -> bytes:
        """Return an object, which may still be uploading; empty if it was deleted."""
        request = PullObjectRequest(node=self._node, run_id=self._link.run_id, object_id=object_id)
        found = fleet_handlers.pull_object(request, self._link.state)
        while found.object_found and not found.object_available:
            time.sleep(0.001)
            found = fleet_handlers.pull_object(request, self._link.state)
        content: bytes = found.object_content
        return content

    def push(self, reply: Message, *, says: Message | None = None) -> None:
        """Push a reply; ``says`` is its object, if that should claim something else."""
        said = says or reply
        stored = message_to_proto(remove_content_from_message(reply))
        stored.metadata.message_id = said.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(said).items()}
        self.push_objects(stored, get_object_tree(said), objects)

    def push_objects(
        self, stored: StoredMessage, tree: ObjectTree, objects: Mapping[str, bytes]
    ) -> None:
        """Push a reply as the SuperLink takes it: its metadata, what is announced, and objects."""
        request = PushMessagesRequest(
            node=self._node, messages_list=[stored], message_object_trees=[tree]
        )
        taken = fleet_handlers.push_messages(request, self._link.state)
        for name in taken.objects_to_push:
            if name in objects:
                self.push_object(name, objects[name], taken.session_id)

    def push_object(self, name: str, content: bytes, session_id: str) -> None:
        """Upload one object."""
        fleet_handlers.push_object(
            PushObjectRequest(
                node=self._node,
                run_id=self._link.run_id,
                object_id=name,
                object_content=content,
                session_id=session_id,
            ),
            self._link.state,
        )

    def push_raw(self, reply: Message, root: str, objects: Mapping[str, bytes]) -> None:
        """Push a reply made of these objects, of which ``root`` is the outermost."""
        stored = message_to_proto(remove_content_from_message(reply))
        stored.metadata.message_id = root
        self.push_objects(stored, build_object_tree(root, objects), objects)


def encode_object(kind: str, children: Sequence[str], body: bytes) -> tuple[str, bytes]:
    """Return the id and the content of an object in Flower's form."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
    return get_object_id(content), content


def build_object_tree(root: str, objects: Mapping[str, bytes]) -> ObjectTree:
    """Return the tree of objects below ``root``."""
    _, children, _ = get_object_head_values_from_object_content(objects[root])
    return ObjectTree(
        object_id=root,
        children=[build_object_tree(child, objects) for child in children if child in objects],
    )


Behavior = Callable[[SuperNode, Message], None]
"""Handles a message of a node."""


ENOUGH = 20.0  # seconds; a deadline for which no test waits


class Device:
    """A node with a ClientApp whose training ends when a test lets it."""

    def __init__(self, app: ClientApp, index: int, nodes: int) -> None:
        self._app = app
        config: Any = {"partition-id": index, "num-partitions": nodes}
        self._context = Context(1, index, config, RecordDict(), {})
        self.gate = threading.Event()
        self.gate.set()
        self.asked: list[str] = []

    def __call__(self, node: SuperNode, message: Message) -> None:
        """Reply to a message; note its group."""
        reply = self._app(message, self._context)
        self.asked.append(message.metadata.group_id)
        if message.metadata.message_type == MessageType.TRAIN:
            assert self.gate.wait(ENOUGH)
        node.push(reply)


class Federation:
    """Nodes with given behaviors, each in its own thread, while the server waits."""

    def __init__(
        self,
        *behaviors: Behavior,
        enough: Callable[[Arrival], bool] | None = None,
        grace: float = 0.0,
        one_by_one: bool = False,
        database: str = FLWR_IN_MEMORY_DB_NAME,
    ) -> None:
        self.link = SuperLink(database)
        self.nodes = [self.link.connect_node() for _ in behaviors]
        self.grid = WaitingGrid(
            self.link.connect_grid(), is_quorum=enough, grace_seconds=grace, one_by_one=one_by_one
        )
        self._behaviors = behaviors
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_node, args=pair)
            for pair in zip(self.nodes, behaviors, strict=True)
        ]

    def _run_node(self, node: SuperNode, behave: Behavior) -> None:
        while not self._ended.wait(0.005):
            message = node.receive()
            if message is not None:
                behave(node, message)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
