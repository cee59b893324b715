"""The protocol: what is encoded is read back, and what is wrong is named."""

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from strategies.codec import (
    ClientReply,
    EvaluateRequest,
    NamedArrays,
    ProtocolError,
    Status,
    TrainRequest,
    decode_arrays,
    decode_asked,
    decode_hosted_clients,
    decode_replies,
    decode_request,
    encode_arrays,
    encode_evaluate_request,
    encode_hosted_clients,
    encode_replies,
    encode_train_request,
    select_clients,
    with_unavailable,
)
from strategies.types import Call, GlobalMeasure

MODEL = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, dtype=np.float32)}
TRAIN = TrainRequest(
    3, Call((4, 6), epsilon=0.2, criterion="accuracy"), (True, False), GlobalMeasure(1.5, 0.25)
)


def trained(client: int, shift: float) -> ClientReply:
    arrays = {name: array + np.float32(shift) for name, array in MODEL.items()}
    metrics = {"num-examples": 10 + client, "loss": 0.5 * client, "accuracy": 0.1}
    return ClientReply(client, Status.DONE, metrics, arrays)


def test_a_train_request_gives_each_client_its_own_config() -> None:
    """Lists over the clients become one value each; the rest is the same for all."""
    content = encode_train_request(encode_arrays(MODEL), TRAIN)
    arrays, configs = decode_request(content, hosted=(0, 2, 4, 6))
    np.testing.assert_array_equal(arrays["w"], MODEL["w"])
    shared = {
        "server-round": 3,
        "global-loss": 1.5,
        "global-accuracy": 0.25,
        "epsilon": 0.2,
        "criterion": "accuracy",
    }
    assert configs == {4: {"priority": True, **shared}, 6: {"priority": False, **shared}}


def test_a_request_without_gate_names_no_epsilon() -> None:
    """FedAvg's clients are told of no threshold, so they train."""
    request = TrainRequest(1, Call((0,)), (True,), GlobalMeasure(1.0, 0.5))
    _, configs = decode_request(encode_train_request(ArrayRecord(), request), hosted=(0,))
    assert "epsilon" not in configs[0]


def test_an_evaluate_request() -> None:
    """Each client learns which of its parts to measure."""
    request = EvaluateRequest(2, (0, 1), (True, False), (True, True))
    _, configs = decode_request(encode_evaluate_request(ArrayRecord(), request), hosted=(0, 1))
    assert configs[0] == {"server-round": 2, "measure-train": True, "measure-test": True}
    assert configs[1]["measure-train"] is False


def test_a_request_of_another_strategy_is_for_all_hosted() -> None:
    """Flower's own strategies name no client ids."""
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"server-round": 1})})
    assert sorted(decode_request(content, hosted=(3, 5))[1]) == [3, 5]


def test_a_request_for_a_foreign_client_is_refused() -> None:
    """A node trains only the clients that it hosts."""
    with pytest.raises(ProtocolError, match=r"clients \[4\] are not on this node"):
        decode_request(encode_train_request(ArrayRecord(), TRAIN), hosted=(6,))


def test_replies_of_several_clients_survive_the_wire() -> None:
    """Lists and stacked arrays are taken apart again, client by client."""
    sent = [trained(0, 1.0), ClientReply(2, Status.SILENT), trained(4, 2.0)]
    sent.append(ClientReply(6, Status.FAILED, reason="ValueError: no"))
    got = decode_replies(encode_replies(sent))
    assert [(r.client, r.status, r.reason) for r in got] == [
        (r.client, r.status, r.reason) for r in sent
    ]
    for received, original in zip(got, sent, strict=True):
        assert dict(received.metrics) == dict(original.metrics)
        if original.arrays is None:
            assert received.arrays is None
        else:
            assert received.arrays is not None
            for name, array in original.arrays.items():
                np.testing.assert_array_equal(received.arrays[name], array)


def test_one_client_replies_in_flowers_standard_form() -> None:
    """Scalars and unstacked arrays, so that Flower's own strategies can read it."""
    content = encode_replies([trained(5, 1.0)])
    assert content.metric_records["metrics"]["num-examples"] == 15
    assert tuple(content.array_records["arrays"]["w"].shape) == (2, 3)
    (reply,) = decode_replies(content)
    assert reply.client == 5
    assert reply.metrics["loss"] == 2.5


