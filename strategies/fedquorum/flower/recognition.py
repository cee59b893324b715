"""Recognise the protocol of the nodes' ClientApp from its first replies."""

from collections.abc import Iterable, Iterator

from flwr.app import Message, RecordDict

from ..errors import ProtocolError
from .codec import PROTOCOL, Status, decode_train_reply, protocol_of


def until_told(replies: Iterable[Message]) -> tuple[list[Message], Iterator[Message]]:
    """Return the replies up to the first that settles that not all speak it, and the others."""
    rest = iter(replies)
    first: list[Message] = []
    for reply in rest:
        first.append(reply)
        if not reply.has_error() and not _has_number(reply.content):
            break
    return first, rest


def speaks_protocol(replies: Iterable[Message]) -> bool | None:
    """Say whether all replies to Flower's standard request are in this project's protocol.

    None, not known yet, where no client trained. That a client is not available is no sign:
    ``AvailabilityMod`` says so in this protocol for any ClientApp. A reply for several clients
    is one.
    """
    contents = [reply.content for reply in replies if not reply.has_error()]
    if not all(map(_has_number, contents)):
        return False
    return True if any(map(_is_a_sign, contents)) else None


def _has_number(content: RecordDict) -> bool:
    try:
        return protocol_of(content) == PROTOCOL
    except ProtocolError:
        return False


def _is_a_sign(content: RecordDict) -> bool:
    try:
        answers = decode_train_reply(content)
    except ProtocolError:
        return False
    return len(answers) > 1 or any(answer.status is Status.DONE for answer in answers)
