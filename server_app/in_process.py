"""A Flower Grid that calls the ClientApp in this process: no Ray, no server, no network."""

import time
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import numpy as np
from fedquorum.errors import SettingsError
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray


class InProcessGrid(Grid):
    """Hosts ``num_nodes`` nodes, each with its own Context, which answer one after the other.

    A ClientApp that raises becomes an error reply, as in Flower's simulation. Messages pushed
    are answered at once; ``pull_messages`` hands the answers out.

    Parameters
    ----------
    client_app : ClientApp
        What every node runs.
    run_config : mapping
        The run config of every node.
    num_nodes : int
        How many nodes; node j gets partition-id j.
    """

    def __init__(
        self, client_app: ClientApp, run_config: Mapping[str, Any], num_nodes: int
    ) -> None:
        self._client_app = client_app
        self._contexts = {
            node: Context(
                run_id=0,
                node_id=node,
                node_config={"partition-id": partition, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for partition, node in enumerate(range(1, num_nodes + 1))
        }
        self._answers: dict[str, Message] = {}
        self._run = Run.create_empty(0)
        # Flower's Message takes its sender from here.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 0

    def node_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return what the clients keep between rounds, ``Context.state``, by node, in bytes.

        The bytes are Flower's own form (a protocol buffer), as it travels between machines.
        """
        states = {}
        for node, context in self._contexts.items():
            content = recorddict_to_proto(context.state).SerializeToString(deterministic=True)
            states[str(node)] = np.frombuffer(content, dtype=np.uint8)
        return states

    def restore_node_states(self, states: Mapping[str, NDArray[np.uint8]]) -> None:
        """Take over what ``node_states`` returned.

        Raises
        ------
        SettingsError
            If that was of another number of nodes.
        """
        if len(states) != len(self._contexts):
            raise SettingsError(
                f"engine.num_supernodes must be {len(states)}, as when the checkpoint was "
                f"written: the nodes keep states of their own, got {len(self._contexts)}"
            )
        for node, content in states.items():
            proto = ProtoRecordDict.FromString(content.tobytes())
            self._contexts[int(node)].state = recorddict_from_proto(proto)

    def set_run(self, run: Run) -> None:
        """Set the run, which only its reader cares about."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run, an empty one unless set."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; Flower's ``Message`` does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have each message answered by its node; return the messages' ids."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self._answers[message.metadata.message_id] = self._answer(message)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages, each once."""
        return [self._answers.pop(k) for k in message_ids if k in self._answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the answers to the messages; nodes not reached within ``timeout`` are left out."""
        started = time.monotonic()
        answers: list[Message] = []
        for message in messages:
            if timeout is not None and time.monotonic() - started > timeout:
                break
            answers.extend(self.pull_messages(self.push_messages([message])))
        return answers

    def _answer(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        try:
            return self._client_app(message, context)
        except Exception as error:  # whatever a ClientApp raises, the server sees an error reply
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
