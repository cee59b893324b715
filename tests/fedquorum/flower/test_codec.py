"""The protocol: messages decode to what was encoded, and errors name the problem."""

import gc
import math
import re
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ProtocolError
from fedquorum.flower import codec
from fedquorum.flower.codec import (
    PROTOCOL_VERSION,
    ClientResult,
    EvaluateRequest,
    EvaluateResult,
    EvaluateTask,
    NamedArrays,
    NodeStartModels,
    Status,
    TrainRequest,
    TrainResult,
    TrainTask,
    add_response_times,
    add_unavailable,
    add_user_config,
    build_evaluate_task,
    build_train_task,
    check_query,
    decode_arrays,
    decode_evaluate_reply,
    decode_evaluate_request,
    decode_hosted_clients,
    decode_partial_sum,
    decode_selected_clients,
    decode_standard_train_reply,
    decode_start_models,
    decode_sum_bins,
    decode_train_reply,
    decode_train_request,
    drop_metrics,
    encode_arrays,
    encode_evaluate_reply,
    encode_evaluate_request,
    encode_hosted_clients,
    encode_objective,
    encode_query,
    encode_standard_query,
    encode_standard_request,
    encode_train_reply,
    encode_train_request,
    filter_clients,
    find_unavailable_clients,
    has_protocol_version,
    keys,
    to_metrics,
    view_arrays,
)
from fedquorum.flower.codec.arrays import check_names
from fedquorum.rules.types import KnownWeights, Objective, RoundPlan
from fedquorum.server.exact_sum import ExponentBins, compute_bin_width
from fedquorum.server.fixed_bins import FixedBins
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from tests.builders_calibration import make_full_bin

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, dtype=np.float32)}
TRAIN = TrainRequest(
    3, RoundPlan((4, 6), epsilon=0.2, criterion="accuracy"), (True, False), Objective(1.5, 0.25)
)


def make_shifted_result(client: int, shift: float) -> TrainResult:
    return TrainResult(
        client,
        Status.DONE,
        num_examples=10 + client,
        loss=0.5 * client,
        accuracy=0.1,
        arrays={name: array + np.float32(shift) for name, array in MODEL.items()},
    )


def assert_same(got: Sequence[TrainResult], expected: Sequence[TrainResult]) -> None:
    """Compare results, and their arrays to the last bit."""
    assert [replace(result, arrays=None) for result in got] == [
        replace(result, arrays=None) for result in expected
    ]
    for result, other in zip(got, expected, strict=True):
        assert (result.arrays is None) == (other.arrays is None)
        for name, array in (other.arrays or {}).items():
            assert result.arrays is not None
            np.testing.assert_array_equal(result.arrays[name], array, strict=True)


# --- requests ------------------------------------------------------------------------------


def test_a_train_request_gives_each_client_its_own_task() -> None:
    """Each client gets its value of a list; other values are the same for all."""
    content = encode_train_request(encode_arrays(MODEL), TRAIN)
    arrays, tasks = decode_train_request(content, hosted=(0, 2, 4, 6))
    np.testing.assert_array_equal(arrays["w"], MODEL["w"])
    first = TrainTask(
        client=4,
        server_round=3,
        priority=True,
        objective=Objective(1.5, 0.25),
        epsilon=0.2,
        criterion="accuracy",
    )
    assert tasks == (first, replace(first, client=6, priority=False))


def make_start_request(*indices: int) -> TrainRequest:
    """Return a request to clients 0, 1, ... that start from models 0.0, 1.0, ... by index."""
    models = tuple(encode_arrays({"w": np.full(2, float(i))}) for i in range(max(indices) + 1))
    call = RoundPlan(tuple(range(len(indices))), requests_loss=False)
    starts = NodeStartModels(models, indices)
    return replace(TRAIN, plan=call, priority=(True,) * len(indices), start_models=starts)


def test_clients_start_from_the_models_in_the_request() -> None:
    """Each model is sent once, with its index by client; a filtered request works as well."""
    content = encode_train_request(encode_arrays(MODEL), make_start_request(0, 2, 1, 2))
    assert {"start-model-0", "start-model-1", "start-model-2", "config"} == content.keys()
    chosen = filter_clients(content, (0, 1, 2, 3), (1, 2))
    for request, hosted in (
        (content, {0: 0.0, 1: 2.0, 2: 1.0, 3: 2.0}),
        (chosen, {1: 2.0, 2: 1.0}),
    ):
        first, tasks = decode_train_request(request, range(4))
        others = decode_start_models(request, tasks)
        found = {task.client: others.get(task.client, first)["w"].tolist() for task in tasks}
        assert found == {client: [number] * 2 for client, number in hosted.items()}


def test_one_start_model_for_all_clients_makes_a_usual_request() -> None:
    """The request has the same bytes as if that model had been broadcast."""
    request = make_start_request(0, 0)
    assert request.start_models is not None
    (model,) = request.start_models.models
    plain = encode_train_request(model, replace(request, start_models=None))
    content = encode_train_request(encode_arrays(MODEL), request)
    assert encode_content(content) == encode_content(plain)
    _, tasks = decode_train_request(content, range(2))
    assert decode_start_models(content, tasks) == {}


def encode_content(content: RecordDict) -> bytes:
    serialized: bytes = recorddict_to_proto(content).SerializeToString(deterministic=True)
    return serialized


def test_a_node_of_an_older_version_refuses_several_starts() -> None:
    """It requires the usual record of the model, which the request lacks."""
    assert "arrays" not in encode_train_request(encode_arrays(MODEL), make_start_request(0, 1))


