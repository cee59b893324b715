"""The protocol: what server and clients say to each other, as Flower records.

The only module that knows record names and keys. Everything else works with the dataclasses
below. Arrays keep the names of the model's ``state_dict``.

Query (which clients a node hosts)
    request: empty; reply: ``metrics`` {client-id: list}, or a single number.
Train
    request: ``arrays`` + ``config`` {server-round, client-id: list, priority: list,
    global-loss, global-accuracy, epsilon, criterion}; no epsilon means no gate.
    Reply of one client, Flower's standard form: ``arrays`` + ``metrics`` {client-id, status,
    num-examples, loss, accuracy}. Reply of a node asked for several clients: the same keys with
    lists; client-id and status run over all the clients asked, the rest over those that
    trained, and the arrays are stacked on a leading axis over those that trained.
    A silent or unavailable client's part is its id and its status, nothing else.
    ``measure`` False asks a client not to measure what it received: no loss, no accuracy.
    With ``proportion``: list (and ``by-data``) in the request a node may add the updates up
    itself: the reply then has ``weighted-sum``, sum_k a_k (x_k - x) in float64 over those that
    trained, a_k being the client's proportion, times its num-examples if ``by-data``; instead
    of ``arrays``. A client whose update is not finite is not in it: its status is REJECTED.
    With ``own-model`` in the request (also to evaluate) each client works on its own model, the
    arrays being where it starts from, and replies without arrays.
Evaluate
    request: ``arrays`` + ``config`` {server-round, client-id: list, measure-train: list,
    measure-test: list}; reply: ``metrics`` as above with num-examples, loss, accuracy (training
    part), test-num-examples, test-loss, test-accuracy and, where another metric is
    configured, test-metric (test part), NaN where not measured or not defined.
A client that failed has its reason in ``failures`` {client-id: list, reason: list}.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from strategies.types import Call, GlobalMeasure, Proportions

ARRAYS, CONFIG, METRICS, FAILURES = "arrays", "config", "metrics", "failures"
SUM = "weighted-sum"
NORM_BIT = "norm_bit"  # Flower's: whether a client's update was clipped

MAX_REASON = 500

NamedArrays = dict[str, NDArray[Any]]


class ProtocolError(ValueError):
    """A message does not follow the protocol; the text says what is wrong with it."""


class Status(IntEnum):
    """What became of one client's part of a request, as sent over the wire."""

    DONE = 0
    SILENT = 1
    UNAVAILABLE = 2
    FAILED = 3
    REJECTED = 4


@dataclass(frozen=True)
class TrainRequest:
    """What a node is told for one round; ``call.clients`` are those asked at this node."""

    server_round: int
    call: Call
    priority: tuple[bool, ...]
    measure: GlobalMeasure
    proportions: Proportions | None = None


@dataclass(frozen=True)
class EvaluateRequest:
    """What a node is asked to measure; both parts run over ``clients``."""

    server_round: int
    clients: tuple[int, ...]
    measure_train: tuple[bool, ...]
    measure_test: tuple[bool, ...]
    own_model: bool = False


@dataclass(frozen=True)
class ClientReply:
    """One client's part of a reply.

    ``metrics`` holds plain numbers by their wire names; ``arrays`` is None unless it trained.
    ``client`` is None when the reply does not say (a ClientApp that is not ours).
    """

    client: int | None
    status: Status
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: NamedArrays | None = None
    reason: str | None = None


