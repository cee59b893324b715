"""Encode and decode replies: a node's message, with one result for each of its clients."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from ...errors import ProtocolError
from ...metrics.calibration import INVALID_BINS, are_valid_bins
from ...records.client_names import MAX_NAMED_CLIENTS
from ...rules.decisions import EvaluationSums
from ...rules.equality import nan_equals_nan
from ...rules.types import Objective
from ...sanitize import MAX_REASON_LENGTH, sanitize
from ...server.exact_sum import BinnedSum, PartialSums
from .arrays import (
    NamedArrays,
    check_names,
    drop_arrays,
    encode_arrays,
    select_records,
    view_arrays,
)
from .keys import (
    ABSENT_PREFIX,
    ARRAYS,
    BINS,
    CALIBRATION,
    CALIBRATION_METRICS,
    CLIENT_ID,
    EVALUATE_METRICS,
    FAILURES,
    GLOBAL_ACCURACY,
    GLOBAL_LOSS,
    LOW_SUM,
    METRICS,
    NAME,
    NAMES,
    PROTOCOL_KEY,
    REASON,
    RESPONSE_TIMES,
    SCALE,
    SECONDS,
    STATUS,
    SUM,
    SUM_BINS,
    TRAIN_METRICS,
)
from .version import PROTOCOL_VERSION, check_reply


class Status(IntEnum):
    """The outcome of one client's part of a request, as sent over the wire."""

    DONE = 0
    DECLINED = 1
    UNAVAILABLE = 2
    FAILED = 3
    REJECTED = 4


@dataclass(frozen=True, slots=True)
class ClientResult:
    """One client's part of a reply.

    Parameters
    ----------
    client : int, optional
        The client's id; None if the reply lacks it (a ClientApp that is not ours).
    status : Status
    reason : str, optional
        The reason why the client failed or was rejected.
    """

    client: int | None
    status: Status
    reason: str | None = field(default=None, kw_only=True)


@nan_equals_nan
@dataclass(frozen=True, slots=True)
class TrainResult(ClientResult):
    """One client's result of a train request. It has only a status unless the client trained.

    The numbers are not checked here and may be anything; ``fedquorum.flower.validation`` checks
    them. A number that the result lacks is None.

    Parameters
    ----------
    num_examples : float, optional
        Number of training examples.
    loss, accuracy : float, optional
        Loss and accuracy of the model received, on the client's training split.
    norm_bit : float, optional
        Whether the client clipped its update, for Flower's adaptive clipping.
    arrays : dict of array, optional
        The client's model; None unless it trained and sends the model.
    seconds : float, optional
        The client's response time in simulated seconds, for any status.
    """

    num_examples: float | None = field(default=None, kw_only=True)
    loss: float | None = field(default=None, kw_only=True)
    accuracy: float | None = field(default=None, kw_only=True)
    norm_bit: float | None = field(default=None, kw_only=True)
    arrays: Mapping[str, NDArray[Any]] | None = field(default=None, kw_only=True)
    seconds: float | None = field(default=None, kw_only=True)

    @property
    def has_clip_indicator(self) -> bool:
        """Whether ``norm_bit`` is 0 or 1."""
        return self.norm_bit in {0, 1}


@nan_equals_nan
@dataclass(frozen=True, slots=True)
class EvaluateResult(ClientResult):
    """One client's evaluation on its training split, its test and validation splits, or all.

    The numbers are not checked here. A missing number is NaN, except ``num_examples``, which every
    evaluation needs: it is None. A missing calibration is empty; see
    ``fedquorum.metrics.calibration``.
    """

    num_examples: float | None = field(default=None, kw_only=True)
    loss: float = field(default=math.nan, kw_only=True)
    accuracy: float = field(default=math.nan, kw_only=True)
    test_num_examples: float = field(default=math.nan, kw_only=True)
    test_loss: float = field(default=math.nan, kw_only=True)
    test_accuracy: float = field(default=math.nan, kw_only=True)
    test_metric: float = field(default=math.nan, kw_only=True)
    test_r2: float = field(default=math.nan, kw_only=True)
    test_average_precision: float = field(default=math.nan, kw_only=True)
    validation_num_examples: float = field(default=math.nan, kw_only=True)
    validation_loss: float = field(default=math.nan, kw_only=True)
    validation_accuracy: float = field(default=math.nan, kw_only=True)
    validation_metric: float = field(default=math.nan, kw_only=True)
    validation_r2: float = field(default=math.nan, kw_only=True)
    validation_average_precision: float = field(default=math.nan, kw_only=True)
    test_calibration: bytes = field(default=b"", kw_only=True)
    validation_calibration: bytes = field(default=b"", kw_only=True)