def test_a_silent_client_says_only_that_it_is_silent() -> None:
    """No loss, no parameters, no sample count leave the device, alone or among others."""
    alone = encode_replies([ClientReply(5, Status.SILENT)])
    assert dict(alone.metric_records["metrics"]) == {"client-id": 5, "status": 1}
    assert list(alone) == ["metrics"]
    among = encode_replies([ClientReply(5, Status.SILENT), trained(7, 1.0)])
    metrics = among.metric_records["metrics"]
    assert metrics["client-id"] == [5, 7]
    assert metrics["num-examples"] == [17]
    assert among.array_records["arrays"]["w"].shape[0] == 1


def test_a_standard_reply_without_our_keys_counts_as_trained() -> None:
    """A ClientApp that is not ours sends arrays and num-examples."""
    content = RecordDict(
        {"arrays": encode_arrays(MODEL), "metrics": MetricRecord({"num-examples": 8})}
    )
    (reply,) = decode_replies(content)
    assert (reply.client, reply.status, dict(reply.metrics)) == (
        None,
        Status.DONE,
        {"num-examples": 8},
    )


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
def test_malformed_replies_are_named(metrics: dict[str, object], message: str) -> None:
    """What is wrong with the form of a reply is said."""
    with pytest.raises(ProtocolError, match=message):
        decode_replies(RecordDict({"metrics": MetricRecord(metrics)}))  # type: ignore[arg-type]


def test_arrays_must_be_stacked_over_those_that_trained() -> None:
    """A leading axis of another length cannot be attributed to clients."""
    content = encode_replies([trained(0, 1.0), trained(1, 1.0)])
    content["arrays"] = encode_arrays({"w": np.zeros((3, 2, 3), dtype=np.float32)})
    with pytest.raises(ProtocolError, match="array 'w' must have a leading axis of length 2"):
        decode_replies(content)


def test_a_reply_without_metrics_is_refused() -> None:
    """The metrics record says whose reply it is."""
    with pytest.raises(ProtocolError, match="needs the record 'metrics'"):
        decode_replies(RecordDict())


def test_hosted_clients() -> None:
    """A node's answer to the query holds client ids and nothing else."""
    content = encode_hosted_clients([1, 3])
    assert list(content) == ["metrics"]
    assert decode_hosted_clients(content) == (1, 3)
    with pytest.raises(ProtocolError, match="'client-id', whole numbers"):
        decode_hosted_clients(RecordDict({"metrics": MetricRecord({"client-id": [1.5]})}))


def test_unmeasured_values_travel_as_nan() -> None:
    """A metric that one client has and another has not keeps its place in the list."""
    sent = [
        ClientReply(0, Status.DONE, {"loss": 1.0, "test-loss": 2.0}),
        ClientReply(1, Status.DONE, {"test-loss": 3.0}),
    ]
    got = decode_replies(encode_replies(sent))
    assert math.isnan(got[1].metrics["loss"])
    assert got[1].metrics["test-loss"] == 3.0


def test_arrays_keep_their_shape_on_the_wire() -> None:
    """A scalar, such as batch normalisation's counter, comes back as a scalar."""
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


def test_who_is_asked() -> None:
    """The round and the clients named, all that the node hosts where none are."""
    content = encode_train_request(encode_arrays(MODEL), TRAIN)
    assert decode_asked(content, hosted=(0, 2, 4, 6)) == (3, (4, 6))
    standard = RecordDict({"config": ConfigRecord({"server-round": 1})})
    assert decode_asked(standard, hosted=(3, 5)) == (1, (3, 5))
    with pytest.raises(ProtocolError, match=r"clients \[4\] are not on this node, .*\[6\]"):
        decode_asked(content, hosted=(6,))


@pytest.mark.parametrize("config", [{}, {"server-round": 0}, {"server-round": "1"}])
def test_a_round_is_a_whole_number_from_one(config: dict[str, int | str]) -> None:
    """What has no round, or no config at all, is refused."""
    for content in (RecordDict({"config": ConfigRecord({**config})}), RecordDict()):
        with pytest.raises(ProtocolError, match=r"'server-round' must be a whole number >= 1"):
            decode_asked(content, hosted=(0,))