def encode_arrays(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the record of named arrays."""
    return ArrayRecord({name: Array(np.asarray(a, order="C")) for name, a in arrays.items()})


def decode_arrays(record: ArrayRecord) -> NamedArrays:
    """Return the arrays of a record; the caller owns the copies."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (ValueError, TypeError, EOFError) as error:
        raise ProtocolError(f"arrays cannot be read: {error}") from error


def view_arrays(record: ArrayRecord) -> NamedArrays:
    """Return the arrays of a record without copying them, read-only.

    The server reads the updates of all clients in place: beyond the replies themselves it needs
    no memory that grows with their number.
    """
    return {name: _view(name, array) for name, array in record.items()}


def _view(name: str, array: Array) -> NDArray[Any]:
    if array.stype != "numpy.ndarray":
        raise ProtocolError(f"array '{name}' is serialised as {array.stype!r}, not numpy.ndarray")
    try:
        return _read(array.data)
    except Exception as error:  # NumPy's reader of headers raises many things
        raise ProtocolError(f"array '{name}' cannot be read: {error}") from error


def _read(data: bytes) -> NDArray[Any]:
    head = BytesIO(data)
    version = npy.read_magic(head)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran_order, dtype = read_header(head)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(data) - head.tell() != count * dtype.itemsize:
        raise ValueError(f"it is not as long as its shape {shape} says")
    flat = np.frombuffer(data, dtype=dtype, count=count, offset=head.tell())
    return flat.reshape(shape, order="F" if fortran_order else "C")


def count_bytes(content: RecordDict) -> int:
    """Return the payload of a message in bytes: arrays, metrics and config."""
    return sum(
        _config_bytes(record) if isinstance(record, ConfigRecord) else record.count_bytes()
        for record in content.values()
    )


def _config_bytes(record: ConfigRecord) -> int:
    """Count as Flower does, whose own count raises for empty lists and empty texts."""

    def scalar(value: object) -> int:
        if isinstance(value, str | bytes):
            return len(value)
        return 1 if isinstance(value, bool) else 8

    return sum(
        len(key) + sum(map(scalar, value if isinstance(value, list) else [value]))
        for key, value in record.items()
    )


# --- requests ----------------------------------------------------------------------------


def encode_train_request(arrays: ArrayRecord, request: TrainRequest) -> RecordDict:
    """Return the content of a train message."""
    config: dict[str, Any] = {
        "server-round": request.server_round,
        "client-id": list(request.call.clients),
        "priority": list(request.priority),
        "global-loss": request.measure.loss,
        "global-accuracy": request.measure.accuracy,
    }
    if request.call.epsilon is not None:
        config |= {"epsilon": request.call.epsilon, "criterion": request.call.criterion}
    if request.call.own_model:
        config["own-model"] = True
    if not request.call.measure:
        config["measure"] = False
    if request.proportions is not None and len(request.call.clients) > 1:
        own = request.proportions.of_client
        config["proportion"] = [float(own.get(k, 1.0)) for k in request.call.clients]
        config["by-data"] = request.proportions.by_data
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(config)})


def encode_evaluate_request(arrays: ArrayRecord, request: EvaluateRequest) -> RecordDict:
    """Return the content of an evaluate message."""
    config: dict[str, Any] = {
        "server-round": request.server_round,
        "client-id": list(request.clients),
        "measure-train": list(request.measure_train),
        "measure-test": list(request.measure_test),
    }
    if request.own_model:
        config["own-model"] = True
    return RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(config)})


def decode_request(
    content: RecordDict, hosted: Sequence[int]
) -> tuple[NamedArrays, dict[int, dict[str, Any]]]:
    """Return the model and, for each client asked, the config that its NumPyClient gets.

    Lists that run over the clients become one value each. A request that names no clients
    (from another strategy than ours) is for all that the node hosts.

    Raises
    ------
    ProtocolError
        If records are missing, lists disagree, or a client is not ``hosted`` here.
    """
    if ARRAYS not in content.array_records or CONFIG not in content.config_records:
        raise ProtocolError(f"a request needs the records '{ARRAYS}' and '{CONFIG}'")
    config: dict[str, Any] = dict(content.config_records[CONFIG])
    clients = _asked(config.pop("client-id", None), hosted)
    per_client: dict[int, dict[str, Any]] = {}
    for position, client in enumerate(clients):
        per_client[client] = {
            key: value[position] if isinstance(value, list) else value
            for key, value in config.items()
        }
    return decode_arrays(content.array_records[ARRAYS]), per_client