ResultT = TypeVar("ResultT", bound=ClientResult)

METRIC_KEYS: Mapping[type[ClientResult], Mapping[str, str]] = {
    TrainResult: TRAIN_METRICS,
    EvaluateResult: EVALUATE_METRICS,
}

_KEYS: Mapping[type[ClientResult], Mapping[str, str]] = {
    TrainResult: TRAIN_METRICS,
    EvaluateResult: {**EVALUATE_METRICS, **CALIBRATION_METRICS},
}
"""The fields of a result that a client reports, and their keys."""


def to_metrics(result: ClientResult) -> dict[str, Any]:
    """Return the numbers in a result, by their keys, and its status unless it is done.

    Each number is a float. In a TrainResult NaN is a number, such as the loss of a diverged model,
    which the server validates; in an EvaluateResult it stands for a missing number.
    """
    if result.status is not Status.DONE:
        return {STATUS: int(result.status)}
    numbers = {key: getattr(result, name) for name, key in METRIC_KEYS[type(result)].items()}
    return {
        key: float(value) for key, value in numbers.items() if not _is_missing(value, type(result))
    }


def _is_missing(value: float | bytes | None, kind: type[ClientResult]) -> bool:
    """Say whether a field of a result is missing; in an evaluation, NaN is missing."""
    if value is None or value == b"":
        return True
    return kind is EvaluateResult and isinstance(value, float) and math.isnan(value)


# --- the node's side -----------------------------------------------------------------------


def encode_hosted_clients(clients: Sequence[int]) -> RecordDict:
    """Return the reply to a query: the ids of the clients on this node."""
    metrics: dict[str, Any] = {PROTOCOL_KEY: PROTOCOL_VERSION, CLIENT_ID: list(clients)}
    return RecordDict({METRICS: MetricRecord(metrics)})


def add_client_names(content: RecordDict, names: Mapping[int, str]) -> RecordDict:
    """Return the reply to a query with names of the clients on this node."""
    record: dict[str, Any] = {CLIENT_ID: [*names], NAME: [*names.values()]}
    return RecordDict({**content, NAMES: ConfigRecord(record)})


def add_scale(content: RecordDict, scale: ConfigRecord) -> RecordDict:
    """Return the reply to a query with the scale of the one client on this node.

    The library passes it on; the app that reads it checks it.
    """
    return RecordDict({**content, SCALE: scale})


def encode_train_reply(
    results: Sequence[TrainResult],
    stacked: Mapping[str, NDArray[Any]] | None = None,
    weighted_sum: PartialSums | None = None,
) -> RecordDict:
    """Return a node's reply: scalars for one client, lists and stacked arrays for several.

    The arrays are those of the results, or ``stacked`` for the clients that trained, in their
    order, or only ``weighted_sum``.
    """
    content = _encode_reply(results)
    single = len(results) == 1
    trained = [result.arrays for result in results if result.arrays is not None]
    if stacked is not None:
        single_array = {name: array[0] for name, array in stacked.items()} if single else stacked
        content[ARRAYS] = encode_arrays(single_array)
    elif trained:
        content[ARRAYS] = encode_arrays(
            trained[0]
            if single
            else {name: np.stack([arrays[name] for arrays in trained]) for name in trained[0]}
        )
    if weighted_sum is not None:
        content[SUM] = encode_arrays({name: one.high for name, one in weighted_sum.items()})
        content[LOW_SUM] = encode_arrays({name: one.low for name, one in weighted_sum.items()})
        bins = [one.index for one in weighted_sum.values()]
        content[SUM_BINS] = ConfigRecord({BINS: bins})
    return content