def test_a_missing_or_summed_start_model_is_refused() -> None:
    """Such requests contradict themselves."""
    request = make_start_request(0, 1)
    content = encode_train_request(encode_arrays(MODEL), request)
    _, tasks = decode_train_request(content, range(2))
    del content["start-model-1"]
    with pytest.raises(ProtocolError, match="the record 'start-model-1' is missing"):
        decode_start_models(content, tasks)
    summed = encode_train_request(
        encode_arrays(MODEL), replace(request, known_weights=KnownWeights())
    )
    with pytest.raises(ProtocolError, match="with 'start-model' no updates are summed"):
        decode_start_models(summed, decode_train_request(summed, range(2))[1])


@pytest.mark.parametrize("epsilon", [None, 0.0, math.inf])
@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize("proportions", [None, KnownWeights({6: 0.5}, by_data=True)])
def test_every_field_of_a_train_request_survives_the_wire(
    epsilon: float | None, measures: bool, proportions: KnownWeights | None
) -> None:
    """Every field of a plan survives, on a node with two clients."""
    call = RoundPlan((4, 6), epsilon=epsilon, requests_loss=measures)
    request = TrainRequest(3, call, (True, False), Objective(1.5, 0.25), proportions)
    _, (first, second) = decode_train_request(
        encode_train_request(ArrayRecord(), request), hosted=(4, 6)
    )
    summed = proportions is not None
    assert first == TrainTask(
        client=4,
        server_round=3,
        priority=True,
        objective=Objective(1.5, 0.25),
        epsilon=epsilon,
        requests_loss=measures,
        known_weight=1.0 if summed else None,
        by_data=summed,
    )
    proportion = 0.5 if summed else None
    assert second == replace(first, client=6, priority=False, known_weight=proportion)
    assert first.has_gate == (epsilon is not None)
    assert first.needs_evaluation == (measures or epsilon is not None)
    assert first.can_be_summed == summed


@pytest.mark.parametrize("by_data", [False, True])
def test_node_and_server_multiply_with_one_factor(by_data: bool) -> None:
    """a_k of a task equals a_k of the known weights: 1 without a proportion, times its data."""
    proportions = KnownWeights({4: 0.3, 6: 2.0}, by_data=by_data)
    request = TrainRequest(1, RoundPlan((4, 6, 8)), (True,) * 3, Objective(1.0, 0.5), proportions)
    _, tasks = decode_train_request(encode_train_request(ArrayRecord(), request), (4, 6, 8))
    factors = [task.compute_numerator(7) for task in tasks]
    assert factors == [proportions.compute_numerator(k, 7) for k in (4, 6, 8)]
    assert factors == ([0.3 * 7, 2.0 * 7, 7.0] if by_data else [0.3, 2.0, 1.0])


def test_one_client_alone_is_not_summed() -> None:
    """Its model is as large as a sum would be."""
    request = TrainRequest(1, RoundPlan((4,)), (True,), Objective(1.0, 0.5), KnownWeights({4: 0.3}))
    _, (task,) = decode_train_request(encode_train_request(ArrayRecord(), request), (4,))
    assert not task.can_be_summed


def test_a_request_without_gate_names_no_epsilon() -> None:
    """FedAvg's clients receive no threshold, so they train."""
    request = TrainRequest(1, RoundPlan((0,)), (True,), Objective(1.0, 0.5))
    _, (task,) = decode_train_request(encode_train_request(ArrayRecord(), request), hosted=(0,))
    assert not task.has_gate


@pytest.mark.parametrize("epochs", [0, 3])
def test_an_evaluate_request(epochs: int) -> None:
    """Each client learns which of its splits to evaluate, and whether to train before that."""
    request = EvaluateRequest(2, (0, 1), (True, False), (True, True), epochs)
    content = encode_evaluate_request(ArrayRecord(), request)
    _, tasks = decode_evaluate_request(content, hosted=(0, 1))
    assert tasks == (
        EvaluateTask(0, 2, train=True, test=True, finetune_epochs=epochs),
        EvaluateTask(1, 2, train=False, test=True, finetune_epochs=epochs),
    )


def test_a_request_of_another_strategy_is_for_all_hosted() -> None:
    """Flower's own strategies send no client ids and no gate: all hosted clients train."""
    content = encode_standard_request(ArrayRecord(), 1, "arrays", "config")
    _, tasks = decode_train_request(content, hosted=(3, 5))
    assert [(task.client, task.server_round) for task in tasks] == [(3, 1), (5, 1)]
    assert not any(task.has_gate or task.can_be_summed for task in tasks)
    _, to_evaluate = decode_evaluate_request(content, hosted=(3, 5))
    assert to_evaluate == (EvaluateTask(3, 1), EvaluateTask(5, 1))


def test_a_request_for_a_foreign_client_is_refused() -> None:
    """A node trains only the clients that it hosts."""
    with pytest.raises(ProtocolError, match=r"clients \[4\] are not on this node"):
        decode_train_request(encode_train_request(ArrayRecord(), TRAIN), hosted=(6,))


def test_lists_that_are_not_as_long_as_the_clients_are_refused() -> None:
    """Such values cannot be attributed to clients."""
    content = encode_train_request(ArrayRecord(), replace(TRAIN, priority=(True,)))
    with pytest.raises(ProtocolError, match=r"'priority' must have one value for each of \[4, 6\]"):
        decode_train_request(content, hosted=(4, 6))


def test_a_config_with_single_values_is_a_task() -> None:
    """A config with one value for each key is a task; without a round it is refused."""
    config: dict[str, Any] = {"server-round": 2, "priority": False, "global-loss": 1.5}
    config |= {"global-accuracy": 0.5, "epsilon": 0.1, "measures-loss": False}
    task = build_train_task(config, 7)
    assert task == TrainTask(
        7, 2, priority=False, objective=Objective(1.5, 0.5), epsilon=0.1, requests_loss=False
    )
    with pytest.raises(ProtocolError, match="'server-round' must be a whole number >= 1"):
        build_train_task({}, 7)
    assert build_evaluate_task({"test-part": False}, 7) == EvaluateTask(7, 0, test=False)


