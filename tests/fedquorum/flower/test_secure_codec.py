"""The messages of secure sums: they decode to what was encoded, and damaged ones are refused."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ProtocolError
from fedquorum.flower.codec import encode_arrays
from fedquorum.flower.codec import secure as codec
from fedquorum.flower.codec.keys import MASK_STATE, MASKED_SUM
from fedquorum.flower.secure.keys import RoundId
from fedquorum.flower.secure.messages import (
    MaskedVector,
    NodeKeys,
    NodeShares,
    ShareRequest,
    UnmaskRequest,
    UnmaskShares,
    VectorRequest,
)
from fedquorum.flower.secure.node import make_keys, make_shares
from fedquorum.rules.decisions import SUMMED_FIELDS
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from tests.cases import sample_cases

NODES = (3, 2**63 + 7, 2**64 - 1)
"""Flower's node ids have 64 bits."""

ROUND = RoundId("7", 4)


def fill(size: int) -> Callable[[int], bytes]:
    return lambda node: (node % 251).to_bytes(1, "big") * size


def by_node(size: int, nodes: tuple[int, ...] = NODES) -> dict[int, bytes]:
    return {node: fill(size)(node) for node in nodes}


KEYS = {node: NodeKeys(fill(32)(node), fill(32)(node + 1), fill(32)(node + 2)) for node in NODES}
HOLDERS = (*NODES, 5)
MESSAGES: Mapping[str, tuple[Any, Callable[[Any], codec.Records], Callable[[RecordDict], Any]]] = {
    "keys": (KEYS[3], codec.encode_keys, codec.decode_keys),
    "share request": (
        ShareRequest(KEYS, 3),
        codec.encode_share_request,
        codec.decode_share_request,
    ),
    "shares": (
        NodeShares(by_node(60), by_node(32, HOLDERS), by_node(32, HOLDERS)),
        codec.encode_shares,
        codec.decode_shares,
    ),
    "vector request": (
        VectorRequest(by_node(60), by_node(32), by_node(32)),
        codec.encode_vector_request,
        codec.decode_vector_request,
    ),
    "unmask request": (
        UnmaskRequest(NODES[:2], NODES[2:]),
        codec.encode_unmask_request,
        codec.decode_unmask_request,
    ),
    "all survived": (
        UnmaskRequest(NODES, ()),
        codec.encode_unmask_request,
        codec.decode_unmask_request,
    ),
    "unmask shares": (
        UnmaskShares(by_node(16), by_node(16, (9,))),
        codec.encode_unmask_shares,
        codec.decode_unmask_shares,
    ),
}


def send_over_wire(content: RecordDict) -> RecordDict:
    """Return what arrives of a message."""
    proto = recorddict_to_proto(content)
    return recorddict_from_proto(type(proto).FromString(proto.SerializeToString()))


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_arrives_as_it_was_sent(name: str) -> None:
    """With node ids of 64 bits and empty lists."""
    message, encode, decode = MESSAGES[name]
    assert decode(send_over_wire(RecordDict({**encode(message)}))) == message


@pytest.mark.parametrize("fields", [(), ("loss", "test_accuracy"), SUMMED_FIELDS])
def test_names_of_numbers_arrive_as_they_were_sent(fields: tuple[str, ...]) -> None:
    """Also none."""
    content = send_over_wire(RecordDict({**codec.encode_summed_fields(fields)}))
    assert codec.decode_summed_fields(content) == frozenset(fields)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (None, "the record 'summed-numbers' is missing"),
        ({}, "'names' is missing in 'summed-numbers'"),
        ({"names": ["loss"], "more": 1}, "'summed-numbers' has fields that nobody reads"),
        ({"names": "loss"}, "'names' in 'summed-numbers' must be a list of loss, accuracy, test-"),
        ({"names": ["test_loss"]}, "each once"),
        ({"names": [1]}, "each once"),
        ({"names": ["loss", "loss"]}, "each once"),
    ],
)
def test_damaged_names_of_numbers_are_refused(record: Any, problem: str) -> None:
    """Missing, of another type, unknown, or twice."""
    content = RecordDict({} if record is None else {"summed-numbers": ConfigRecord(record)})
    with pytest.raises(ProtocolError, match=problem):
        codec.decode_summed_fields(content)


def test_a_masked_vector_arrives_as_it_was_sent() -> None:
    """A reply without one has None; its array is a view."""
    values = np.array([0, 1, 2**63, 2**64 - 1], dtype=np.uint64)
    content = send_over_wire(RecordDict({**codec.encode_masked_vector(MaskedVector(values))}))
    found = codec.decode_masked_vector(content)
    assert found is not None
    np.testing.assert_array_equal(found.values, values, strict=True)
    assert codec.decode_masked_vector(RecordDict()) is None