def encode_evaluate_reply(results: Sequence[EvaluateResult]) -> RecordDict:
    """Return a node's reply: scalars for one client, lists for several.

    Calibration is in a separate record, with a list of bytes even for one client, because a
    MetricRecord has numbers only.
    """
    content = _encode_reply(results)
    done = [result for result in results if result.status is Status.DONE]
    columns: dict[str, Any] = {
        key: [getattr(result, name) for result in done] for name, key in CALIBRATION_METRICS.items()
    }
    reported = {key: values for key, values in columns.items() if any(values)}
    if reported:
        content[CALIBRATION] = ConfigRecord(reported)
    return content


def add_unavailable(
    content: RecordDict, selected: Sequence[int], unavailable: Collection[int]
) -> RecordDict:
    """Return a train reply with added results of the clients that were not available.

    Results are in the order of ``selected``; existing results and further records stay the same.
    Metrics outside the protocol are removed.

    Raises
    ------
    ProtocolError
        If the reply is malformed.
    """
    results = {result.client: result for result in decode_train_reply(content)}
    results |= {k: TrainResult(k, Status.UNAVAILABLE) for k in unavailable}
    merged = encode_train_reply([results[k] for k in selected if k in results])
    further = {k: v for k, v in content.items() if k not in (ARRAYS, METRICS, FAILURES)}
    return RecordDict({**further, **merged})


def add_response_times(content: RecordDict, times: Mapping[int, float]) -> RecordDict:
    """Return a train reply with added response times, by client id."""
    record = ConfigRecord({CLIENT_ID: list(times), SECONDS: [*map(float, times.values())]})
    return RecordDict({**content, RESPONSE_TIMES: record})


def drop_sum(content: RecordDict) -> RecordDict:
    """Return a train reply without any array, and without the bins of its sum."""
    return RecordDict({k: v for k, v in drop_arrays(content).items() if k != SUM_BINS})


def drop_metrics(content: RecordDict, keys: Collection[str]) -> RecordDict:
    """Return a reply without these metrics of any client."""
    metrics = select_records(content, MetricRecord).get(METRICS, MetricRecord())
    removed = {*keys, *(ABSENT_PREFIX + key for key in keys)}
    remaining = MetricRecord({key: value for key, value in metrics.items() if key not in removed})
    others = {name: record for name, record in content.items() if name != CALIBRATION}
    calibration = select_records(content, ConfigRecord).get(CALIBRATION, ConfigRecord())
    left: dict[str, Any] = {k: values for k, values in calibration.items() if k not in removed}
    if left:
        others[CALIBRATION] = ConfigRecord(left)
    return RecordDict({**others, METRICS: remaining})


def _encode_reply(results: Sequence[ClientResult]) -> RecordDict:
    """Return ids, statuses, numbers and failures; a number that no client reports is left out."""
    metrics = _encode_one(results[0]) if len(results) == 1 else _encode_many(results)
    metrics[PROTOCOL_KEY] = PROTOCOL_VERSION
    content = RecordDict({METRICS: MetricRecord(metrics)})
    failed = [result for result in results if result.reason is not None]
    if failed:
        ids = [-1 if result.client is None else result.client for result in failed]
        reasons = [result.reason or "" for result in failed]
        content[FAILURES] = ConfigRecord({CLIENT_ID: ids, REASON: reasons})
    return content


def _encode_one(result: ClientResult) -> dict[str, Any]:
    ids = {} if result.client is None else {CLIENT_ID: result.client}
    return {**ids, STATUS: int(result.status), **to_metrics(result)}


def _encode_many(results: Sequence[ClientResult]) -> dict[str, Any]:
    return {
        CLIENT_ID: [result.client for result in results],
        STATUS: [int(result.status) for result in results],
        **_build_columns([result for result in results if result.status is Status.DONE]),
    }


