"""Add simulated response times to replies, by a Flower mod."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from ..client.latency import LatencyModel
from .availability import is_train_message
from .codec import add_response_times, decode_selected_clients


@dataclass(frozen=True)
class NodeResponseTimes:
    """The response times of one node's clients.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0.
    hosted : sequence of int
        The ids of the node's clients.
    times : LatencyModel
    """

    seed: int
    hosted: Sequence[int]
    times: LatencyModel


@dataclass(frozen=True)
class ResponseTimeMod:
    """Add simulated seconds to the replies to train messages, for the server's virtual clock.

    The mod does not wait: the reply leaves at once, and a server with
    ``NativeProtocol.virtual_clock`` decides by the seconds which replies are in time. Evaluations
    and queries take no simulated time, since the experimenter makes them.

    Parameters
    ----------
    get_node_response_times : callable
        Takes a node's context and returns the response times of its clients; None without any.

    Raises
    ------
    ProtocolError
        If a request has no ``server-round``, or names a client of another node.
    """

    get_node_response_times: Callable[[Context], NodeResponseTimes | None]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        node = self.get_node_response_times(context) if is_train_message(message) else None
        if node is None:
            return call_next(message, context)
        server_round, selected = decode_selected_clients(message.content, node.hosted)
        reply = call_next(message, context)
        if not reply.has_error():
            times = {k: node.times.get_seconds(node.seed, k, server_round) for k in selected}
            reply.content = add_response_times(reply.content, times)
        return reply
