"""A Flower mod: clients clip their own updates, where the run says that they shall."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from fedquorum.flower.codec import (
    Status,
    TrainAnswer,
    decode_asked,
    decode_train_reply,
    decode_train_request,
    encode_train_reply,
    select_clients,
)
from flwr.app import Context, Error, Message, MessageType
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.clientapp.typing import ClientAppCallable, Mod

from conf.schema.privacy import PrivacySettings

MODS: dict[str, Mod] = {
    "dp_fixed_client": fixedclipping_mod,
    "dp_adaptive_client": adaptiveclipping_mod,
}


@dataclass(frozen=True)
class ClippingMod:
    """Lets Flower's mod clip the update of each client of a node.

    Flower's mods take a reply for one client's, so each client is asked with a message of its
    own. A client that did not train has nothing to clip, and its part stays as it is.

    Parameters
    ----------
    of_node : callable
        Returns the privacy settings of the run, and the clients on the node with a context.
    """

    of_node: Callable[[Context], tuple[PrivacySettings, Sequence[int]]]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        category, _, _ = message.metadata.message_type.partition(".")
        if category != MessageType.TRAIN:
            return call_next(message, context)
        settings, hosted = self.of_node(context)
        if settings.name not in MODS:
            return call_next(message, context)
        _, asked = decode_asked(message.content, hosted)
        answers: list[TrainAnswer] = []
        for client in asked:
            request = copy(message)
            request.content = select_clients(message.content, asked, [client])
            answers += _clipped(MODS[settings.name], client, request, context, call_next)
        return Message(encode_train_reply(answers), reply_to=message)


def _clipped(
    mod: Mod, client: int, request: Message, context: Context, call_next: ClientAppCallable
) -> list[TrainAnswer]:
    """Return what one client replies, clipped if there is anything to clip."""
    untouched: list[TrainAnswer] = []
    received, _ = decode_train_request(request.content, [client])

    def nothing_to_clip(answer: TrainAnswer) -> bool:
        # Flower would divide by the norm of an update of zero.
        arrays = answer.arrays
        return arrays is None or all(
            np.array_equal(a, received[name]) for name, a in arrays.items()
        )

    def ask(single: Message, single_context: Context) -> Message:
        reply = call_next(single, single_context)
        if not reply.has_error():
            untouched.extend(filter(nothing_to_clip, decode_train_reply(reply.content)))
        # An error is what Flower's mods hand on as it is.
        return Message(Error(0, "nothing to clip"), reply_to=single) if untouched else reply

    reply = mod(request, context, ask)
    if untouched:
        return untouched
    if reply.has_error():
        return [TrainAnswer(client, Status.FAILED, reason=reply.error.reason)]
    return [_with_float_bit(answer) for answer in decode_train_reply(reply.content)]


def _with_float_bit(answer: TrainAnswer) -> TrainAnswer:
    """Return an answer whose bit can be beside NaN, of clients that had nothing to clip."""
    bit = answer.norm_bit
    return answer if bit is None else replace(answer, norm_bit=float(bit))
