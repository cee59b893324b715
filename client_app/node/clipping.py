"""Clip updates on the clients, as a Flower mod, if the run's privacy settings require it."""

from collections.abc import Callable, Mapping, Sequence
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
from fedquorum.flower.mods import is_train_message
from fedquorum.rules.robustness import clip_update
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from conf.schema.privacy import CLIENT_MODES, PrivacySettings


@dataclass(frozen=True)
class ClippingMod:
    """Clip the update of each client of a node to the norm that the server sends.

    The result of a client that did not train is not changed. A client that receives no norm sends
    no update.

    Parameters
    ----------
    get_node_privacy : callable
        Returns the privacy settings of the run, and the clients that a context hosts.
    """

    get_node_privacy: Callable[[Context], tuple[PrivacySettings, Sequence[int]]]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Return the reply to one message, with clipped updates."""
        if not is_train_message(message):
            return call_next(message, context)
        settings, hosted = self.get_node_privacy(context)
        if settings.name not in CLIENT_MODES:
            return call_next(message, context)
        received, tasks = decode_train_request(message.content, hosted)
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
