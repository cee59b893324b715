"""Encode and decode Flower's standard protocol, as its strategies and their ClientApps use it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ...errors import ProtocolError
from ...rules.failures import FOUND_KEYS_PREFIX
from .arrays import check_names, select_records, view_arrays
from .keys import (
    ACCURACY,
    ARRAYS,
    CONFIG,
    LOSS,
    METRICS,
    NUM_EXAMPLES,
    PROTOCOL_KEY,
    SERVER_ROUND,
    STATUS,
)
from .results import (
    ClientResult,
    EvaluateResult,
    Status,
    TrainResult,
    decode_evaluate_reply,
    decode_train_reply,
)

WEIGHTED_BY_KEY, ACCURACY_KEY = NUM_EXAMPLES, ACCURACY
"""The default keys of the amount of data and of the accuracy."""

LOSS_KEYS = (LOSS, "train_loss", "train-loss")
"""The default keys of the loss, in the order of preference."""

ARRAYRECORD_KEY, CONFIGRECORD_KEY = ARRAYS, CONFIG
"""The default names of the records in messages."""


class ProtocolMismatchError(ProtocolError):
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
) -> TrainResult:
    """Return the train result of a node's only client.

    As with Flower's own strategies, the records may have any names. The reply has one MetricRecord
    and, if the client trained, one ArrayRecord. A reply in this project's protocol counts if it
    is for one client, whatever its id there, or if no client of it trained: for any ClientApp,
    ``AvailabilityMod`` reports in that protocol that clients are unavailable.

    Parameters
    ----------
    content : RecordDict
    weighted_by_key, accuracy_key : str
        The keys of D_k, which is required, and of the accuracy.
    loss_keys : sequence of str
        The possible keys of the loss; the first one in the reply counts.
    needs_loss : bool
        Whether a loss is required. Otherwise a loss that is not a single number counts as missing.

    Raises
    ------
    ProtocolMismatchError
        If the reply is in this project's protocol, for several clients, and some of them trained.
    ProtocolError
        If the number of records is wrong, or D_k or a required loss is missing or a list.
    """
    if is_native_reply(content):
        results = decode_train_reply(content)
        absent = [result for result in results if result.status is not Status.DONE]
        if len(absent) == len(results):
            nobody = TrainResult(None, Status.FAILED, reason="its node replied for no client")
            failed = (result for result in absent if result.status is Status.FAILED)
            return replace(next(failed, (absent or [nobody])[0]), client=None)
        _check_one_client(results)
    metrics = _read_metrics(content)
    num_examples = _read_required_number(metrics, (weighted_by_key,))
    if needs_loss:
        loss: float | None = _read_required_number(metrics, loss_keys)
    else:
        loss = _read_number(metrics, next((key for key in loss_keys if key in metrics), ""))
    arrays = [view_arrays(record) for record in select_records(content, ArrayRecord).values()]
    return TrainResult(
        None,
        Status.DONE,
        num_examples=num_examples,
        loss=loss,
        accuracy=_read_number(metrics, accuracy_key),
        arrays=arrays[0] if arrays else None,
    )


def is_native_reply(content: RecordDict) -> bool:
    """Say whether a reply is in this project's protocol, rather than in Flower's standard form."""
    metrics: Mapping[str, Any] = select_records(content, MetricRecord).get(METRICS, {})
    return STATUS in metrics and PROTOCOL_KEY in metrics


def find_standard_loss_key(content: RecordDict, loss_keys: Sequence[str]) -> str | None:
    """Return the key of the loss in a reply to a train message, or None without a loss."""
    found = [key for record in select_records(content, MetricRecord).values() for key in record]
    return next((key for key in loss_keys if key in found), None)


def decode_standard_evaluate_reply(
    content: RecordDict,
    *,
    weighted_by_key: str,
    loss_keys: Sequence[str] = (),
    accuracy_keys: Sequence[str] = (),
) -> EvaluateResult:
    """Return the evaluate result of a node's only client: D_k, and results with given keys.

    Raises
    ------
    ProtocolError
        As in ``decode_standard_train_reply``.
    """
    if is_native_reply(content):
        _check_one_client(decode_evaluate_reply(content))
    metrics = _read_metrics(content)
    loss, accuracy = (
        _read_number(metrics, next((key for key in keys if key in metrics), ""))
        for keys in (loss_keys, accuracy_keys)
    )
    return EvaluateResult(
        None,
        Status.DONE,
        num_examples=_read_required_number(metrics, (weighted_by_key,)),
        test_loss=math.nan if loss is None else loss,
        test_accuracy=math.nan if accuracy is None else accuracy,
    )


def _check_one_client(results: Sequence[ClientResult]) -> None:
    if len(results) != 1:
        raise ProtocolMismatchError(
            f"its reply is in FedQuorum's protocol, for {len(results)} clients, and not in "
            "Flower's standard form"
        )


def _read_metrics(content: RecordDict) -> Mapping[str, Any]:
    records, arrays = select_records(content, MetricRecord), select_records(content, ArrayRecord)
    if len(records) != 1:
        raise ProtocolError(f"a reply needs exactly one MetricRecord, got {sorted(records)}")
    if len(arrays) > 1:
        raise ProtocolError(f"a reply needs exactly one ArrayRecord, got {sorted(arrays)}")
    (metrics,) = records.values()
    check_names(metrics, "a metric")
    return metrics


def _read_number(metrics: Mapping[str, Any], key: str) -> float | None:
    """Return a number, None if it is missing or a list."""
    value: float | list[float] | None = metrics.get(key)
    return None if isinstance(value, list) else value


def _read_required_number(metrics: Mapping[str, Any], keys: Sequence[str]) -> float:
    """Return the number of the first of these keys, which cannot be a list."""
    key = next((key for key in keys if key in metrics), None)
    if key is None:
        looked_for = " or ".join(f"'{key}'" for key in keys)
        found_keys = ", ".join(f"'{key}'" for key in sorted(metrics)) or "no metrics"
        raise ProtocolError(
            f"{looked_for} is missing in the metrics{FOUND_KEYS_PREFIX}{found_keys}"
        )
    value: float | list[float] = metrics[key]
    if isinstance(value, list):
        raise ProtocolError(f"'{key}' must be a single number, got a list")
    return value