def _build_columns(results: Sequence[ClientResult]) -> dict[str, list[float] | list[int]]:
    """Return the numbers of results of one kind, one list of floats for each key.

    NaN is the placeholder of a number that a client does not report. If NaN can also be reported, a
    second list marks the placeholders, so that the server reads the same for a client whichever
    other clients are on its node.
    """
    columns: dict[str, list[float] | list[int]] = {}
    kind = type(results[0]) if results else ClientResult
    for name, key in METRIC_KEYS.get(kind, {}).items():
        values = [getattr(result, name) for result in results]
        absent = [_is_missing(value, kind) for value in values]
        if all(absent):
            continue
        columns[key] = [math.nan if value is None else float(value) for value in values]
        if any(absent) and kind is TrainResult:
            columns[ABSENT_PREFIX + key] = [*map(int, absent)]
    return columns


# --- the server's side ---------------------------------------------------------------------


def decode_hosted_clients(content: RecordDict, *, standard: bool = False) -> tuple[int, ...]:
    """Return the client ids in a node's reply to a query.

    Parameters
    ----------
    content : RecordDict
    standard : bool
        Whether the node's ClientApp is written for Flower's own strategies, whose messages have no
        protocol version.

    Raises
    ------
    ProtocolError
        If the node uses another protocol, or names no clients.
    """
    metrics = _read_metrics(content)
    clients = metrics.get(CLIENT_ID)
    if isinstance(clients, int):
        clients = [clients]
    if not isinstance(clients, list) or not all(isinstance(k, int) for k in clients):
        raise ProtocolError(f"the reply to a query must hold '{CLIENT_ID}', whole numbers")
    if not standard:
        check_reply(metrics)
    return tuple(int(k) for k in clients)


def decode_client_names(content: RecordDict) -> dict[int, str]:
    """Return the names in a node's reply to a query; none where they have another form."""
    record: Mapping[str, Any] = select_records(content, ConfigRecord).get(NAMES, {})
    clients, names = record.get(CLIENT_ID), record.get(NAME)
    if not isinstance(clients, list) or not isinstance(names, list) or len(clients) != len(names):
        return {}
    return {
        client: name
        for client, name in zip(clients[:MAX_NAMED_CLIENTS], names, strict=False)
        if isinstance(client, int) and isinstance(name, str)
    }


def find_scale(content: RecordDict) -> ConfigRecord | None:
    """Return the scale in a node's reply to a query, unchecked; None if it has none."""
    return select_records(content, ConfigRecord).get(SCALE)


def decode_train_reply(content: RecordDict) -> list[TrainResult]:
    """Return the results in a node's reply, one for each client. Arrays are views into the reply.

    This function checks only the form; ``fedquorum.flower.validation`` checks the numbers.

    Raises
    ------
    ProtocolError
        If the node uses another protocol, a record is missing, or lengths disagree.
    """
    return _decode_reply(content, TrainResult, _decode_response_times(content))


def decode_evaluate_reply(content: RecordDict) -> list[EvaluateResult]:
    """Return the results in a node's reply, one for each client; see ``decode_train_reply``."""
    return _decode_reply(content, EvaluateResult, {})


def find_unavailable_clients(content: RecordDict) -> frozenset[int]:
    """Return the clients that a node reports as unavailable or failed.

    For a malformed reply the result is empty: decoding the whole reply will refuse it.
    """
    metrics = _read_metrics(content) if METRICS in select_records(content, MetricRecord) else {}
    clients, codes = metrics.get(CLIENT_ID), metrics.get(STATUS)
    if isinstance(clients, int):
        clients, codes = [clients], [codes]
    if not isinstance(clients, list) or not isinstance(codes, list):
        return frozenset()
    absent = (Status.UNAVAILABLE, Status.FAILED)
    return frozenset(int(k) for k, code in zip(clients, codes, strict=False) if code in absent)


