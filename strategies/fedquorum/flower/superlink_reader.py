"""Read replies from a SuperLink's store as if every node were hostile.

A reply is a tree of objects. Its node announces the tree first and uploads the objects afterwards.
Flower's ``HttpGrid`` reads one reply after the other, of any size, and waits up to two hours for
missing objects. This reader reads several replies concurrently, and an unreadable reply becomes an
error of that reply only.
"""

import heapq
import itertools
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Metadata,
    ObjectTree,
    PullObjectRequest,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

MAX_REPLY_BYTES = 2**32
"""Largest reply in bytes, if no tighter limit is set."""

MAX_OBJECTS = 100_000
NUM_READERS = 4
RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 1.0

Deliver = Callable[[str, Message | Exception], None]


class UnreadableReplyError(Exception):
    """A reply cannot be used; the message has the reason."""


@dataclass(order=True)
class _Upload:
    """A reply whose objects are being read.

    ``due_at`` is the time of the next look for missing objects, ``expires_at`` the time to give up,
    both by the monotonic clock. The SuperLink has checked ``metadata`` against the node's key and
    against the message to which the node replies.
    """

    due_at: float
    number: int
    metadata: Metadata = field(compare=False)
    missing: list[str] = field(compare=False)
    max_bytes: int = field(compare=False)
    expires_at: float = field(compare=False)
    retry_seconds: float = field(default=RETRY_SECONDS, compare=False)
    size: int = field(default=0, compare=False)
    contents: dict[str, bytes] = field(default_factory=dict, compare=False)


