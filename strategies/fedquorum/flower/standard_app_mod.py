"""Let a ClientApp written for Flower's own strategies take part in a secure sum."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..errors import ProtocolError
from ..sanitize import MAX_REASON_LENGTH, sanitize
from ..server.exact_sum import ExactAccumulator, PartialSums
from .codec import (
    ACCURACY_KEY,
    ARRAYRECORD_KEY,
    CONFIGRECORD_KEY,
    LOSS_KEYS,
    WEIGHTED_BY_KEY,
    EvaluateResult,
    Status,
    TrainResult,
    decode_evaluate_request,
    decode_listed_clients,
    decode_standard_evaluate_reply,
    decode_standard_train_reply,
    decode_sum_bins,
    decode_train_request,
    encode_evaluate_reply,
    encode_train_reply,
    view_user_config,
)
from .codec.keys import ARRAYS, MASKED_SUM, SERVER_ROUND
from .codec.secure import find_step
from .validation import Limits, find_update_problem

EVALUATION_LOSS_KEYS = (*LOSS_KEYS, "eval_loss", "eval-loss")
EVALUATION_ACCURACY_KEYS = (ACCURACY_KEY, "eval_acc", "eval-acc", "eval_accuracy")
"""The keys of the results of an evaluation by default, in the order of preference."""

LIMITS = Limits(any_loss=True, any_accuracy=True, any_weight=True, any_float=True)
MODS_ORDER = "the mods of its ClientApp must end with [SecureSumMod(), StandardAppMod()]"
NO_MODEL = "its ClientApp returned no model"


@dataclass(frozen=True)
class StandardAppMod:
    """Compute the weighted sum of a ClientApp that replies with a model.

    The mod stands between ``SecureSumMod`` and the app::

        app = ClientApp(mods=[SecureSumMod(), StandardAppMod()])

    The app receives what Flower's ``FedAvg`` sends, and the mod makes a_k (x - x_t) of its reply x.
    Other messages pass unchanged. The node is one client.

    Parameters
    ----------
    weighted_by_key : str
        The metric with the client's amount of data.
    arrayrecord_key, configrecord_key : str
        Names of the records that the app expects.
    loss_key, accuracy_key : str, optional
        The metrics of an evaluation; by default ``loss`` or ``eval_loss``, and ``accuracy`` or
        ``eval_acc``. One that is missing is left out of the mean.
    """

    weighted_by_key: str = WEIGHTED_BY_KEY
    arrayrecord_key: str = ARRAYRECORD_KEY
    configrecord_key: str = CONFIGRECORD_KEY
    loss_key: str | None = None
    accuracy_key: str | None = None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        if MASKED_SUM not in message.content:
            if find_step(message.content) is not None:  # SecureSumMod answers it, if it is first
                clients = decode_listed_clients(message.content)[1]
                failed = [TrainResult(k, Status.FAILED, reason=MODS_ORDER) for k in clients]
                return Message(encode_train_reply(failed), reply_to=message)
            return call_next(message, context)
        server_round, clients = decode_listed_clients(message.content)
        if len(clients) != 1:
            raise ProtocolError(f"the node is one client, and the message is for {len(clients)}")
        (client,) = clients
        request = copy(message)
        request.content = self._build_request(message.content, server_round)
        reply = call_next(request, context)
        if reply.has_error():
            return reply
        trains = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        try:
            if trains:
                content = self._encode_sum(client, message.content, reply.content)
            else:
                content = self._encode_evaluation(client, message.content, reply.content)
        except ProtocolError as error:
            reason = sanitize(error, MAX_REASON_LENGTH)
            content = (
                encode_train_reply([TrainResult(client, Status.FAILED, reason=reason)])
                if trains
                else encode_evaluate_reply([EvaluateResult(client, Status.FAILED, reason=reason)])
            )
        reply.content = content
        return reply

    def _build_request(self, content: RecordDict, server_round: int) -> RecordDict:
        """Return the message of Flower's ``FedAvg``, with the user's config."""
        model = content[ARRAYS]
        assert isinstance(model, ArrayRecord)  # SecureSumMod has read it, or the app will
        config = ConfigRecord({**view_user_config(content), SERVER_ROUND: server_round})
        return RecordDict({self.arrayrecord_key: model, self.configrecord_key: config})

    def _encode_sum(self, client: int, request: RecordDict, reply: RecordDict) -> RecordDict:
        """Return the reply with the weighted sum, or with the reason why there is none."""
        model, (task,) = decode_train_request(request, [client])
        result = decode_standard_train_reply(
            reply,
            weighted_by_key=self.weighted_by_key,
            loss_keys=(),
            accuracy_key="",
        )
        result = replace(result, client=client)
        if result.status is not Status.DONE:
            return encode_train_reply([result])
        if result.arrays is None:
            raise ProtocolError(NO_MODEL)
        problem = find_update_problem(result, model, LIMITS)
        bins = decode_sum_bins(request, model)
        total = ExactAccumulator(model, bins)
        arrays = {name: result.arrays[name] for name in model if name in result.arrays}
        factor = task.compute_numerator(result.num_examples or 0.0)
        if problem is None and not total.can_add(factor, arrays):
            problem = bins.too_large_reason
        if problem is not None:
            return encode_train_reply([TrainResult(client, Status.REJECTED, reason=problem)])
        if factor != 0.0:
            total.add_model(factor, arrays)
        sums: PartialSums = total.get_sums()
        done = TrainResult(client, Status.DONE, num_examples=result.num_examples)
        return encode_train_reply([done], weighted_sum=sums)

    def _encode_evaluation(self, client: int, request: RecordDict, reply: RecordDict) -> RecordDict:
        """Return the reply with the results on the client's test split."""
        decode_evaluate_request(request, [client])
        result = decode_standard_evaluate_reply(
            reply,
            weighted_by_key=self.weighted_by_key,
            loss_keys=_list_keys(self.loss_key, EVALUATION_LOSS_KEYS),
            accuracy_keys=_list_keys(self.accuracy_key, EVALUATION_ACCURACY_KEYS),
        )
        return encode_evaluate_reply([replace(result, client=client)])


def _list_keys(given: str | None, default: Sequence[str]) -> Sequence[str]:
    return default if given is None else (given,)