def decode_partial_sum(content: RecordDict) -> PartialSums | None:
    """Return the weighted sum of a node's updates, as views; None if the reply has none.

    Raises
    ------
    ProtocolError
        If one of its parts is missing.
    """
    records = select_records(content, ArrayRecord)
    if SUM not in records:
        return None
    high, low = (view_arrays(records.get(key, ArrayRecord())) for key in (SUM, LOW_SUM))
    sent = select_records(content, ConfigRecord).get(SUM_BINS, ConfigRecord()).get(BINS)
    bins = [one for one in sent if isinstance(one, int)] if isinstance(sent, list) else []
    if not isinstance(sent, list) or len(bins) != len(high) or low.keys() != high.keys():
        raise ProtocolError(
            f"'{SUM}' and '{LOW_SUM}' must hold the same arrays, and '{SUM_BINS}' a whole number "
            "for each"
        )
    return {
        name: BinnedSum(index, array, low[name])
        for index, (name, array) in zip(bins, high.items(), strict=True)
    }


def encode_objective(objective: Objective) -> MetricRecord:
    """Return F(w) and its accuracy as the metrics of a round's evaluation in Flower."""
    return MetricRecord({GLOBAL_LOSS: objective.loss, GLOBAL_ACCURACY: objective.accuracy})


def encode_sums(sums: EvaluationSums) -> MetricRecord:
    """Return the means over several clients as the metrics of a round's evaluation in Flower."""
    means = {EVALUATE_METRICS[name]: mean for name, mean in sums.means.items()}
    return MetricRecord({key: mean for key, mean in means.items() if not math.isnan(mean)})


def _decode_reply(
    content: RecordDict, kind: type[ResultT], times: Mapping[int, float]
) -> list[ResultT]:
    """Return the results in a reply; ``times`` has the response times of clients that have one."""
    metrics = _read_metrics(content)
    if metrics.pop(PROTOCOL_KEY, None) != PROTOCOL_VERSION:
        check_reply(_read_metrics(content))
    sent = select_records(content, ArrayRecord).get(ARRAYS)
    arrays = {} if sent is None else view_arrays(sent)
    client, status = metrics.pop(CLIENT_ID, None), metrics.pop(STATUS, None)
    calibration = _read_calibration(content) if kind is EvaluateResult else {}
    if isinstance(client, list):
        reported = {**metrics, **calibration}
        return _decode_many(
            content, kind, client, status, metrics=reported, arrays=arrays, times=times
        )
    if any(isinstance(value, list) for value in (status, *metrics.values())):
        raise ProtocolError(f"'{CLIENT_ID}' is a single number, other metrics are lists")
    code = _decode_status(Status.DONE if status is None else status)
    client_id = None if client is None else _decode_client_id(client)
    reason = None if client_id is None else _decode_failures(content).get(client_id)
    common = _get_common_fields(client_id, reason, times)
    if code is not Status.DONE:
        return [kind(client_id, code, **common)]
    if any(len(values) != 1 for values in calibration.values()):
        raise ProtocolError(f"'{CALIBRATION}' must have one value for one client")
    metrics |= {key: values[0] for key, values in calibration.items()}
    return [_build_result(kind, client_id, metrics, arrays, common)]


def _get_common_fields(
    client: int | None, reason: str | None, times: Mapping[int, float]
) -> dict[str, Any]:
    """Return what a client of any status may tell: a reason, and its response time."""
    if client is None or client not in times:
        return {"reason": reason}
    return {"reason": reason, "seconds": times[client]}


def _read_calibration(content: RecordDict) -> dict[str, list[bytes]]:
    """Return the lists of sums of bins by their keys, one for each client that is done.

    Their values are checked here, for all clients at once, because they are encoded.
    """
    record = select_records(content, ConfigRecord).get(CALIBRATION, ConfigRecord())
    found: dict[str, list[bytes]] = {}
    for key in CALIBRATION_METRICS.values():
        values: Any = record.get(key, [])
        if not isinstance(values, list) or not all(isinstance(one, bytes) for one in values):
            raise ProtocolError(f"'{key}' must be a list of bytes")
        if not are_valid_bins(values):
            raise ProtocolError(f"'{key}' {INVALID_BINS}")
        if values:
            found[key] = values
    return found


