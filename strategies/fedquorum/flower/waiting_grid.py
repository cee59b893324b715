"""Wait for replies at short intervals, and never beyond the deadline.

Flower's grids look for replies every 3 s (deployment) or every 0.1 s (simulation), take a reply's
sender from the object that the sender pushed, and wait up to two hours for announced objects.
``WaitingGrid`` wraps such a grid:

- It looks for replies at short intervals at first and at longer ones later.
- It assigns a reply to the node whose message the SuperLink stored it for, and refuses a reply that
  names another node, message, type or group.
- If a reply is too large or cannot be read, only its node fails.
- An exchange ends at its deadline, whatever the nodes do.
"""

import math
import queue
import sys
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, TypeGuard

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from ..sanitize import MAX_REASON_LENGTH, sanitize
from .superlink_reader import MAX_REPLY_BYTES, ReplyReader, UnreadableReplyError

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid


GRID_MODULE = "flwr.superlink.grid"


def is_http_grid(grid: Grid) -> "TypeGuard[HttpGrid]":
    """Say whether a grid is Flower's connection to a SuperLink."""
    return _is_grid(grid, "HttpGrid")


def is_in_memory_grid(grid: Grid) -> bool:
    """Say whether a grid is the one of Flower's simulation."""
    return _is_grid(grid, "InMemoryGrid")


def is_flower_grid(grid: Grid) -> bool:
    """Say whether a grid is one of these two."""
    return is_http_grid(grid) or is_in_memory_grid(grid)


def _is_grid(grid: Grid, name: str) -> bool:
    module = sys.modules.get(GRID_MODULE)
    return module is not None and isinstance(grid, getattr(module, name))


MIN_POLL_SECONDS = 0.02
MAX_POLL_SECONDS = 1.0
POLL_GROWTH = 1.5
MAX_QUERY_BYTES = 2**24  # of a reply to a message sent outside of an exchange
FETCH_SECONDS = 5.0  # before a message expires, its reply is fetched
EXPIRY_MARGIN_SECONDS = 1.0  # messages expire later, or the SuperLink would report them as lost


@dataclass(frozen=True)
class Arrival:
    """A reply and its time of arrival.

    Parameters
    ----------
    node : int
        The node to which the message was sent.
    message : Message
        The reply, or an error with the reason why there is none.
    seconds : float
        Seconds from sending the message to the reply's arrival.
    arrived_at : float
        Time of arrival, by the monotonic clock.
    """

    node: int
    message: Message
    seconds: float
    arrived_at: float


@dataclass(frozen=True)
class PendingMessage:
    """A message that awaits its reply, without its content.

    ``sent_at`` and ``expires_at`` are the times of sending and of expiry, by the monotonic clock;
    ``max_bytes`` is the largest allowed size of the reply, in bytes.
    """

    message: Message
    sent_at: float
    expires_at: float
    max_bytes: int

    @property
    def node(self) -> int:
        """The node to which the message was sent."""
        return int(self.message.metadata.dst_node_id)

    @property
    def is_training(self) -> bool:
        """Whether the node was asked to train."""
        return bool(self.message.metadata.message_type == MessageType.TRAIN)

    def build_arrival(self, reply: Message | Exception, arrived_at: float) -> Arrival:
        """Return a reply as an arrival, with this node and this message as its origin."""
        seconds = arrived_at - self.sent_at
        problem = self._find_problem(reply)
        if problem is not None or isinstance(reply, Exception):
            content: RecordDict | Error = Error(ErrorCode.UNKNOWN, problem)
        else:
            content = reply.error if reply.has_error() else reply.content
        return Arrival(self.node, Message(content, reply_to=self.message), seconds, arrived_at)

    def _find_problem(self, reply: Message | Exception) -> str | None:
        """Return why a reply is unusable, or None if it is usable."""
        if isinstance(reply, Exception):
            reason = str(reply) if isinstance(reply, UnreadableReplyError) else repr(reply)
            return sanitize(f"the reply cannot be used: {reason}", MAX_REASON_LENGTH)
        if reply.has_error() or isinstance(reply.content, RecordDict):
            return None
        return f"the reply's content is a {type(reply.content).__name__}"