class ReplyReader:
    """Reads replies from a SuperLink's store in background threads.

    Parameters
    ----------
    grid : HttpGrid
        Flower's connection to the SuperLink.
    deliver : callable
        Takes the id of a sent message, and its reply or the error that prevented one. It is called
        in other threads.
    """

    def __init__(self, grid: "HttpGrid", deliver: Deliver) -> None:
        self._grid = grid
        self._deliver = deliver
        self._started: set[str] = set()
        self._expired: dict[str, float] = {}
        self._one_by_one = False
        self._numbers = itertools.count()
        self._uploads: list[_Upload] = []
        self._readers: list[threading.Thread] = []
        self._changed = threading.Condition()

    def poll(
        self,
        expires_at: Mapping[str, float],
        max_bytes: Mapping[str, int],
        unasked: Collection[str] = (),
    ) -> None:
        """Look once for replies to these messages, and start to read the available ones.

        Parameters
        ----------
        expires_at : mapping
            Time to give up each message's reply, by the monotonic clock.
        max_bytes : mapping
            Largest size of each reply, in bytes.
        unasked : collection of str
            The messages among them for whose replies not to look this time.
        """
        # The SuperLink hands out a reply only once.
        self._started &= expires_at.keys()
        keys = [key for key in expires_at if key not in self._started and key not in unasked]
        batches = [[key] for key in keys] if self._one_by_one else [keys] if keys else []
        for batch in batches:
            for stored, tree in self._pull_stored(batch):
                key = stored.metadata.reply_to_message_id
                if key in expires_at:
                    self._started.add(key)
                    self._start_upload(stored.metadata, tree, max_bytes[key], expires_at[key])

    def discard_expired(self, expired: Mapping[str, float]) -> None:
        """Let the SuperLink delete messages without a reply, once they expire there.

        The SuperLink stores a message until its reply is pulled, and the model in it until a node
        receives it: one that left never does.

        Parameters
        ----------
        expired : mapping
            Time at which each message expires at the SuperLink, by the monotonic clock.
        """
        self._expired |= {key: at for key, at in expired.items() if key not in self._started}
        now = time.monotonic()
        due = [key for key, at in self._expired.items() if at <= now]
        for key in due:
            del self._expired[key]
        if not due:
            return
        try:
            found = self._pull_stored(due)
        except httpx.HTTPError:
            return  # the SuperLink deletes them with the run
        for message_id in (*due, *(stored.metadata.message_id for stored, _ in found)):
            self._confirm_received(message_id)

    def _pull_stored(self, keys: Sequence[str]) -> list[tuple[Any, ObjectTree]]:
        try:
            found = self._grid._runtime_client.PullMessages(
                PullAppMessagesRequest(message_ids=keys)
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.REQUEST_ENTITY_TOO_LARGE:
                raise
            self._one_by_one = True
            return []
        return list(zip(found.messages_list, found.message_object_trees, strict=True))

    def _start_upload(
        self, metadata: Metadata, tree: ObjectTree, max_bytes: int, expires_at: float
    ) -> None:
        try:
            missing = _list_objects(tree, metadata.message_id)
        except UnreadableReplyError as error:
            self._finish_upload(metadata, error)
            return
        with self._changed:
            number = next(self._numbers)
            heapq.heappush(
                self._uploads,
                _Upload(time.monotonic(), number, metadata, missing, max_bytes, expires_at),
            )
            if len(self._readers) < NUM_READERS:
                reader = threading.Thread(target=self._read_uploads, daemon=True)
                self._readers.append(reader)
                reader.start()
            self._changed.notify()

    def _read_uploads(self) -> None:
        """Read the upload that is due next, forever."""
        while True:
            with self._changed:
                while not self._uploads or self._uploads[0].due_at > time.monotonic():
                    due = self._uploads[0].due_at - time.monotonic() if self._uploads else None
                    self._changed.wait(due)
                upload = heapq.heappop(self._uploads)
            try:
                self._read_objects(upload)
                if upload.missing:
                    self._retry_later(upload)
                    continue
                reply: Message | Exception = _inflate_reply(upload)
            except Exception as error:  # a hostile object can make Flower raise anything
                reply = error
            self._finish_upload(upload.metadata, reply)

    def _read_objects(self, upload: _Upload) -> None:
        """Read the objects that are available."""
        missing = []
        for name in upload.missing:
            request = PullObjectRequest(
                node=self._grid.node, run_id=self._grid.run.run_id, object_id=name
            )
            found = self._grid._runtime_client.PullObject(request)
            if not found.object_found:
                raise UnreadableReplyError("one of its objects is not there")
            if not found.object_available:
                missing.append(name)
                continue
            upload.contents[name] = found.object_content
            upload.size += len(found.object_content)
            if upload.size > upload.max_bytes:
                raise UnreadableReplyError(f"it is larger than {upload.max_bytes} bytes")
        upload.missing = missing

    def _retry_later(self, upload: _Upload) -> None:
        now = time.monotonic()
        if now >= upload.expires_at:
            return  # the exchange is over
        upload.due_at = min(now + upload.retry_seconds, upload.expires_at)
        upload.retry_seconds = min(2 * upload.retry_seconds, MAX_RETRY_SECONDS)
        with self._changed:
            heapq.heappush(self._uploads, upload)
            self._changed.notify()

    def _finish_upload(self, metadata: Metadata, reply: Message | Exception) -> None:
        """Deliver a reply, and let the SuperLink delete its objects."""
        self._deliver(metadata.reply_to_message_id, reply)
        self._confirm_received(metadata.message_id)

    def _confirm_received(self, message_id: str) -> None:
        """Let the SuperLink delete the objects of a message."""
        request = ConfirmMessageReceivedRequest(
            node=self._grid.node,
            run_id=self._grid.run.run_id,
            message_object_id=message_id,
        )
        try:
            self._grid._runtime_client.ConfirmMessageReceived(request)
        except httpx.HTTPError:
            return  # the SuperLink deletes them with the run


def _list_objects(tree: ObjectTree, root: str) -> list[str]:
    """Return the distinct ids of the objects of the reply ``root``."""
    if tree.object_id != root:
        raise UnreadableReplyError("its objects are those of another message")
    names: dict[str, None] = {}
    pending = [tree]
    while pending:
        node = pending.pop()
        names[node.object_id] = None
        pending.extend(node.children)
        if len(pending) + len(names) > MAX_OBJECTS:
            raise UnreadableReplyError(f"it has more than {MAX_OBJECTS} objects")
    return list(names)


def _inflate_reply(upload: _Upload) -> Message:
    """Return the reply built from an upload's objects."""
    size = sum(_count_data_bytes(content, upload.contents) for content in upload.contents.values())
    if size > upload.max_bytes:
        raise UnreadableReplyError(f"its arrays have {size} bytes, more than {upload.max_bytes}")
    message = inflate_object_from_contents(upload.metadata.message_id, upload.contents)
    if not isinstance(message, Message):
        raise UnreadableReplyError(f"it is a {type(message).__name__}, not a message")
    claimed, verified = message.metadata, upload.metadata
    facts = {
        "node": (claimed.src_node_id, verified.src_node_id),
        "message": (claimed.reply_to_message_id, verified.reply_to_message_id),
        "type": (claimed.message_type, verified.message_type),
        "group": (claimed.group_id, verified.group_id),
    }
    wrong = [name for name, (claim, truth) in facts.items() if claim != truth]
    if wrong:
        raise UnreadableReplyError(f"it names another {' and another '.join(wrong)}")
    return message


def _count_data_bytes(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return the expanded size of an array, which may repeat a chunk; 0 for other objects."""
    kind, chunks, _ = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return 0
    body = json.loads(content[content.index(b"\0") + 1 :])
    sizes = [len(contents[chunk]) for chunk in chunks]
    return sum(sizes[index] for index in body["arraychunk_ids"])