def test_a_users_config_cannot_set_keys_of_the_protocol() -> None:
    """Other keys are added; keys of the protocol can be neither set nor added."""
    content = encode_train_request(ArrayRecord(), replace(TRAIN, plan=RoundPlan((4, 6))))
    before = decode_train_request(content, (4, 6))
    users = {"lr": [0.1, 0.2, 0.3], "epsilon": 0.0, "finetune-epochs": 3, "server-round": 9}
    add_user_config(content, users | {"protocol": 1, "client-id": [4], "by-data": True})
    assert decode_train_request(content, (4, 6)) == before
    assert content.config_records["config"]["lr"] == [0.1, 0.2, 0.3]
    chosen = filter_clients(content, (4, 6), (6,))
    assert chosen.config_records["config"]["lr"] == [0.1, 0.2, 0.3]


def test_a_users_config_in_the_standard_protocol() -> None:
    """The user may set all keys except the round, in a record of any name."""
    content = encode_standard_request(ArrayRecord(), 3, "model", "settings")
    add_user_config(content, {"epsilon": 0.5, "server-round": 9})
    assert dict(content.config_records["settings"]) == {"server-round": 3, "epsilon": 0.5}


# --- the protocol's version ----------------------------------------------------------------


def set_version(number: int | None, content: RecordDict) -> RecordDict:
    """Return a message as if from another version; None removes the version."""
    records = {**content}
    for name in ("config", "metrics"):
        if name in records:
            record: dict[str, Any] = {**records[name]}
            del record["protocol"]
            if number is not None:
                record["protocol"] = number
            records[name] = type(records[name])(record)
    return RecordDict(records)


def test_the_description_of_the_protocol_has_every_key() -> None:
    """Keys of validation splits appear as ``validation-`` and the key of the test split."""
    described = set(re.findall(r"[a-z]+(?:[-_][a-z0-9]+)*-?", codec.__doc__ or ""))
    words = {v for name, v in vars(keys).items() if name.isupper() and isinstance(v, str)}
    assert {"sum-terms", "response-times", "loss"} < words
    words = {re.sub("^validation-.*", "validation-", word.format(0)) for word in words}
    assert words <= described, words - described


def test_every_message_of_the_protocol_carries_its_number() -> None:
    """All requests and replies do; messages of Flower's standard protocol do not."""
    evaluate = EvaluateRequest(1, (0,), (True,), (True,))
    for content in (
        encode_query(),
        encode_train_request(ArrayRecord(), TRAIN),
        encode_evaluate_request(ArrayRecord(), evaluate),
        encode_hosted_clients([0]),
        encode_train_reply([make_shifted_result(0, 1.0), TrainResult(1, Status.DECLINED)]),
        encode_train_reply([TrainResult(1, Status.DECLINED)]),
        encode_evaluate_reply([EvaluateResult(0, Status.DONE, num_examples=1)]),
    ):
        assert has_protocol_version(content)
    standard = RecordDict({"metrics": MetricRecord({"num-examples": 3})})
    for content in (
        encode_standard_query(),
        encode_standard_request(ArrayRecord(), 1, "arrays", "config"),
        standard,
    ):
        assert not has_protocol_version(content)


NEXT = PROTOCOL_VERSION + 1


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (
            None,
            f"this node speaks {PROTOCOL_VERSION}, the server 1: update fedquorum on the server",
        ),
        (1, f"this node speaks {PROTOCOL_VERSION}, the server 1: update fedquorum on the server"),
        (
            NEXT,
            f"this node speaks {PROTOCOL_VERSION}, the server {NEXT}: update fedquorum on the node",
        ),
    ],
)
def test_a_node_refuses_a_server_of_another_version(number: int | None, message: str) -> None:
    """All requests are refused by name; only a query of version 1 looks like a standard one."""
    request = set_version(number, encode_train_request(ArrayRecord(), TRAIN))
    evaluation = EvaluateRequest(1, (4,), (True,), (True,))
    to_evaluate = set_version(number, encode_evaluate_request(ArrayRecord(), evaluation))
    refusing: list[Callable[[], object]] = [
        lambda: decode_train_request(request, (4, 6)),
        lambda: decode_selected_clients(request, (4, 6)),
        lambda: decode_evaluate_request(to_evaluate, (4, 6)),
    ]
    if number is not None:
        refusing.append(lambda: check_query(set_version(number, encode_query())))
    for refuse in refusing:
        with pytest.raises(ProtocolError, match=f"^{message}$"):
            refuse()
    check_query(RecordDict())


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (None, f"this node speaks 1, the server {PROTOCOL_VERSION}: update fedquorum on the node"),
        (1, f"this node speaks 1, the server {PROTOCOL_VERSION}: update fedquorum on the node"),
        (
            NEXT,
            (
                f"this node speaks {NEXT}, the server {PROTOCOL_VERSION}: "
                "update fedquorum on the server"
            ),
        ),
    ],
)
def test_the_server_refuses_a_node_of_another_version(number: int | None, message: str) -> None:
    """All replies are refused by name: to queries, after training and after an evaluation."""
    hosted = set_version(number, encode_hosted_clients([0]))
    with pytest.raises(ProtocolError, match=f"^{message}$"):
        decode_hosted_clients(hosted)
    for results in (
        [make_shifted_result(0, 1.0)],
        [make_shifted_result(0, 1.0), TrainResult(1, Status.DECLINED)],
    ):
        reply = set_version(number, encode_train_reply(results))
        for decode in (decode_train_reply, decode_evaluate_reply):
            with pytest.raises(ProtocolError, match=f"^{message}$"):
                decode(reply)