class AwaitableGrid(Grid):
    """A grid that hands out replies without blocking, and can wait for the next one."""

    @abstractmethod
    def wait(self, message_ids: Collection[str], timeout: float) -> None:
        """Return when one of these messages has a reply, or after ``timeout`` seconds."""


class WaitingGrid(Grid):
    """Send messages through another grid and wait for their replies.

    A ``WaitingGrid`` replaces the wait of Flower's own grids. An ``AwaitableGrid`` waits itself;
    for any other grid, ``WaitingGrid`` calls ``send_and_receive``.

    Parameters
    ----------
    grid : Grid
        The grid that carries messages and replies.
    is_quorum : callable, optional
        Called with every reply of an exchange as it arrives, except errors; returns whether the
        replies so far are a quorum. By default an exchange waits for all replies.
    grace_seconds : float
        Seconds to wait for further replies after the quorum.
    one_by_one : bool
        Whether ``send_and_receive`` yields each reply once, as it arrives. By default it returns a
        list, as Flower's grids do: strategies such as Flower's adaptive clipping read it twice.
    keeps_late : bool
        Whether a train reply that arrives after its exchange is handed out in a later exchange of
        training, as long as its message has not expired. By default only its time is noted.

    Attributes
    ----------
    closed_early : bool
        Whether a quorum ended the last exchange before its deadline.
    seconds : dict of int to float
        Seconds from message to reply, by node, for the last exchange so far.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        is_quorum: Callable[[Arrival], bool] | None = None,
        grace_seconds: float = 0.0,
        one_by_one: bool = False,
        keeps_late: bool = False,
    ) -> None:
        self._one_by_one = one_by_one
        self._keeps_late = keeps_late
        self._joins_earlier = False
        self._away = frozenset[str]()  # the train messages of nodes that are away
        self._held = deque[Arrival]()  # train replies between two exchanges of training
        self._grid = unwrap_grid(grid)
        self._quorum_check = is_quorum
        self._grace_seconds = grace_seconds
        self.closed_early = False
        self.seconds: dict[int, float] = {}
        self._arrival_queue = queue.SimpleQueue[tuple[str, Message | Exception, float]]()
        self._pending: dict[str, PendingMessage] = {}
        self._closes_by = math.inf
        self._max_bytes: dict[int, int] = {}
        self._late_arrivals: list[Arrival] = []
        self._pushed: set[str] = set()  # outside of exchanges
        self._stored_replies: dict[str, Message] = {}  # replies to those
        self._reply_reader: ReplyReader | None = None
        if is_http_grid(self._grid):
            self._reply_reader = ReplyReader(self._grid, self._deliver)

    @property
    def inner(self) -> Grid:
        """The grid that carries messages and replies."""
        return self._grid

    @property
    def busy_nodes(self) -> frozenset[int]:
        """The nodes with a message of an earlier exchange that has not expired."""
        now = time.monotonic()
        return frozenset(
            message.node
            for key, message in self._pending.items()
            if message.expires_at > now and key not in self._pushed
        )

    @property
    def training_nodes(self) -> frozenset[int]:
        """The nodes with a train message that has not expired."""
        now = time.monotonic()
        return frozenset(
            message.node
            for message in self._pending.values()
            if message.is_training and message.expires_at > now
        )

    def find_nodes_under_way(self) -> frozenset[int]:
        """Return these nodes, and those whose replies wait for the next exchange of training."""
        self._hold_arrivals()
        return self.training_nodes.union(arrival.node for arrival in self._held)

    def _hold_arrivals(self) -> None:
        """Store the replies that have arrived since the last exchange."""
        while (arrived := self._get_next(0.0)) is not None:
            self._store_arrival(*arrived)

    def take_late_arrivals(self) -> list[Arrival]:
        """Return and forget the replies that arrived after the end of their exchange."""
        late, self._late_arrivals = self._late_arrivals, []
        return late

    def limit_replies(self, max_bytes: Mapping[int, int], *, joins_earlier: bool = False) -> None:
        """Limit the size of these nodes' replies, from the next exchange on.

        With ``joins_earlier`` the next exchange also waits for the replies to earlier train
        messages, and begins with those that have arrived meanwhile (``keeps_late``).
        """
        self._max_bytes = dict(max_bytes)
        self._joins_earlier = joins_earlier

    def close_by(self, moment: float) -> None:
        """Let the next exchange close at ``moment``, by the monotonic clock, if not earlier."""
        self._closes_by = moment

    # --- exchanges ---------------------------------------------------------------------------

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages; return the replies that arrive within ``timeout`` seconds.

        With ``one_by_one`` a reply takes memory only while its reader holds it.
        """
        replies = map(attrgetter("message"), self._send_and_stream(messages, timeout))
        return replies if self._one_by_one else list(replies)

    def send_and_collect(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Arrival]:
        """Send messages and return the replies in time, in the order of arrival.

        Parameters
        ----------
        messages : iterable of Message
            At most one for each node.
        timeout : float, optional
            Seconds until the deadline, when the messages expire. By default there is none.
        """
        return list(self._send_and_stream(messages, timeout))

    def _send_and_stream(
        self, messages: Iterable[Message], timeout: float | None
    ) -> Iterator[Arrival]:
        """Send messages immediately and yield the replies as they arrive."""
        self.closed_early, self.seconds, self._away = False, {}, frozenset()
        started = time.monotonic()
        deadline = min(math.inf if timeout is None else started + timeout, self._closes_by)
        if self._closes_by < math.inf:
            timeout, self._closes_by = max(0.0, deadline - started), math.inf
        if not self._can_wait:
            replies = self._grid.send_and_receive(messages, timeout=timeout)
            arrivals = map(_build_arrival, replies, repeat(started))
            return map(self._note_seconds, arrivals)
        if self._keeps_late:
            self._hold_arrivals()  # before their messages expire
        waiting = self._push_in_time(messages, timeout, deadline)
        held = deque[Arrival]()
        if self._joins_earlier:
            waiting |= {key for key, message in self._pending.items() if message.is_training}
            held, self._held = self._held, held
        return map(self._note_seconds, self._wait_for_arrivals(waiting, deadline, held))

    def _note_seconds(self, arrival: Arrival) -> Arrival:
        """Note an arrival's time and return the arrival; unlike a loop, ``map`` holds none."""
        self.seconds[arrival.node] = arrival.seconds
        return arrival

    def _wait_for_arrivals(
        self, waiting: set[str], deadline: float, held: deque[Arrival] | None = None
    ) -> Iterator[Arrival]:
        """Yield the replies to these messages until the exchange closes; first those held."""
        closes = deadline
        while held:
            if closes == deadline and self._is_quorum(held[0]):
                closes = min(deadline, time.monotonic() + self._grace_seconds)
            yield held.popleft()
        if not waiting:
            return
        with self._start_polling():
            while waiting and (arrived := self._get_next_of(waiting, closes)) is not None:
                key, arrival = arrived
                # A reply that arrived while the reader worked on another one may be late.
                if key not in waiting or arrival.arrived_at > closes:
                    self._store_arrival(key, arrival)
                    continue
                waiting.remove(key)
                if closes == deadline and self._is_quorum(arrival):
                    closes = min(deadline, time.monotonic() + self._grace_seconds)
                yield arrival
                del arrived, arrival  # before the next is waited for: one reply at a time
        self.closed_early = bool(waiting) and closes < deadline

    def _get_next_of(self, waiting: Collection[str], closes: float) -> tuple[str, Arrival] | None:
        """Return the next reply, None if the exchange closes before one arrives.

        An exchange that joins earlier ones closes at the expiry of its last message, or, once a
        node has replied, when all others are away: these may come back in a later exchange.
        """
        if not self._joins_earlier:
            return self._get_next(closes)
        expiries = (self._pending[key].expires_at for key in waiting if key in self._pending)
        closes = min(closes, max(expiries, default=closes))
        while True:
            arrived = self._get_next(min(closes, time.monotonic() + MAX_POLL_SECONDS))
            all_away = bool(self.seconds) and self._away.issuperset(waiting)
            if arrived is not None or all_away or time.monotonic() >= closes:
                return arrived

    def wait_until_trained(self) -> None:
        """Wait until no connected node trains, or the messages of all that do have expired."""
        self._joins_earlier, quorum_check, self._quorum_check = True, self._quorum_check, None
        while nodes := self.training_nodes:
            if not nodes.intersection(self.get_node_ids()):
                break
            waiting = {key for key, message in self._pending.items() if message.is_training}
            until = time.monotonic() + MAX_POLL_SECONDS
            for _ in self._wait_for_arrivals(waiting, until):
                pass  # no later round could count it
        self._joins_earlier, self._quorum_check = False, quorum_check

    def _is_quorum(self, arrival: Arrival) -> bool:
        if self._quorum_check is None or arrival.message.has_error():
            return False
        return self._quorum_check(arrival)

    @property
    def _can_wait(self) -> bool:
        return is_flower_grid(self._grid) or isinstance(self._grid, AwaitableGrid)

    def _push_in_time(
        self, messages: Iterable[Message], timeout: float | None, deadline: float
    ) -> set[str]:
        """Send messages; return the ids of those that the SuperLink accepted.

        The SuperLink refuses expired messages, which must not end the run.
        """
        given = list(messages)
        if timeout is not None:
            expires = time.time() + timeout + EXPIRY_MARGIN_SECONDS
            for message in given:  # Flower counts from the creation of a message
                message.metadata.ttl = expires - message.metadata.created_at
        try:
            return {key for key in self._send(given, deadline, self._max_bytes) if key}
        except Exception:  # each grid raises different errors
            if time.monotonic() < deadline:
                raise
            return set()

    def _send(
        self, messages: Sequence[Message], expires_at: float, max_bytes: Mapping[int, int]
    ) -> list[str]:
        """Send messages; return their ids in order, empty for those that were not accepted."""
        sent = time.monotonic()
        accepted = set(self._grid.push_messages(messages)) if messages else set()
        keys = []
        for message in messages:
            key = message.metadata.message_id
            keys.append(key if key in accepted else "")
            if key in accepted:
                shell = make_message(metadata=message.metadata, content=RecordDict())
                limit = max_bytes.get(message.metadata.dst_node_id, MAX_REPLY_BYTES)
                self._pending[key] = PendingMessage(shell, sent, expires_at, limit)
        return keys

    def _store_arrival(self, key: str, arrival: Arrival) -> None:
        """Store a reply that belongs to no exchange in progress."""
        if key in self._pushed:
            self._pushed.remove(key)
            self._stored_replies[key] = arrival.message
        elif self._keeps_late and arrival.message.metadata.message_type == MessageType.TRAIN:
            self._held.append(arrival)
        else:
            # Only its time of arrival matters, and whether it is a reply at all.
            shell = arrival.message
            if not shell.has_error():
                shell = make_message(metadata=shell.metadata, content=RecordDict())
            self._late_arrivals.append(replace(arrival, message=shell))

    def _get_next(self, closes: float) -> tuple[str, Arrival] | None:
        """Return the next reply, None if none arrives before the exchange closes.

        Raises
        ------
        Exception
            If the connection to the SuperLink fails.
        """
        while True:
            self._wait_for_reply(closes)
            left = closes - time.monotonic()
            try:
                wait = None if left == math.inf else max(0.0, left)
                key, reply, arrived_at = self._arrival_queue.get(timeout=wait)
            except queue.Empty:
                return None
            if key == "" and isinstance(reply, Exception):
                raise reply
            message = self._pending.pop(key, None)
            if message is None or (self._keeps_late and arrived_at > message.expires_at):
                continue  # a reply that the store repeats, or one that came too late
            return key, message.build_arrival(reply, arrived_at)

    def _wait_for_reply(self, closes: float) -> None:
        """Let an ``AwaitableGrid`` wait for the next reply, until the exchange closes."""
        while isinstance(self._grid, AwaitableGrid) and self._arrival_queue.empty():
            left = closes - time.monotonic()
            if left <= 0:
                return
            self._grid.wait(self._pending, min(left, MAX_POLL_SECONDS))
            self._check_replies(self._pending)

    def _deliver(self, key: str, reply: Message | Exception) -> None:
        self._arrival_queue.put((key, reply, time.monotonic()))

    # --- messages outside of exchanges -------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages without waiting for replies; return their ids, empty if not accepted."""
        if not self._can_wait:
            return self._grid.push_messages(messages)
        given = list(messages)
        keys = self._send(given, math.inf, {m.metadata.dst_node_id: MAX_QUERY_BYTES for m in given})
        self._pushed.update(filter(None, keys))
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that have arrived."""
        if not self._can_wait:
            return self._grid.pull_messages(message_ids)
        self._check_replies(self._pending)
        self._hold_arrivals()
        return [self._stored_replies.pop(key) for key in message_ids if key in self._stored_replies]

    # --- looking for replies -----------------------------------------------------------------

    @contextmanager
    def _start_polling(self) -> Iterator[None]:
        """Poll for replies in a daemon thread, which is abandoned if it cannot be ended."""
        now = time.monotonic()
        expired = {k: m.expires_at for k, m in self._pending.items() if m.expires_at <= now}
        self._pending = {k: m for k, m in self._pending.items() if k not in expired}
        if self._reply_reader is not None:
            self._reply_reader.discard_expired(
                {k: until + 2 * EXPIRY_MARGIN_SECONDS for k, until in expired.items()}
            )
        if isinstance(self._grid, AwaitableGrid):
            yield
            return
        ended = threading.Event()
        poller = threading.Thread(target=self._poll, args=(ended,), daemon=True)
        poller.start()
        try:
            yield
        finally:
            ended.set()

    def _poll(self, stop_event: threading.Event) -> None:
        """Poll for replies in growing intervals, which start again after each reply."""
        interval, num_pending = MIN_POLL_SECONDS, len(self._pending)
        while not stop_event.is_set():
            pending = dict(self._pending)
            if len(pending) < num_pending:
                interval = MIN_POLL_SECONDS
            num_pending = len(pending)
            try:
                self._check_replies(pending)
            except Exception as error:  # of the connection to the SuperLink
                if not stop_event.is_set():
                    self._deliver("", error)
                return
            stop_event.wait(interval)
            interval = min(POLL_GROWTH * interval, MAX_POLL_SECONDS)

    def _check_replies(self, pending: Mapping[str, PendingMessage]) -> None:
        if self._reply_reader is not None:
            self._reply_reader.poll(
                {key: message.expires_at for key, message in pending.items()},
                {key: message.max_bytes for key, message in pending.items()},
                unasked=self._find_unasked(pending),
            )
        elif pending:
            for reply in self._grid.pull_messages(list(pending)):
                self._deliver(reply.metadata.reply_to_message_id, reply)

    def _find_unasked(self, pending: Mapping[str, PendingMessage]) -> frozenset[str]:
        """Return the train messages for whose replies not to look now, where late replies count.

        The SuperLink answers for a node that it takes for lost, and deletes the message: the reply
        of a node that comes back would be refused. So nobody asks as long as the node is away. And
        between two exchanges of training, a reply takes no memory here: it waits at the SuperLink,
        unless its message expires soon.
        """
        training = {key: m for key, m in pending.items() if m.is_training}
        if not self._keeps_late or not training:
            return frozenset()
        if not self._joins_earlier:
            soon = time.monotonic() + FETCH_SECONDS
            waiting = frozenset(key for key, m in training.items() if m.expires_at > soon)
            if len(waiting) == len(training):
                return waiting
        else:
            waiting = frozenset()
        connected = frozenset(self._grid.get_node_ids())
        self._away = frozenset(key for key, m in training.items() if m.node not in connected)
        return waiting | self._away

    # --- delegation to the inner grid --------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

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
        """Return the ids of the connected nodes."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the information about the connected nodes."""
        return self._grid.get_nodes()


def unwrap_grid(grid: Grid) -> Grid:
    """Return the grid inside a ``WaitingGrid``, and any other grid unchanged."""
    return grid.inner if isinstance(grid, WaitingGrid) else grid


def _build_arrival(reply: Message, started: float) -> Arrival:
    now = time.monotonic()
    return Arrival(reply.metadata.src_node_id, reply, now - started, now)
