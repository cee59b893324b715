"""Implement a Flower Grid over the workers of ``engine=ray``."""

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from fedquorum.flower.codec import select_records
from fedquorum.flower.waiting_grid import AwaitableGrid, WaitingGrid
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError

from server_app.engines.in_process import NodeStates, SimulationGrid, assign_id
from server_app.engines.ray.worker_pool import RayWorkerPool, WorkerHandle, describe_worker_error

MAX_INLINE_BYTES = 2**16  # a smaller model is faster inside the message than in Ray's memory
STATES_TIMEOUT = 60.0  # for an idle worker to send its clients' states


@dataclass(frozen=True)
class SentMessage:
    """A message, without its content, that was sent to a worker.

    Parameters
    ----------
    message : Message
    worker : WorkerHandle
    reply : ObjectRef
        The reply, once the worker has finished.
    expires_at : float
        When the message expires, by the monotonic clock.
    """

    message: Message
    worker: WorkerHandle
    reply: Any
    expires_at: float


class RayGrid(SimulationGrid, AwaitableGrid):
    """Hosts the nodes on workers, each of which handles one message after the other.

    A model in several messages is put into Ray's memory once, also if the messages of the next
    exchange have the same model. A small model is copied into each message instead.

    If a worker dies, each of its pending messages gets an error reply. The worker is restarted with
    its clients' states from the last call of ``get_node_states`` or ``restore_node_states``, such
    as for a checkpoint.

    Parameters
    ----------
    pool : RayWorkerPool
        The workers, which must have started.
    """

    engine = "ray"

    def __init__(self, pool: RayWorkerPool) -> None:
        super().__init__(pool.num_nodes)
        self.device = pool.device
        self._pool = pool
        self._sent: dict[str, SentMessage] = {}
        self._put: tuple[ArrayRecord, Any] | None = None
        nothing = np.zeros(0, np.uint8)
        self._states = {str(node): nothing for node in range(1, self.num_nodes + 1)}

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes whose workers run or are being restarted."""
        available = [worker for worker in self._pool.workers if self._pool.is_available(worker)]
        return sorted(node for worker in available for node in worker.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message to the worker of its node; return the messages' ids."""
        now = time.monotonic()
        self._sent = {key: sent for key, sent in self._sent.items() if sent.expires_at > now}
        ids = []
        for message in messages:
            worker = self._pool.get_worker(message.metadata.dst_node_id)
            key = assign_id(message)
            arrays = {
                name: record
                for name, record in select_records(message.content, ArrayRecord).items()
                if record.count_bytes() > MAX_INLINE_BYTES
            }
            others = {name: r for name, r in message.content.items() if name not in arrays}
            shell = make_message(metadata=message.metadata, content=RecordDict(others))
            records = [self._share_record(record) for record in arrays.values()]
            reply = worker.actor.handle.remote(shell, list(arrays), *records)
            self._sent[key] = SentMessage(shell, worker, reply, now + message.metadata.ttl)
            ids.append(key)
        return ids

    def _share_record(self, record: ArrayRecord) -> Any:
        """Put a record into Ray's memory, where the last one is cached; return its reference."""
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
        """Return the replies to these messages that have arrived, each once."""
        pending = {key: self._sent[key] for key in message_ids if key in self._sent}
        if not pending:
            return []
        replies = [sent.reply for sent in pending.values()]
        done = set(ray.wait(replies, num_returns=len(replies), timeout=0)[0])
        return [
            self._fetch_reply(key)
            for key, sent in pending.items()
            if sent.reply in done or not self._pool.is_available(sent.worker)
        ]

    def _fetch_reply(self, key: str) -> Message:
        """Return the reply to a message, or an error reply with the reason why there is none."""
        sent = self._sent.pop(key)
        if not self._pool.is_available(sent.worker):
            limit = f"{self._pool.startup_timeout:g} s (engine.startup_timeout)"
            return _build_lost_reply(sent, f"it was not started again within {limit}")
        try:
            reply: Message = ray.get(sent.reply)
        except RayError as error:
            if isinstance(error, RayActorError):
                self._pool.restart(sent.worker, self._states)
            return _build_lost_reply(sent, describe_worker_error(error))
        return reply

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return the replies that arrive within ``timeout`` seconds."""
        return WaitingGrid(self).send_and_receive(messages, timeout=timeout)

    def get_node_states(self) -> dict[str, NDArray[np.uint8]]:
        """Return the clients' states between rounds, by node.

        A worker that still handles a message is skipped; its nodes keep the states of the last
        call.
        """
        busy = {sent.worker for sent in self._sent.values()}
        requests = [w.actor.get_states.remote() for w in self._pool.workers if w not in busy]
        done = (
            ray.wait(requests, num_returns=len(requests), timeout=STATES_TIMEOUT)[0]
            if requests
            else []
        )
        for reference in done:
            try:
                # Copies, because views would keep Ray's memory in use.
                states = {node: state.copy() for node, state in ray.get(reference).items()}
            except RayError:  # the worker has died, which the next message reports
                continue
            self._states.update(states)
        return dict(self._states)

    def _restore(self, states: NodeStates) -> None:
        self._states = dict(states)
        for worker in self._pool.workers:
            worker_states = {str(node): states[str(node)] for node in worker.nodes}
            ray.get(worker.actor.restore.remote(worker_states))


def _build_lost_reply(sent: SentMessage, reason: str) -> Message:
    """Return the error reply for a message whose worker was lost."""
    error = Error(ErrorCode.CLIENT_APP_CRASHED, f"the worker of its node was lost: {reason}")
    return Message(error, reply_to=sent.message)