@pytest.mark.parametrize("number", [1.5, [2]])
def test_an_invalid_version_is_refused(number: Any) -> None:
    """It raises ProtocolError."""
    reply = set_version(number, encode_train_reply([make_shifted_result(0, 1.0)]))
    with pytest.raises(ProtocolError, match="'protocol' must be a whole number, got"):
        decode_train_reply(reply)


# --- replies -------------------------------------------------------------------------------


def test_replies_of_several_clients_survive_the_wire() -> None:
    """Lists and stacked arrays are split again by client."""
    sent = [
        make_shifted_result(0, 1.0),
        TrainResult(2, Status.DECLINED),
        make_shifted_result(4, 2.0),
    ]
    sent.append(TrainResult(6, Status.FAILED, reason="ValueError: no"))
    assert_same(decode_train_reply(encode_train_reply(sent)), sent)


def test_one_client_replies_in_flowers_standard_form() -> None:
    """Scalars and unstacked arrays, so that Flower's own strategies can read it."""
    content = encode_train_reply([make_shifted_result(5, 1.0)])
    assert content.metric_records["metrics"]["num-examples"] == 15
    assert tuple(content.array_records["arrays"]["w"].shape) == (2, 3)
    (result,) = decode_train_reply(content)
    assert result.client == 5
    assert result.loss == 2.5


def test_a_declined_client_sends_only_its_status() -> None:
    """Neither loss, model nor number of examples leaves the device, alone or with others."""
    alone = encode_train_reply([TrainResult(5, Status.DECLINED)])
    assert dict(alone.metric_records["metrics"]) == {
        "client-id": 5,
        "status": 1,
        "protocol": PROTOCOL_VERSION,
    }
    assert list(alone) == ["metrics"]
    among = encode_train_reply([TrainResult(5, Status.DECLINED), make_shifted_result(7, 1.0)])
    metrics = among.metric_records["metrics"]
    assert metrics["client-id"] == [5, 7]
    assert metrics["num-examples"] == [17]
    assert among.array_records["arrays"]["w"].shape[0] == 1


def test_a_standard_reply_without_our_keys_counts_as_trained() -> None:
    """A ClientApp that is not ours sends arrays and num-examples."""
    content = RecordDict(
        {"arrays": encode_arrays(MODEL), "metrics": MetricRecord({"num-examples": 8})}
    )
    (result,) = decode_train_reply(content)
    assert_same([result], [TrainResult(None, Status.DONE, num_examples=8, arrays=MODEL)])


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"client-id": [1, 2], "status": [0]}, "'status' must be a list as long as 'client-id'"),
        ({"client-id": [1], "status": [9]}, "status 9 is none of"),
        ({"client-id": [1, 2], "status": [0, 0], "loss": [1.0]}, "'loss' must be a list with one"),
        ({"client-id": [1, 2], "status": [0, 0], "loss": 1.0}, "'loss' must be a list"),
        ({"client-id": 1, "status": 0, "loss": [1.0, 2.0]}, "'client-id' is a single number"),
    ],
)
def test_malformed_replies_are_named(metrics: dict[str, Any], message: str) -> None:
    """The error names the defect of the reply."""
    with pytest.raises(ProtocolError, match=message):
        decode_train_reply(
            RecordDict({"metrics": MetricRecord(metrics | {"protocol": PROTOCOL_VERSION})})
        )


def test_arrays_must_be_stacked_over_those_that_trained() -> None:
    """A leading axis of another length cannot be attributed to clients."""
    content = encode_train_reply([make_shifted_result(0, 1.0), make_shifted_result(1, 1.0)])
    content["arrays"] = encode_arrays({"w": np.zeros((3, 2, 3), dtype=np.float32)})
    with pytest.raises(ProtocolError, match="array 'w' must have a leading axis of length 2"):
        decode_train_reply(content)


@pytest.mark.parametrize("dtype", ["complex64", "V2", "<U1", "M8[D]"])
def test_arrays_must_hold_real_numbers(dtype: str) -> None:
    """A complex number would lose its imaginary part in a sum; V2 is NumPy's view of bfloat16."""
    record = ArrayRecord({"w": Array(np.zeros(2, dtype=dtype))})
    with pytest.raises(ProtocolError, match=r"^array 'w' has dtype .*, not one of real numbers \("):
        view_arrays(record)


def test_a_reply_without_metrics_is_refused() -> None:
    """The metrics record says whose reply it is."""
    with pytest.raises(ProtocolError, match="needs the record 'metrics'"):
        decode_train_reply(RecordDict())


def test_hosted_clients() -> None:
    """A node's reply to the query has only client ids and the protocol's version."""
    content = encode_hosted_clients([1, 3])
    assert list(content) == ["metrics"]
    assert decode_hosted_clients(content) == (1, 3)
    with pytest.raises(ProtocolError, match="'client-id', whole numbers"):
        decode_hosted_clients(RecordDict({"metrics": MetricRecord({"client-id": [1.5]})}))


def test_unmeasured_values_travel_as_nan() -> None:
    """A metric that one client lacks keeps its index in the list."""
    sent = [
        EvaluateResult(0, Status.DONE, num_examples=5, loss=1.0, test_loss=2.0),
        EvaluateResult(1, Status.DONE, num_examples=6, test_loss=3.0),
    ]
    content = encode_evaluate_reply(sent)
    assert set(content.metric_records["metrics"]) == {
        "protocol",
        "client-id",
        "status",
        "num-examples",
        "loss",
        "test-loss",
    }
    got = decode_evaluate_reply(content)
    assert [to_metrics(result) for result in got] == [to_metrics(result) for result in sent]
    assert math.isnan(got[1].loss)