def test_a_request_for_some_of_those_asked() -> None:
    """It is what the strategy would have sent to them alone, and the first stays as it was."""
    content = encode_train_request(encode_arrays(MODEL), TRAIN)
    alone = TrainRequest(
        3, Call((6,), epsilon=0.2, criterion="accuracy"), (False,), GlobalMeasure(1.5, 0.25)
    )
    expected = encode_train_request(encode_arrays(MODEL), alone)
    assert dict(select_clients(content, (4, 6), (6,))) == dict(expected)
    assert decode_asked(content, hosted=(4, 6)) == (3, (4, 6))
    further = RecordDict({**content, "own": ConfigRecord({"x": 1})})
    assert select_clients(further, (4, 6), (4,))["own"] == further["own"]


def test_a_request_that_names_no_clients_names_those_chosen() -> None:
    """Out of all that the node hosts."""
    content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"server-round": 1})})
    chosen = select_clients(content, (3, 5, 7), (7, 3))
    assert decode_asked(chosen, hosted=(3, 5, 7)) == (1, (7, 3))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_unavailable_clients_join_a_reply(count: int) -> None:
    """In the order asked, with id and status; the others' parts are as they were."""
    there = [trained(6, 1.0), ClientReply(4, Status.FAILED, reason="no"), trained(0, 2.0)][:count]
    there.append(ClientReply(2, Status.SILENT))
    asked = (5, 6, 4, 0, 1, 2)
    content = with_unavailable(encode_replies(there), asked, {5, 1})
    expected = [ClientReply(5, Status.UNAVAILABLE), *there[:-1]]
    expected += [ClientReply(1, Status.UNAVAILABLE), there[-1]]
    got = decode_replies(content)
    assert [(r.client, r.status, r.metrics, r.reason) for r in got] == [
        (r.client, r.status, r.metrics, r.reason) for r in expected
    ]
    for received, original in zip(got, expected, strict=True):
        assert (received.arrays is None) == (original.arrays is None)
        for name, array in (original.arrays or {}).items():
            assert received.arrays is not None
            np.testing.assert_array_equal(received.arrays[name], array, strict=True)


def test_further_records_of_a_reply_stay() -> None:
    """The codec takes nothing away that is not its own."""
    content = encode_replies([trained(6, 1.0)])
    content["own"] = ConfigRecord({"x": 1})
    merged = with_unavailable(content, (5, 6), {5})
    assert sorted(merged) == ["arrays", "metrics", "own"]
    assert merged["own"] == content["own"]
    assert merged.metric_records["metrics"]["client-id"] == [5, 6]
    assert merged.array_records["arrays"]["w"].shape == (1, 2, 3)


@pytest.mark.parametrize("trained", [(0, 2), (1,), (0, 1, 2)])
def test_arrays_that_are_stacked_already(trained: tuple[int, ...]) -> None:
    """Given for all that are done, in their order, they are as if each reply had its own."""
    w = np.arange(6, dtype=np.float32).reshape(3, 2)
    steps = np.array([4, 5, 6])
    alone = [
        ClientReply(k, Status.DONE, {"loss": k / 2}, {"w": w[k], "steps": steps[k]})
        if k in trained
        else ClientReply(k, Status.SILENT)
        for k in range(3)
    ]
    without = [replace(reply, arrays=None) for reply in alone]
    stacked = {"w": w[list(trained)], "steps": steps[list(trained)]}
    assert encode_replies(without, stacked) == encode_replies(alone)
    one = alone[trained[0]]
    stacked = {name: array[:1] for name, array in stacked.items()}
    assert encode_replies([replace(one, arrays=None)], stacked) == encode_replies([one])


def test_a_request_without_its_records() -> None:
    """Model and config are both needed."""
    for content in (
        RecordDict({"arrays": encode_arrays({"w": np.zeros(1)})}),
        RecordDict({"config": ConfigRecord()}),
    ):
        with pytest.raises(ProtocolError, match="needs the records 'arrays' and 'config'"):
            decode_request(content, (0,))


def test_arrays_that_cannot_be_read() -> None:
    """Bytes that are no array are the message's fault, and said to be."""
    record = ArrayRecord({"w": Array("float32", (3,), "numpy.ndarray", b"no array")})
    with pytest.raises(ProtocolError, match="arrays cannot be read"):
        decode_arrays(record)