def _decode_many(
    content: RecordDict,
    kind: type[ResultT],
    clients: list[Any],
    status: object,
    *,
    metrics: Mapping[str, Any],
    arrays: NamedArrays,
    times: Mapping[int, float],
) -> list[ResultT]:
    if not isinstance(status, list) or len(status) != len(clients):
        raise ProtocolError(f"'{STATUS}' must be a list as long as '{CLIENT_ID}'")
    codes = [_decode_status(code) for code in status]
    count = codes.count(Status.DONE)
    for key, values in metrics.items():
        if not isinstance(values, list) or len(values) != count:
            raise ProtocolError(f"'{key}' must be a list with one value for each of {count}")
    for name, stacked in arrays.items():
        if stacked.ndim == 0 or stacked.shape[0] != count:
            raise ProtocolError(f"array '{name}' must have a leading axis of length {count}")
    reasons = _decode_failures(content)
    reported = {key: metrics[key] for key in _KEYS[kind].values() if key in metrics}
    absent = {key: _find_missing(metrics, key) for key in reported}
    results, index = [], 0
    for k, code in zip(map(_decode_client_id, clients), codes, strict=True):
        common = _get_common_fields(k, reasons.get(k), times)
        if code is not Status.DONE:
            results.append(kind(k, code, **common))
            continue
        numbers = {
            key: values[index] for key, values in reported.items() if index not in absent[key]
        }
        model = {name: array[index] for name, array in arrays.items()}
        results.append(_build_result(kind, k, numbers, model, common))
        index += 1
    return results


def _find_missing(metrics: Mapping[str, Any], key: str) -> frozenset[int]:
    """Return the indices in a list at which a client does not report the number."""
    marks = metrics.get(ABSENT_PREFIX + key, [])
    if not all(mark in (0, 1) for mark in marks):
        raise ProtocolError(f"'{ABSENT_PREFIX + key}' must have 0 or 1 for each client")
    return frozenset(index for index, mark in enumerate(marks) if mark)


def _build_result(
    kind: type[ResultT],
    client: int | None,
    metrics: Mapping[str, Any],
    arrays: NamedArrays,
    common: Mapping[str, Any],
) -> ResultT:
    """Return the result of a client that is done, with the fields that it reports."""
    reported: dict[str, Any] = {
        name: metrics[key]
        for name, key in _KEYS[kind].items()
        if key in metrics and not _is_missing(metrics[key], kind)
    }
    if kind is TrainResult and arrays:
        reported["arrays"] = arrays
    return kind(client, Status.DONE, **common, **reported)


def _read_metrics(content: RecordDict) -> dict[str, Any]:
    reported = select_records(content, MetricRecord).get(METRICS)
    if reported is None:
        raise ProtocolError(f"a reply needs the record '{METRICS}'")
    metrics = dict(reported)
    check_names(metrics, "a metric")
    return metrics


_STATUSES = {int(status): status for status in Status}


def _decode_status(code: float) -> Status:
    if not isinstance(code, int) or code not in _STATUSES:
        raise ProtocolError(f"status {code!r} is none of {list(_STATUSES)}")
    return _STATUSES[code]


def _decode_client_id(value: float) -> int:
    if not isinstance(value, int):
        raise ProtocolError(f"'{CLIENT_ID}' must be a whole number, got {value!r}")
    return value


def _decode_failures(content: RecordDict) -> dict[int, str]:
    return {
        k: sanitize(reason, MAX_REASON_LENGTH)
        for k, reason in _read_by_client(content, FAILURES, REASON).items()
    }


def _decode_response_times(content: RecordDict) -> dict[int, float]:
    times = _read_by_client(content, RESPONSE_TIMES, SECONDS)
    if not all(isinstance(seconds, float) for seconds in times.values()):
        raise ProtocolError(f"'{SECONDS}' must be numbers")
    return times


def _read_by_client(content: RecordDict, name: str, key: str) -> dict[int, Any]:
    """Return the values of an optional record by client id."""
    found = select_records(content, ConfigRecord).get(name)
    if found is None:
        return {}
    record: dict[str, Any] = dict(found)
    clients, values = record.get(CLIENT_ID), record.get(key)
    if not isinstance(clients, list) or not isinstance(values, list):
        raise ProtocolError(f"'{name}' must hold the lists '{CLIENT_ID}' and '{key}'")
    return dict(zip(clients, values, strict=False))