NUMBERS = {
    TrainResult: ("num_examples", "loss", "accuracy", "norm_bit"),
    EvaluateResult: tuple(keys.EVALUATE_METRICS),
}
CODECS: dict[
    type[ClientResult], tuple[Callable[[Any], RecordDict], Callable[[RecordDict], Any]]
] = {
    TrainResult: (encode_train_reply, decode_train_reply),
    EvaluateResult: (encode_evaluate_reply, decode_evaluate_reply),
}


def send_over_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


def to_comparable(result: ClientResult) -> tuple[Any, ...]:
    """Return all fields of a result as text, so that NaN equals itself."""
    numbers = [getattr(result, name) for name in NUMBERS[type(result)]]
    return (type(result), result.client, result.status, result.reason, *map(repr, numbers))


def convert_to_floats(result: ClientResult) -> ClientResult:
    """Return a result with each of its numbers as a float."""
    reported = {name: getattr(result, name) for name in NUMBERS[type(result)]}
    numbers: dict[str, Any] = {k: None if v is None else float(v) for k, v in reported.items()}
    return replace(result, **numbers)


def list_types(content: RecordDict) -> set[tuple[str, str, type]]:
    """Return the type of every number in a message, by record and key."""
    return {
        (name, key, type(one))
        for name, record in content.items()
        if isinstance(record, MetricRecord | ConfigRecord)
        for key, value in record.items()
        for one in (value if isinstance(value, list) else [value])
    }


def keep_subset(kind: type[Any], client: int, subset: int) -> Any:
    """Return a result with the numbers in this subset, integers among them."""
    values: list[Any] = [7, 0.25, 1, 0, 5, 2.0, 1, 0.5, 3, 1, 0.75, 1.0, 4, 0.625, 1]
    values = values[: len(NUMBERS[kind])]
    named = dict(zip(NUMBERS[kind], values, strict=True))
    reported = {name: value for i, (name, value) in enumerate(named.items()) if subset >> i & 1}
    if reported.get("loss") is not None and client % 3 == 2 and kind is TrainResult:
        reported["loss"] = math.nan
    return kind(client, Status.DONE, **reported)


@pytest.mark.parametrize("kind", [TrainResult, EvaluateResult])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_number_is_the_same_with_any_other_clients_on_the_node(
    kind: type[ClientResult], count: int
) -> None:
    """Any subset of numbers is read as from a node of one client, with one type each."""
    encode, decode = CODECS[kind]
    subsets = 2 ** len(NUMBERS[kind])
    types: dict[tuple[str, str], set[type]] = {}
    for subset in range(0, subsets, 1 if kind is TrainResult else 21):  # 21: every bit changes
        # Beside all numbers, none, the complement, and any other subset.
        beside = (subset, subsets - 1, 0, subsets - 1 - subset, 37 * subset % subsets)
        results = [keep_subset(kind, k, beside[k]) for k in range(count)]
        combined = send_over_wire(encode(results))
        alone = [decode(send_over_wire(encode([result])))[0] for result in results]
        expected = [to_comparable(convert_to_floats(result)) for result in results]
        assert [to_comparable(result) for result in decode(combined)] == expected
        assert [to_comparable(result) for result in alone] == expected
        for name, key, of in list_types(combined):
            types.setdefault((name, key), set()).add(of)
    whole = {"protocol", "client-id", "status"}
    for (_, key), found in types.items():
        assert found == ({int} if key in whole or key.startswith("absent-") else {float}), key
    metrics = keys.TRAIN_METRICS if kind is TrainResult else keys.EVALUATE_METRICS
    assert {key for _, key in types} >= {*whole, *metrics.values()}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_statuses_and_reasons_stand_beside_missing_numbers(count: int) -> None:
    """Clients without a result, unavailable ones added afterwards, and response times are kept."""
    results = [
        TrainResult(0, Status.DONE, num_examples=3, loss=math.nan),
        TrainResult(1, Status.FAILED, reason="no"),
        TrainResult(2, Status.DONE, num_examples=4, accuracy=1),
        TrainResult(3, Status.DECLINED),
        TrainResult(4, Status.DONE, loss=0),
    ][:count]
    content = add_unavailable(encode_train_reply(results), (9, 0, 1, 2, 3, 4), {9})
    content = add_response_times(content, {k: k if k % 2 else k / 2 for k in (9, *range(count))})
    expected = [TrainResult(9, Status.UNAVAILABLE), *results]
    found = decode_train_reply(send_over_wire(content))
    assert [to_comparable(result) for result in found] == [
        to_comparable(convert_to_floats(one)) for one in expected
    ]
    seconds = [result.seconds for result in found]
    assert seconds == [9.0, *(k if k % 2 else k / 2 for k in range(count))]
    assert {type(one) for one in seconds} == {float}


BINS = FixedBins(compute_bin_width(9), {"w": -3, "b": 40})