@pytest.mark.parametrize(
    "record",
    [
        ConfigRecord({"values": b"x"}),
        MetricRecord({"values": 1.0}),
        ArrayRecord(),
        encode_arrays({"values": np.zeros(4)}),
        encode_arrays({"values": np.zeros(4, np.int64)}),
        encode_arrays({"values": np.zeros((2, 2), np.uint64)}),
        encode_arrays({"other": np.zeros(4, np.uint64)}),
        encode_arrays({"values": np.zeros(4, np.uint64), "more": np.zeros(4, np.uint64)}),
    ],
)
def test_a_damaged_vector_is_refused(record: Any) -> None:
    """Of another kind, type or number of arrays."""
    with pytest.raises(ProtocolError, match="'masked-sum' must have one array 'values', of uint64"):
        codec.decode_masked_vector(RecordDict({MASKED_SUM: record}))


def damage(value: Any, chance: random.Random) -> Any:
    """Return a field with another type, length or content."""
    others = [1.5, "x", b"x", -1, [], ["a"], [1.5], [b""], [-1], [1, 1], [2**64 - 1]]
    if isinstance(value, list) and value:
        one = value[chance.randrange(len(value))]
        others += [value[:-1], [*value, value[-1]], [*value[1:], value[1 if len(value) > 1 else 0]]]
        if isinstance(one, bytes):
            others += [[one[:-1]] * len(value), [one + b"x"] * len(value), [1] * len(value)]
        else:
            others += [[-1] * len(value), [float(one)] * len(value), [True] * len(value)]
    elif isinstance(value, bytes):
        others += [value[:-1], value + b"x", b"", [value]]
    elif isinstance(value, int):
        others += [float(value), True, [value]]
    return chance.choice(others)


DAMAGED = [f"{name}: {number}" for name in MESSAGES for number in range(300)]


@pytest.mark.parametrize("case", sample_cases(DAMAGED, 60))
def test_a_damaged_record_is_refused_by_the_name_of_a_field(case: str) -> None:
    """Or is another message of the same form, which the protocol's state machines judge."""
    message, encode, decode = MESSAGES[case.partition(":")[0]]
    chance = random.Random(case)
    [(record_name, record)] = encode(message).items()
    assert isinstance(record, ConfigRecord)
    fields: dict[str, Any] = dict(record)
    key = chance.choice(sorted(fields))
    way = chance.choice(["missing", "more", "value", "value", "value"])
    if way == "missing":
        del fields[key]
    elif way == "more":
        key = "further"
        fields[key] = b"x"
    else:
        fields[key] = damage(fields[key], chance)
    content = send_over_wire(RecordDict({record_name: ConfigRecord(fields)}))
    if find_problem(decode, content) is None:
        again = encode(decode(content))[record_name]
        assert isinstance(again, ConfigRecord)
        assert dict(again) == fields
        assert way == "value"
    else:
        with pytest.raises(ProtocolError, match=f"'{record_name}'"):
            decode(content)


def find_problem(decode: Callable[[RecordDict], Any], content: RecordDict) -> str | None:
    """Return why a message is refused, None if it is not."""
    try:
        decode(content)
    except ProtocolError as error:
        return str(error)
    return None


@pytest.mark.parametrize("decode", [codec.decode_keys, codec.decode_shares])
def test_a_record_of_another_kind_is_missing(decode: Callable[[RecordDict], Any]) -> None:
    """As of a node that replies with metrics of this name."""
    names = ("mask-keys", "mask-shares")
    content = RecordDict(dict.fromkeys(names, MetricRecord({"x": 1.0})))
    with pytest.raises(ProtocolError, match=r"the record 'mask-(keys|shares)' is missing"):
        decode(content)


def test_a_message_belongs_to_one_step() -> None:
    """By its record."""
    assert codec.find_step(RecordDict({"config": ConfigRecord()})) is None
    request = codec.encode_keys_request()
    assert codec.find_step(RecordDict({**request})) == "mask-keys"
    both = RecordDict({**request, **codec.encode_unmask_request(UnmaskRequest((), ()))})
    with pytest.raises(ProtocolError, match="a message has 'mask-keys' or 'unmask-sum', not both"):
        codec.find_step(both)


def test_a_node_finds_its_state_of_this_round_only() -> None:
    """After each step; without its secrets it still knows that the round has masks."""
    first, keys = make_keys(5, ROUND)
    neighbors = {k: make_keys(k, ROUND)[1] for k in NODES}
    second, _ = make_shares(first, ShareRequest(neighbors, 3))
    for state in (first, second):
        content = send_over_wire(RecordDict({**codec.encode_state(state)}))
        assert codec.decode_state(content, 5, ROUND) == state
        assert codec.is_masked_round(content, ROUND)
        for other in (RoundId("7", 5), RoundId("8", 4)):
            assert codec.decode_state(content, 5, other) is None
            assert not codec.is_masked_round(content, other)
    used = send_over_wire(RecordDict({**codec.encode_used_state(ROUND)}))
    assert codec.decode_state(used, 5, ROUND) is None
    assert codec.is_masked_round(used, ROUND)
    for content in (RecordDict(), RecordDict({MASK_STATE: MetricRecord()})):
        assert codec.decode_state(content, 5, ROUND) is None
        assert not codec.is_masked_round(content, ROUND)
    assert keys.own_hash != b""
    kept = ConfigRecord({"run": "x"})
    content = RecordDict({**codec.encode_state(second), "availability": kept})
    assert codec.drop_mask_state(content) == RecordDict({"availability": kept})
