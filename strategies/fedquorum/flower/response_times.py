"""Add simulated response times to replies, by a Flower mod."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from ..client.response_times import ResponseTimes
from .availability import is_train
from .codec import decode_asked, with_seconds


@dataclass(frozen=True)
class NodeResponseTimes:
    """The response times of one node's clients.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0.
    hosted : sequence of int
        The ids of the node's clients.
    times : ResponseTimes
        The simulated times.
    """

    seed: int
    hosted: Sequence[int]
    times: ResponseTimes


@dataclass(frozen=True)
class ResponseTimeMod:
    """Add simulated seconds to the replies to train messages, for the server's virtual clock.

    The mod does not wait: the reply leaves at once, and a server with
    ``Communication.virtual_clock`` decides by the seconds which replies are in time. Evaluations
    and queries take no simulated time, since they are the experimenter's measurement.

    Parameters
    ----------
    of_node : callable
        Takes a node's context and returns the response times of its clients; None without any.

    Raises
    ------
    ProtocolError
        If a request has no ``server-round``, or asks a client of another node.
    """

    of_node: Callable[[Context], NodeResponseTimes | None]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        node = self.of_node(context) if is_train(message) else None
        if node is None:
            return call_next(message, context)
        server_round, asked = decode_asked(message.content, node.hosted)
        reply = call_next(message, context)
        if not reply.has_error():
            times = {k: node.times.seconds(node.seed, k, server_round) for k in asked}
            reply.content = with_seconds(reply.content, times)
        return reply