@pytest.mark.parametrize("clients", [(4,), (4, 7)])
def test_a_request_demands_a_sum_in_fixed_bins(clients: tuple[int, ...]) -> None:
    """Of one client only if the server requires it; the bins are those of all nodes."""
    model: NamedArrays = {"w": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
    request = TrainRequest(
        1,
        RoundPlan(clients),
        (True,) * len(clients),
        Objective(1.0, 0.5),
        KnownWeights({4: 0.25}),
        num_terms=9,
        fixed_bins=BINS,
    )
    for requires_sum in (False, True):
        asked = replace(request, requires_sum=requires_sum)
        content = send_over_wire(encode_train_request(encode_arrays(model), asked))
        received, tasks = decode_train_request(content, clients)
        is_summed = requires_sum or len(clients) > 1
        assert [task.can_be_summed for task in tasks] == [is_summed] * len(clients)
        if is_summed:
            assert tasks[0].compute_numerator(10.0) == 0.25
            assert decode_sum_bins(content, received) == BINS
        else:
            assert content.keys() == {"arrays", "config"}
    dynamic = replace(request, requires_sum=True, fixed_bins=None)
    content = send_over_wire(encode_train_request(encode_arrays(model), dynamic))
    received, tasks = decode_train_request(content, clients)
    assert decode_sum_bins(content, received) == ExponentBins.for_num_terms(9)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({}, "a whole number for each of the model's 2 arrays"),
        ({"exponents": [1]}, "a whole number for each of the model's 2 arrays"),
        ({"exponents": [1.0, 2.0]}, "a whole number for each of the model's 2 arrays"),
        ({"exponents": 3}, "a whole number for each of the model's 2 arrays"),
        ({"exponents": [0, 2**40]}, "no exponent of float64"),
        ({"exponents": [0, -1030]}, "no exponent of float64"),
    ],
)
def test_a_node_refuses_bins_that_cannot_be(record: dict[str, Any], problem: str) -> None:
    """Before it trains for nothing."""
    content = RecordDict({"weighted-sum-bins": ConfigRecord(record)})
    model: NamedArrays = {"w": np.zeros(2), "b": np.zeros(1)}
    with pytest.raises(ProtocolError, match=problem):
        decode_sum_bins(content, model)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_numbers_of_a_request_have_one_type(count: int) -> None:
    """Integers and missing ones too: a client's request is independent of other clients."""
    clients = tuple(range(count))
    types: dict[tuple[str, str], set[type]] = {}
    for loss, epsilon, norm, by_data in product((math.nan, 1), (None, 0, 0.5), (None, 2), (0, 1)):
        proportions = KnownWeights({0: 1, 1: 0.5}, by_data=bool(by_data))
        call = RoundPlan(clients, epsilon=epsilon)
        priority = tuple(k % 2 == 0 for k in clients)
        train = TrainRequest(1, call, priority, Objective(loss, loss), proportions, count, norm)
        evaluate = EvaluateRequest(1, clients, priority, priority)
        for content in (
            encode_train_request(ArrayRecord(), train),
            encode_evaluate_request(ArrayRecord(), evaluate),
            encode_hosted_clients(clients),
        ):
            for name, key, of in list_types(send_over_wire(content)):
                types.setdefault((name, key), set()).add(of)
    assert {found for of in types.values() for found in of} == {int, float, bool, str}
    assert {key for key, of in types.items() if len(of) > 1} == set()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_calibration_is_the_same_with_any_other_clients_on_the_node(count: int) -> None:
    """Clients without it, and clients without a result, are among them."""
    results = [
        EvaluateResult(0, Status.DONE, num_examples=1.0, test_calibration=make_full_bin(3, 1, 1)),
        EvaluateResult(1, Status.FAILED, reason="no"),
        EvaluateResult(2, Status.DONE, num_examples=2.0),
        EvaluateResult(
            3,
            Status.DONE,
            num_examples=3.0,
            test_calibration=make_full_bin(3, 3, 1),
            validation_calibration=make_full_bin(3, 2**32 - 1, 1),
        ),
        EvaluateResult(
            4, Status.DONE, num_examples=4.0, validation_calibration=make_full_bin(3, 4, 1)
        ),
    ][:count]
    assert decode_evaluate_reply(send_over_wire(encode_evaluate_reply(results))) == results
    for result in results:
        content = encode_evaluate_reply([result])
        assert decode_evaluate_reply(send_over_wire(content)) == [result]
        has_any = bool(result.test_calibration or result.validation_calibration)
        assert ("calibration" in content) == has_any


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (b"", "'test-calibration' must be a list of bytes"),
        ([1, 2], "'test-calibration' must be a list of bytes"),
        ([b"one", b"two"], "'test-calibration' must be the sums of 15 bins"),
        ([make_full_bin(3, 1, 1)] * 3, "must "),
    ],
    ids=["single", "numbers", "sums", "length"],
)
def test_malformed_calibration_is_refused(clients: int, values: Any, message: str) -> None:
    """Its form is checked before any rule sees it."""
    results = [EvaluateResult(k, Status.DONE, num_examples=1.0) for k in range(clients)]
    content = encode_evaluate_reply(results)
    content["calibration"] = ConfigRecord({"test-calibration": values})
    with pytest.raises(ProtocolError, match=message):
        decode_evaluate_reply(content)


def test_calibration_that_is_withheld_leaves_no_record() -> None:
    """One split may stay without the other."""
    result = EvaluateResult(
        0,
        Status.DONE,
        test_calibration=make_full_bin(3, 1, 1),
        validation_calibration=make_full_bin(3, 2, 1),
    )
    content = encode_evaluate_reply([result])
    (left,) = decode_evaluate_reply(drop_metrics(content, {"test-calibration"}))
    assert left == replace(result, test_calibration=b"")
    none = drop_metrics(content, {"test-calibration", "validation-calibration"})
    assert [*none] == ["metrics"]


@pytest.mark.parametrize("marks", [[0, 2], [0.5, 0.0], [0, -1]])
def test_invalid_absence_marks_are_refused(marks: list[Any]) -> None:
    """Such a mark does not say whether the client reports the number."""
    metrics: dict[str, Any] = {"client-id": [1, 2], "status": [0, 0], "loss": [1.0, 2.0]}
    content = RecordDict({"metrics": MetricRecord(metrics | {"absent-loss": marks})})
    content.metric_records["metrics"]["protocol"] = PROTOCOL_VERSION
    with pytest.raises(ProtocolError, match="'absent-loss' must have 0 or 1 for each client"):
        decode_train_reply(content)