def decode_asked(content: RecordDict, hosted: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """Return the round of a train request, and which of the ``hosted`` clients it asks.

    Raises
    ------
    ProtocolError
        If there is no round, or a client is not ``hosted`` here.
    """
    config: dict[str, Any] = dict(content.config_records.get(CONFIG, {}))
    server_round = config.get("server-round")
    if not isinstance(server_round, int) or server_round < 1:
        raise ProtocolError(
            f"'server-round' must be a whole number >= 1 in '{CONFIG}', got {server_round!r}"
        )
    return server_round, _asked(config.get("client-id"), hosted)


def select_clients(content: RecordDict, asked: Sequence[int], chosen: Sequence[int]) -> RecordDict:
    """Return a request for ``chosen`` clients alone, out of those ``asked`` in its order.

    Of the lists that run over the clients it has the chosen ones' values; all else is the same.
    """
    places = [asked.index(k) for k in chosen]
    config: dict[str, Any] = {
        key: [value[i] for i in places] if isinstance(value, list) else value
        for key, value in content.config_records[CONFIG].items()
    }
    return RecordDict({**content, CONFIG: ConfigRecord(config | {"client-id": list(chosen)})})


def _asked(named: Any, hosted: Sequence[int]) -> tuple[int, ...]:
    clients = tuple(hosted) if named is None else tuple(int(k) for k in named)
    if foreign := sorted(set(clients) - set(hosted)):
        raise ProtocolError(f"clients {foreign} are not on this node, which hosts {list(hosted)}")
    return clients


# --- ClientApps written for Flower's own strategies ---------------------------------------


def encode_plain_request(
    arrays: ArrayRecord, server_round: int, arrays_key: str, config_key: str
) -> RecordDict:
    """Return a train or evaluate message as Flower's own strategies send it."""
    return RecordDict(
        {arrays_key: arrays, config_key: ConfigRecord({"server-round": server_round})}
    )


def decode_plain_reply(content: RecordDict, keys: Mapping[str, str]) -> ClientReply:
    """Return what a reply to Flower's own strategies says, by our names.

    As there, the records may have any names: there is one MetricRecord and, where the model was
    trained, one ArrayRecord.

    Parameters
    ----------
    content : RecordDict
        The reply.
    keys : mapping of str to str
        Our name of each metric that is read, by its name in the reply. Others are left alone.

    Raises
    ------
    ProtocolError
        If there is another number of records, or a metric that is read is a list.
    """
    if len(content.metric_records) != 1:
        raise ProtocolError(
            f"a reply needs exactly one MetricRecord, got {sorted(content.metric_records)}"
        )
    if len(content.array_records) > 1:
        raise ProtocolError(
            f"a reply needs exactly one ArrayRecord, got {sorted(content.array_records)}"
        )
    (record,) = content.metric_records.values()
    metrics: dict[str, float] = {}
    for key, name in keys.items():
        value = record.get(key)
        if isinstance(value, list):
            raise ProtocolError(f"'{key}' must be a single number, got a list")
        if value is not None:
            metrics[name] = value
    arrays = [view_arrays(own) for own in content.array_records.values()]
    return ClientReply(None, Status.DONE, metrics, arrays[0] if arrays else None)


# --- replies -----------------------------------------------------------------------------


def encode_hosted_clients(clients: Sequence[int]) -> RecordDict:
    """Return the reply to a query: the ids of the clients on this node."""
    return RecordDict({METRICS: MetricRecord({"client-id": list(clients)})})


def decode_hosted_clients(content: RecordDict) -> tuple[int, ...]:
    """Return the client ids that a node names in its reply to a query."""
    clients = _metrics(content).get("client-id")
    if isinstance(clients, int):
        clients = [clients]
    if not isinstance(clients, list) or not all(isinstance(k, int) for k in clients):
        raise ProtocolError("the reply to a query must hold 'client-id', whole numbers")
    return tuple(int(k) for k in clients)


def encode_replies(
    replies: Sequence[ClientReply],
    stacked: Mapping[str, NDArray[Any]] | None = None,
    weighted_sum: Mapping[str, NDArray[Any]] | None = None,
) -> RecordDict:
    """Return a node's reply: scalars for one client, lists and stacked arrays for several.

    The arrays are those of the replies, or ``stacked`` of those that are done, in their order,
    or ``weighted_sum`` alone.
    """
    done = [reply for reply in replies if reply.status is Status.DONE]
    metrics: dict[str, Any] = {
        "client-id": [reply.client for reply in replies],
        "status": [int(reply.status) for reply in replies],
    }
    for key in sorted({key for reply in done for key in reply.metrics}):
        metrics[key] = [reply.metrics.get(key, math.nan) for reply in done]
    trained = [reply.arrays for reply in done if reply.arrays is not None]
    single = len(replies) == 1
    if single:
        metrics = {key: values[0] for key, values in metrics.items()}
    content = RecordDict({METRICS: MetricRecord(metrics)})
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
        content[SUM] = encode_arrays(weighted_sum)
    failed = [reply for reply in replies if reply.reason is not None]
    if failed:
        content[FAILURES] = ConfigRecord(
            {
                "client-id": [reply.client if reply.client is not None else -1 for reply in failed],
                "reason": [reply.reason or "" for reply in failed],
            }
        )
    return content


def decode_replies(content: RecordDict) -> list[ClientReply]:
    """Return the parts of a node's reply, one per client it speaks of; arrays are views into it.

    Only the form is checked here. Whether the numbers make sense is
    ``strategies.validation``'s question.

    Raises
    ------
    ProtocolError
        If a record is missing or lengths disagree.
    """
    metrics = _metrics(content)
    arrays = view_arrays(content.array_records[ARRAYS]) if ARRAYS in content.array_records else {}
    client = metrics.pop("client-id", None)
    status = metrics.pop("status", None)
    if not isinstance(client, list):
        if any(isinstance(value, list) for value in (status, *metrics.values())):
            raise ProtocolError("'client-id' is a single number, other metrics are lists")
        code = _status(Status.DONE if status is None else status)
        return [
            ClientReply(
                client=None if client is None else _client_id(client),
                status=code,
                metrics=metrics if code is Status.DONE else {},
                arrays=arrays if code is Status.DONE and arrays else None,
                reason=None if client is None else _failures(content).get(_client_id(client)),
            )
        ]
    if not isinstance(status, list) or len(status) != len(client):
        raise ProtocolError("'status' must be a list as long as 'client-id'")
    codes = [_status(code) for code in status]
    count = codes.count(Status.DONE)
    for key, values in metrics.items():
        if not isinstance(values, list) or len(values) != count:
            raise ProtocolError(f"'{key}' must be a list with one value for each of {count}")
    for name, stacked in arrays.items():
        if stacked.ndim == 0 or stacked.shape[0] != count:
            raise ProtocolError(f"array '{name}' must have a leading axis of length {count}")
    reasons = _failures(content)
    replies, position = [], 0
    for k, code in zip(client, codes, strict=True):
        if code is not Status.DONE:
            replies.append(ClientReply(_client_id(k), code, reason=reasons.get(_client_id(k))))
            continue
        replies.append(
            ClientReply(
                client=_client_id(k),
                status=code,
                metrics={key: values[position] for key, values in metrics.items()},
                arrays={name: a[position] for name, a in arrays.items()} if arrays else None,
            )
        )
        position += 1
    return replies


def decode_sum(content: RecordDict) -> NamedArrays | None:
    """Return the weighted sum of a node's updates, as views, None if it sent none."""
    return view_arrays(content.array_records[SUM]) if SUM in content.array_records else None


def with_unavailable(
    content: RecordDict, asked: Sequence[int], unavailable: Collection[int]
) -> RecordDict:
    """Return a reply that also has the parts of the clients that were not available.

    Parts are in the order ``asked``, each client's own as it was; further records stay.

    Raises
    ------
    ProtocolError
        If the reply is malformed.
    """
    parts = {part.client: part for part in decode_replies(content)}
    parts |= {k: ClientReply(k, Status.UNAVAILABLE) for k in unavailable}
    merged = encode_replies([parts[k] for k in asked if k in parts])
    further = {k: v for k, v in content.items() if k not in (ARRAYS, METRICS, FAILURES)}
    return RecordDict({**further, **merged})


def _metrics(content: RecordDict) -> dict[str, Any]:
    if METRICS not in content.metric_records:
        raise ProtocolError(f"a reply needs the record '{METRICS}'")
    return dict(content.metric_records[METRICS])


def _status(code: float) -> Status:
    known = [int(s) for s in Status]
    if not isinstance(code, int) or code not in known:
        raise ProtocolError(f"status {code!r} is none of {known}")
    return Status(code)


def _client_id(value: float) -> int:
    if not isinstance(value, int):
        raise ProtocolError(f"'client-id' must be a whole number, got {value!r}")
    return value


def shortened(reason: object) -> str:
    """Return why a client failed, as its node says it: one line, not longer than a few."""
    text = " ".join(str(reason).split())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


def _failures(content: RecordDict) -> dict[int, str]:
    if FAILURES not in content.config_records:
        return {}
    record: dict[str, Any] = dict(content.config_records[FAILURES])
    clients, reasons = record.get("client-id"), record.get("reason")
    if not isinstance(clients, list) or not isinstance(reasons, list):
        raise ProtocolError(f"'{FAILURES}' must hold the lists 'client-id' and 'reason'")
    return {k: shortened(reason) for k, reason in zip(clients, reasons, strict=False)}
