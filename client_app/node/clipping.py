"""Clip updates on the clients, as a Flower mod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    decode_train_reply,
    decode_train_request,
    encode_train_reply,
)
from fedquorum.rules.robustness import clip_update
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable


@dataclass(frozen=True)
class ClippingMod:
    """Clip the update of each client of a node to the norm in a train message.

    The result of a client that did not train is not changed. A client that receives no norm sends
    no update.

    Parameters
    ----------
    hosted : sequence of int
        The ids of the node's clients.
    """

    hosted: Sequence[int]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Return the reply to one message, with clipped updates."""
        received, tasks = decode_train_request(message.content, self.hosted)
        norms = {task.client: task.clipping_norm for task in tasks}
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        results = [
            _clip_result(result, received, norms) for result in decode_train_reply(reply.content)
        ]
        return Message(encode_train_reply(results), reply_to=message)


def _clip_result(
    result: TrainResult, received: NamedArrays, norms: Mapping[int, float | None]
) -> TrainResult:
    """Return a client's result with a clipped update; ``norm_bit`` is 1 if that shortened it."""
    if result.arrays is None:
        return result
    norm = None if result.client is None else norms.get(result.client)
    if norm is None:
        reason = "the server sent no clipping_norm, to which the client is to clip its update"
        return TrainResult(result.client, Status.FAILED, reason=reason)
    if not all(np.isfinite(array).all() for array in result.arrays.values()):
        return result  # the server rejects it
    arrays, length = clip_update(received, result.arrays, norm)
    sent = {name: array.astype(received[name].dtype) for name, array in arrays.items()}
    return replace(result, arrays=sent, norm_bit=float(length > norm))