def test_a_number_that_is_withheld_leaves_no_mark() -> None:
    """The reply does not even reveal which clients had the number."""
    results = [TrainResult(0, Status.DONE, loss=1.0), TrainResult(1, Status.DONE, num_examples=2)]
    content = drop_metrics(encode_train_reply(results), {"loss"})
    left = set(content.metric_records["metrics"])
    assert left == {"protocol", "client-id", "status", "num-examples", "absent-num-examples"}


def test_a_diverged_loss_is_reported() -> None:
    """NaN after training is a number, which the server rejects; an accuracy may be missing."""
    content = encode_train_reply([TrainResult(0, Status.DONE, num_examples=5, loss=math.nan)])
    (result,) = decode_train_reply(content)
    assert result.loss is not None
    assert math.isnan(result.loss)
    assert result.accuracy is None


def test_numbers_by_their_keys() -> None:
    """The metrics that a client returns beside the model have these keys."""
    assert to_metrics(TrainResult(3, Status.DECLINED)) == {"status": 1}
    result = TrainResult(3, Status.DONE, num_examples=5, loss=0.5, norm_bit=1.0)
    assert to_metrics(result) == {"num-examples": 5, "loss": 0.5, "norm_bit": 1.0}
    measured = EvaluateResult(3, Status.DONE, num_examples=5, test_loss=0.5)
    assert to_metrics(measured) == {"num-examples": 5, "test-loss": 0.5}


def test_the_objective_as_flowers_result() -> None:
    """It has the names by which it is broadcast."""
    assert dict(encode_objective(Objective(1.5, 0.25))) == {
        "global-loss": 1.5,
        "global-accuracy": 0.25,
    }


def test_an_unavailable_client_of_a_standard_client_app() -> None:
    """The standard decoder understands this report of the availability mod."""
    content = encode_train_reply([TrainResult(4, Status.UNAVAILABLE)])
    result = decode_standard_train_reply(
        content, weighted_by_key="num-examples", loss_keys=("loss",), accuracy_key="accuracy"
    )
    assert result == TrainResult(None, Status.UNAVAILABLE)


def test_the_first_loss_of_a_standard_reply_counts() -> None:
    """A loss may have one of several names; the first one counts."""
    metrics = MetricRecord({"n": 3, "train-loss": 2.0, "train_loss": 1.0})
    result = decode_standard_train_reply(
        RecordDict({"any": metrics}),
        weighted_by_key="n",
        loss_keys=("loss", "train_loss", "train-loss"),
        accuracy_key="accuracy",
    )
    assert result == TrainResult(None, Status.DONE, num_examples=3, loss=1.0)


def test_arrays_keep_their_shape_on_the_wire() -> None:
    """A scalar, such as batch normalization's counter, stays a scalar."""
    sent: NamedArrays = {
        "counter": np.array(7, dtype=np.int64),
        "row": np.arange(3, dtype=np.float32),
        "transposed": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    }
    back = decode_arrays(encode_arrays(sent))
    assert {name: a.shape for name, a in back.items()} == {
        "counter": (),
        "row": (3,),
        "transposed": (3, 2),
    }
    for name, array in back.items():
        np.testing.assert_array_equal(array, sent[name])
        assert array.dtype == sent[name].dtype


def test_the_round_and_the_clients_of_a_request() -> None:
    """They are the round and the named clients, or all hosted clients if none is named."""
    content = encode_train_request(encode_arrays(MODEL), TRAIN)
    assert decode_selected_clients(content, hosted=(0, 2, 4, 6)) == (3, (4, 6))
    standard = RecordDict({"config": ConfigRecord({"server-round": 1})})
    assert decode_selected_clients(standard, hosted=(3, 5)) == (1, (3, 5))
    with pytest.raises(ProtocolError, match=r"clients \[4\] are not on this node, .*\[6\]"):
        decode_selected_clients(content, hosted=(6,))


@pytest.mark.parametrize("config", [{}, {"server-round": 0}, {"server-round": "1"}])
def test_a_round_is_a_whole_number_from_one(config: dict[str, int | str]) -> None:
    """A request without a round, or without a config, is refused."""
    for content in (RecordDict({"config": ConfigRecord({**config})}), RecordDict()):
        with pytest.raises(ProtocolError, match=r"'server-round' must be a whole number >= 1"):
            decode_selected_clients(content, hosted=(0,))


def test_a_request_for_some_of_the_selected_clients() -> None:
    """It equals a request to these clients only, and the original stays unchanged."""
    content = encode_train_request(encode_arrays(MODEL), TRAIN)
    alone = TrainRequest(
        3, RoundPlan((6,), epsilon=0.2, criterion="accuracy"), (False,), Objective(1.5, 0.25)
    )
    expected = encode_train_request(encode_arrays(MODEL), alone)
    assert dict(filter_clients(content, (4, 6), (6,))) == dict(expected)
    assert decode_selected_clients(content, hosted=(4, 6)) == (3, (4, 6))
    further = RecordDict({**content, "own": ConfigRecord({"x": 1})})
    assert filter_clients(further, (4, 6), (4,))["own"] == further["own"]


