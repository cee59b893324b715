"""Call the ClientApp in this process through a Flower Grid, without Ray, server or network.

The workers of ``engine=ray`` also host their nodes with ``HostedNodes``.
"""

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
from fedquorum.errors import RunError, describe_error
from fedquorum.flower.codec import drop_mask_state
from fedquorum.sanitize import sanitize
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

NodeStates = Mapping[str, NDArray[np.uint8]]
"""The clients' states between rounds, ``Context.state``, by node.

The bytes are Flower's protocol buffer, which it also sends between machines.
"""


class HostedNodes:
    """The nodes of this process, which reply one after the other, each with its own Context.

    If a ClientApp raises, its node sends an error reply, as in Flower's simulation.

    Parameters
    ----------
    client_app : ClientApp
        The app of every node.
    run_config : mapping
        The run config of every node.
    nodes : iterable of int
        The nodes' ids, from 1. Node j + 1 gets the partition-id j.
    num_nodes : int
        Number of nodes of the run in all processes.
    """

    def __init__(
        self,
        client_app: ClientApp,
        run_config: Mapping[str, Any],
        nodes: Iterable[int],
        num_nodes: int,
    ) -> None:
        self._client_app = client_app
        self.contexts = {
            node: Context(
                run_id=0,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node in nodes
        }
        set_task_identity()

    def handle(self, message: Message) -> Message:
        """Return the reply of a message's node, or an error reply with the error it raised."""
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self._client_app(message, context)
        except Exception as error:  # a ClientApp may raise any error, and the run continues
            reason = describe_error(error)
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def get_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the clients' states between rounds, by node, without the secrets of masks."""
        states = {}
        for node, context in self.contexts.items():
            state = drop_mask_state(context.state)
            content = recorddict_to_proto(state).SerializeToString(deterministic=True)
            states[str(node)] = np.frombuffer(content, dtype=np.uint8)
        return states

    def restore(self, states: NodeStates) -> None:
        """Restore the states that ``get_states`` returned."""
        for node, content in states.items():
            proto = ProtoRecordDict.FromString(content.tobytes())
            self.contexts[int(node)].state = drop_mask_state(recorddict_from_proto(proto))


def set_task_identity() -> None:
    """Set this process as the sender of new Flower messages."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 0


class SimulationGrid(Grid):
    """A grid to the nodes 1, 2, .. of a simulated run, with access to their states.

    Parameters
    ----------
    num_nodes : int

    Attributes
    ----------
    engine : str
        The engine's name in the records.
    device : str or None
        The clients' device for ``client.device=auto``; None if only the clients know it.
    """

    engine: ClassVar[str]
    device: str | None = None

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self._run = Run.create_empty(0)
        set_task_identity()

    @abstractmethod
    def get_node_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the clients' states between rounds, by node."""

    def restore_node_states(self, states: NodeStates) -> None:
        """Restore the states that ``get_node_states`` returned, of as many nodes.

        Raises
        ------
        RunError
            If the states are damaged.
        """
        try:
            self._restore({str(node + 1): states[str(node + 1)] for node in range(len(states))})
        except Exception as error:  # protobuf and Flower may raise any error
            raise RunError(
                f"the nodes' states in the checkpoint cannot be read: {sanitize(error)}"
            ) from None

    @abstractmethod
    def _restore(self, states: NodeStates) -> None:
        """Restore the states of all nodes."""

    def set_run(self, run: Run) -> None:
        """Store the run, which the grid does not use."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run; an empty one unless set."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a new message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(range(1, self.num_nodes + 1))


def assign_id(message: Message) -> str:
    """Assign an id to a pushed message, and return the id."""
    message.metadata.__dict__["_message_id"] = str(uuid4())
    return message.metadata.message_id


class InProcessGrid(SimulationGrid):
    """A grid that hosts ``num_nodes`` nodes in this process.

    The nodes reply to a pushed message at once, and ``pull_messages`` returns the replies.

    Parameters
    ----------
    client_app, run_config : ClientApp, mapping
        As in ``HostedNodes``.
    num_nodes : int
    """

    engine = "in-process"

    def __init__(
        self, client_app: ClientApp, run_config: Mapping[str, Any], num_nodes: int
    ) -> None:
        super().__init__(num_nodes)
        self._nodes = HostedNodes(client_app, run_config, range(1, num_nodes + 1), num_nodes)
        self._contexts = self._nodes.contexts
        self._replies: dict[str, Message] = {}

    def get_node_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the clients' states between rounds, by node."""
        return self._nodes.get_states()

    def _restore(self, states: NodeStates) -> None:
        self._nodes.restore(states)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the node of each message reply, and return the messages' ids."""
        ids = []
        for message in messages:
            key = assign_id(message)
            self._replies[key] = self._handle(message)
            ids.append(key)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once."""
        return [self._replies.pop(k) for k in message_ids if k in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages one after the other until ``timeout``; return the replies."""
        started = time.monotonic()
        replies: list[Message] = []
        for message in messages:
            if timeout is not None and time.monotonic() - started > timeout:
                break
            replies.extend(self.pull_messages(self.push_messages([message])))
        return replies

    def _handle(self, message: Message) -> Message:
        return self._nodes.handle(message)
