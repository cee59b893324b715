"""A Flower Grid over the workers of ``engine=ray``."""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from fedquorum.flower.codec import select_records
from fedquorum.flower.waiting import AwaitableGrid, WaitingGrid
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError

from server_app.in_process import NodeStates, SimulationGrid, assign_id
from server_app.ray_engine.worker_pool import RayWorkerPool, WorkerHandle, describe_worker_error

MAX_INLINE_BYTES = 2**16  # of a model that goes with the message: quicker than by Ray's memory
STATES_TIMEOUT = 60.0  # for a worker without work to hand over what its clients keep


@dataclass(frozen=True)
class SentMessage:
    """A message, without its content, at a worker.

    Parameters
    ----------
    message : Message
        The message.
    worker : Member
        The worker.
    reply : ObjectRef
        Its reply, once it is there.
    expires_at : float
        When it expires, by the monotonic clock.
    """

    message: Message
    worker: WorkerHandle
    reply: Any
    expires_at: float


class RayGrid(SimulationGrid, AwaitableGrid):
    """Hosts the nodes on workers, each of which answers one message after the other.

    A model that several messages hold is put into Ray's memory once, also if the messages of the
    next exchange hold the same one; only a small one goes with each message. A reply is taken when
    it is there.

    A worker that dies costs its nodes the messages that it had: each gets an error for a reply.
    It is started again with what its clients kept when ``get_node_states`` or ``restore_node_states``
    was last called, as a checkpoint does.

    Parameters
    ----------
    fleet : Fleet
        The workers, which have started.
    """

    engine = "ray"

    def __init__(self, fleet: RayWorkerPool) -> None:
        super().__init__(fleet.num_nodes)
        self.device = fleet.device
        self._fleet = fleet
        self._sent: dict[str, SentMessage] = {}
        self._put: tuple[ArrayRecord, Any] | None = None
        nothing = np.zeros(0, np.uint8)
        self._states = {str(node): nothing for node in range(1, self.num_nodes + 1)}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes whose workers run or are being restarted."""
        there = [member for member in self._fleet.members if self._fleet.is_available(member)]
        return sorted(node for member in there for node in member.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand each message to the worker of its node; return the messages' ids."""
        now = time.monotonic()
        self._sent = {key: sent for key, sent in self._sent.items() if sent.expires_at > now}
        ids = []
        for message in messages:
            member = self._fleet.get_worker(message.metadata.dst_node_id)
            key = assign_id(message)
            arrays = {
                name: record
                for name, record in select_records(message.content, ArrayRecord).items()
                if record.count_bytes() > MAX_INLINE_BYTES
            }
            others = {name: r for name, r in message.content.items() if name not in arrays}
            shell = make_message(metadata=message.metadata, content=RecordDict(others))
            records = [self._share_record(record) for record in arrays.values()]
            reply = member.actor.handle.remote(shell, list(arrays), *records)
            self._sent[key] = SentMessage(shell, member, reply, now + message.metadata.ttl)
            ids.append(key)
        return ids

    def _share_record(self, record: ArrayRecord) -> Any:
        """Return where a record is in Ray's memory; the last one stays there."""
        if self._put is None or self._put[0] is not record:
            self._put = record, ray.put(record)
        return self._put[1]

    def wait(self, message_ids: Collection[str], timeout: float) -> None:
        """Return when one of these messages has a reply, or after ``timeout`` seconds."""
        replies = [self._sent[key].reply for key in message_ids if key in self._sent]
        if replies:
            ray.wait(replies, timeout=timeout)
        else:
            time.sleep(timeout)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there, each once."""
        asked = {key: self._sent[key] for key in message_ids if key in self._sent}
        if not asked:
            return []
        replies = [sent.reply for sent in asked.values()]
        done = set(ray.wait(replies, num_returns=len(replies), timeout=0)[0])
        return [
            self._fetch_reply(key)
            for key, sent in asked.items()
            if sent.reply in done or not self._fleet.is_available(sent.worker)
        ]

    def _fetch_reply(self, key: str) -> Message:
        """Return the reply to a message, or an error that says why there is none."""
        sent = self._sent.pop(key)
        if not self._fleet.is_available(sent.worker):
            limit = f"{self._fleet.startup_timeout:g} s (engine.startup_timeout)"
            return _build_lost_reply(sent, f"it was not started again within {limit}")
        try:
            reply: Message = ray.get(sent.reply)
        except RayError as error:
            if isinstance(error, RayActorError):
                self._fleet.restart(sent.worker, self._states)
            return _build_lost_reply(sent, describe_worker_error(error))
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the replies that came within ``timeout`` seconds."""
        return WaitingGrid(self).send_and_receive(messages, timeout=timeout)

    def get_node_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the clients' states between rounds, by node.

        A worker that still has a message is not waited for: of its nodes it is what they kept the
        last time.
        """
        busy = {sent.worker for sent in self._sent.values()}
        asked = [m.actor.get_states.remote() for m in self._fleet.members if m not in busy]
        done = ray.wait(asked, num_returns=len(asked), timeout=STATES_TIMEOUT)[0] if asked else []
        for found in done:
            try:
                # Copies: what Ray has handed over would keep its memory.
                states = {node: state.copy() for node, state in ray.get(found).items()}
            except RayError:  # it has died, as the next message tells
                continue
            self._states.update(states)
        return dict(self._states)

    def _restore(self, states: NodeStates) -> None:
        self._states = dict(states)
        for member in self._fleet.members:
            kept = {str(node): states[str(node)] for node in member.nodes}
            ray.get(member.actor.restore.remote(kept))


def _build_lost_reply(sent: SentMessage, reason: str) -> Message:
    """Return the error that stands for a reply which will not come."""
    error = Error(ErrorCode.CLIENT_APP_CRASHED, f"the worker of its node was lost: {reason}")
    return Message(error, reply_to=sent.message)