def test_a_request_that_names_no_clients_names_those_chosen() -> None:
    """The chosen clients are among all that the node hosts."""
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"server-round": 1})})
    chosen = filter_clients(content, (3, 5, 7), (7, 3))
    assert decode_selected_clients(chosen, hosted=(3, 5, 7)) == (1, (7, 3))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_unavailable_clients_join_a_reply(count: int) -> None:
    """They join in the order of the request, with id and status; other results stay the same."""
    there = [
        make_shifted_result(6, 1.0),
        TrainResult(4, Status.FAILED, reason="no"),
        make_shifted_result(0, 2.0),
    ][:count]
    there.append(TrainResult(2, Status.DECLINED))
    asked = (5, 6, 4, 0, 1, 2)
    content = add_unavailable(encode_train_reply(there), asked, {5, 1})
    expected = [TrainResult(5, Status.UNAVAILABLE), *there[:-1]]
    expected += [TrainResult(1, Status.UNAVAILABLE), there[-1]]
    assert_same(decode_train_reply(content), expected)


def test_further_records_of_a_reply_stay() -> None:
    """The codec removes no foreign records."""
    content = encode_train_reply([make_shifted_result(6, 1.0)])
    content["own"] = ConfigRecord({"x": 1})
    merged = add_unavailable(content, (5, 6), {5})
    assert sorted(merged) == ["arrays", "metrics", "own"]
    assert merged["own"] == content["own"]
    assert merged.metric_records["metrics"]["client-id"] == [5, 6]
    assert merged.array_records["arrays"]["w"].shape == (1, 2, 3)


@pytest.mark.parametrize("trained", [(0, 2), (1,), (0, 1, 2)])
def test_stacked_arrays_are_encoded_as_they_are(trained: tuple[int, ...]) -> None:
    """They equal stacking each client's arrays in order."""
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    steps = np.array([4, 5, 6])
    alone = [
        TrainResult(k, Status.DONE, loss=k / 2, arrays={"w": w[k], "steps": steps[k]})
        if k in trained
        else TrainResult(k, Status.DECLINED)
        for k in range(3)
    ]
    without = [replace(reply, arrays=None) for reply in alone]
    stacked = {"w": w[list(trained)], "steps": steps[list(trained)]}
    assert encode_train_reply(without, stacked) == encode_train_reply(alone)
    one = alone[trained[0]]
    stacked = {name: array[:1] for name, array in stacked.items()}
    assert encode_train_reply([replace(one, arrays=None)], stacked) == encode_train_reply([one])


def test_a_request_without_its_records() -> None:
    """A request needs both model and config."""
    for content in (
        RecordDict({"arrays": encode_arrays({"w": np.zeros(1)})}),
        RecordDict({"config": ConfigRecord()}),
    ):
        with pytest.raises(ProtocolError, match="needs the records 'arrays' and 'config'"):
            decode_train_request(content, (0,))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4), (1,) * 30])
def test_arrays_are_encoded_as_flower_does(dtype: str, shape: tuple[int, ...]) -> None:
    """The bytes are those of ``Array(ndarray)``, and decoded arrays are writable."""
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    for given in (array, array.T, array[..., ::-1] if shape else array):
        encoded = encode_arrays({"w": given})
        assert vars(encoded["w"]) == vars(Array(np.asarray(given, order="C")))
        decoded = decode_arrays(ArrayRecord({"w": Array(given)}))["w"]
        np.testing.assert_array_equal(decoded, given)
        assert (decoded.dtype, decoded.flags.writeable) == (given.dtype, True)


def test_unreadable_arrays_are_refused() -> None:
    """Bytes that are no array raise ProtocolError."""
    record = ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", b"no array")})
    with pytest.raises(ProtocolError, match="array 'w' cannot be read"):
        decode_arrays(record)


@pytest.mark.parametrize("shape", [(), (0, 3), (2**18,), (2**9, 2**9)])
@pytest.mark.parametrize("kind", ["f4", ">f8", "f2", "i8", "?"])
def test_an_array_is_encoded_as_flower_does(shape: tuple[int, ...], kind: str) -> None:
    """The bytes are the same, in row-major order, whatever the order in memory."""
    array = (np.arange(math.prod(shape)) % 2000).astype(kind).reshape(shape)
    for one in (array, array.T, np.asfortranarray(array), array[::2] if shape else array):
        assert encode_arrays({"w": one})["w"].data == Array(np.array(one, order="C")).data


def test_an_array_is_copied_once_when_it_is_encoded() -> None:
    """Copies matter, as a reply with many models is most of a node's memory."""
    array = np.ones((16, 2**16), dtype=np.float32)
    tracemalloc.start()
    encode_arrays({"w": array})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.1 * array.nbytes


@pytest.mark.parametrize("standard", [False, True])
def test_a_reply_that_was_read_leaves_memory_at_once(standard: bool) -> None:
    """Flower's views of a message's records would hold it until Python collects cycles."""
    content = encode_train_reply([make_shifted_result(0, 1.0)])
    if standard:
        content = RecordDict({**content, "metrics": MetricRecord({"num-examples": 3.0})})
    gone = weakref.ref(content)
    gc.disable()
    try:
        has_protocol_version(content)
        find_unavailable_clients(content)
        decode_partial_sum(content)
        if standard:
            keys: Any = {"weighted_by_key": "num-examples", "loss_keys": (), "accuracy_key": ""}
            decode_standard_train_reply(content, **keys)
        else:
            decode_train_reply(content)
        del content
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["", "x" * 256, "\ud800", "a\nb", "\x1b[31mred", "\u202egnp.exe"])
def test_names_that_records_cannot_show_are_refused(name: str) -> None:
    """The error message itself is printable and short."""
    with pytest.raises(ProtocolError, match="the name of an array must have 1 to 255") as refusal:
        check_names(["weight", name], "an array")
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 200


def test_other_names_pass() -> None:
    """Names of torch and of any language."""
    check_names(["0.weight", "features.denseblock1.conv", "größe", "层", "x" * 255], "an array")
