"""Encode and decode Flower's standard protocol, of its strategies and their ClientApps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ...errors import ProtocolError
from ...intake import check_names
from .answers import (
    Answer,
    EvaluateAnswer,
    Status,
    TrainAnswer,
    decode_evaluate_reply,
    decode_train_reply,
)
from .arrays import view_arrays
from .keys import (
    ACCURACY,
    ARRAYS,
    CONFIG,
    LOSS,
    METRICS,
    NUM_EXAMPLES,
    PROTOCOL_NUMBER,
    SERVER_ROUND,
    STATUS,
)
from .kinds import records_of

WEIGHTED_BY_KEY, ACCURACY_KEY = NUM_EXAMPLES, ACCURACY
"""The default keys of the amount of data and of the accuracy."""

LOSS_KEYS = (LOSS, "train_loss", "train-loss")
"""The default keys of the loss, in the order of preference."""

FOUND = "; found "
"""The words before the keys in a reply that lacks the required ones."""

ARRAYRECORD_KEY, CONFIGRECORD_KEY = ARRAYS, CONFIG
"""The default names of the records in messages."""


class OtherFormError(ProtocolError):
    """A client that trained replied in the form of the protocol that is not in use."""


def encode_standard_query() -> RecordDict:
    """Return the content of a query, which is empty."""
    return RecordDict()


def encode_standard_request(
    arrays: ArrayRecord, server_round: int, arrays_key: str, config_key: str
) -> RecordDict:
    """Return a train or evaluate message as Flower's own strategies send it."""
    return RecordDict({arrays_key: arrays, config_key: ConfigRecord({SERVER_ROUND: server_round})})


def decode_standard_train_reply(
    content: RecordDict,
    *,
    weighted_by_key: str,
    loss_keys: Sequence[str],
    accuracy_key: str,
    needs_loss: bool = False,
) -> TrainAnswer:
    """Return the answer of a node's one client after training.

    As with Flower's own strategies, the records may have any names. The reply has one MetricRecord
    and, if the client trained, one ArrayRecord. A reply in this project's protocol counts if it
    is for one client, whatever its id there, or if no client of it trained: for any ClientApp,
    ``AvailabilityMod`` reports in that protocol that clients are unavailable.

    Parameters
    ----------
    content : RecordDict
        The reply.
    weighted_by_key, accuracy_key : str
        The keys of D_k, which is required, and of the accuracy.
    loss_keys : sequence of str
        The possible keys of the loss; the first one in the reply counts.
    needs_loss : bool
        Whether a loss is required. Otherwise a loss that is not a single number counts as missing.

    Raises
    ------
    OtherFormError
        If the reply is in this project's protocol, for several clients of whom some trained.
    ProtocolError
        If there is another number of records, or D_k or a required loss is missing or a list.
    """
    if is_in_protocol(content):
        answers = decode_train_reply(content)
        absent = [answer for answer in answers if answer.status is not Status.DONE]
        if len(absent) == len(answers):
            nobody = TrainAnswer(None, Status.FAILED, reason="its node replied for no client")
            failed = (answer for answer in absent if answer.status is Status.FAILED)
            return replace(next(failed, (absent or [nobody])[0]), client=None)
        _check_one_client(answers)
    metrics = _metrics(content)
    num_examples = _needed(metrics, weighted_by_key)
    loss_key = next((key for key in loss_keys if key in metrics), None)
    if needs_loss and loss_key is None:
        raise _missing(metrics, loss_keys)
    arrays = [view_arrays(record) for record in records_of(content, ArrayRecord).values()]
    return TrainAnswer(
        None,
        Status.DONE,
        num_examples=num_examples,
        loss=None if loss_key is None else _number(metrics, loss_key, needed=needs_loss),
        accuracy=_number(metrics, accuracy_key),
        arrays=arrays[0] if arrays else None,
    )


def is_in_protocol(content: RecordDict) -> bool:
    """Say whether a reply is in this project's protocol, rather than in Flower's standard form."""
    metrics: Mapping[str, Any] = records_of(content, MetricRecord).get(METRICS, {})
    return STATUS in metrics and PROTOCOL_NUMBER in metrics


def standard_loss_key(content: RecordDict, loss_keys: Sequence[str]) -> str | None:
    """Return the key of the loss in a reply to a train message, None without a loss."""
    found = [key for record in records_of(content, MetricRecord).values() for key in record]
    return next((key for key in loss_keys if key in found), None)


def decode_standard_evaluate_reply(content: RecordDict, *, weighted_by_key: str) -> EvaluateAnswer:
    """Return the answer of a node's one client to an evaluation, which has D_k alone.

    Raises
    ------
    ProtocolError
        As in ``decode_standard_train_reply``.
    """
    if is_in_protocol(content):
        _check_one_client(decode_evaluate_reply(content))
    metrics = _metrics(content)
    return EvaluateAnswer(None, Status.DONE, num_examples=_needed(metrics, weighted_by_key))


def _check_one_client(answers: Sequence[Answer]) -> None:
    if len(answers) != 1:
        raise OtherFormError(
            f"its reply is in FedQuorum's protocol, for {len(answers)} clients, and not in "
            "Flower's standard form"
        )


def _metrics(content: RecordDict) -> Mapping[str, Any]:
    said, arrays = records_of(content, MetricRecord), records_of(content, ArrayRecord)
    if len(said) != 1:
        raise ProtocolError(f"a reply needs exactly one MetricRecord, got {sorted(said)}")
    if len(arrays) > 1:
        raise ProtocolError(f"a reply needs exactly one ArrayRecord, got {sorted(arrays)}")
    (metrics,) = said.values()
    check_names(metrics, "a metric")
    return metrics


def _number(metrics: Mapping[str, Any], key: str, *, needed: bool = False) -> float | None:
    """Return a number, None where there is none; a list is none, unless the number is needed."""
    value: float | list[float] | None = metrics.get(key)
    if isinstance(value, list):
        if needed:
            raise ProtocolError(f"'{key}' must be a single number, got a list")
        return None
    return value


def _needed(metrics: Mapping[str, Any], key: str) -> float:
    value = _number(metrics, key, needed=True)
    if value is None:
        raise _missing(metrics, (key,))
    return value


def _missing(metrics: Mapping[str, Any], keys: Sequence[str]) -> ProtocolError:
    """Return the refusal of metrics without any of some keys, which names those that are there."""
    looked_for = " or ".join(f"'{key}'" for key in keys)
    there = ", ".join(f"'{key}'" for key in sorted(metrics)) or "no metrics"
    return ProtocolError(f"{looked_for} is missing in the metrics{FOUND}{there}")
