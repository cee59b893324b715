"""A node's side of masks: no update leaves it in the clear, and its secrets are deleted."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fedquorum.flower.codec import (
    Status,
    TrainResult,
    decode_masked_vector,
    decode_train_reply,
    encode_arrays,
    encode_inquiry,
    encode_train_reply,
)
from fedquorum.flower.codec import secure as codec
from fedquorum.flower.codec.keys import MASK_STATE
from fedquorum.flower.mods import IN_THE_CLEAR, NO_MASK_STATE, NO_SUM, SecureSumMod
from fedquorum.flower.secure.keys import RoundId
from fedquorum.flower.secure.messages import ShareRequest, UnmaskRequest, VectorRequest
from fedquorum.flower.secure.node import NodeState, make_keys, make_shares, mask_vector
from fedquorum.flower.validation import NO_CLIP_INDICATOR
from fedquorum.server.exact_sum import BinnedSum, PartialSums, compute_bin_width
from fedquorum.server.fixed_bins import FixedBins
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)

from server_app.engines.in_process import set_task_identity

NODES = (1, 2, 3)
UNIT = 2.0**-10
CONFIG: dict[str, Any] = {"protocol": 4, "server-round": 4, "client-id": [5], "sum-terms": 3}
BINS = FixedBins(compute_bin_width(3), {"w": -10})
SUMS: PartialSums = {"w": BinnedSum(0, np.array([3.0, -1.0]) * UNIT, np.zeros(2))}


class Node:
    """Node 1 of three, whose app replies with ``content``; the other two are real as well."""

    def __init__(self, server_round: int = 4) -> None:
        set_task_identity()
        self.context = Context(9, 1, {}, RecordDict(), {})
        self.round = RoundId("9", server_round)
        self.content = encode_train_reply(
            [TrainResult(5, Status.DONE, num_examples=2.0, loss=3.0, accuracy=0.5)],
            weighted_sum=SUMS,
        )
        self.content["user-metrics"] = MetricRecord({"auroc": 0.7})
        self.error: Exception | None = None
        self.calls = 0

    def send(self, content: Mapping[str, Any], message_type: str = MessageType.TRAIN) -> Message:
        """Return the node's reply."""

        def app(message: Message, context: Context) -> Message:
            self.calls += 1
            if self.error is not None:
                raise self.error
            return Message(self.content, reply_to=message)

        message = Message(RecordDict({**content}), 1, message_type, group_id="x")
        return SecureSumMod()(message, self.context, app)

    def ask(
        self,
        records: Mapping[str, Any],
        *,
        trains: bool = False,
        by_data: bool = False,
        clipping_norm: float | None = None,
    ) -> Message:
        """Return the node's reply to a step."""
        number = self.round.server_round
        inquiry = encode_inquiry(number, (5,), asked_before="mask-keys" not in records)
        if not trains:
            return self.send({**inquiry, **records})
        return self.send(
            {
                "config": ConfigRecord(
                    {
                        **CONFIG,
                        "server-round": number,
                        "start-round": [number],
                        "by-data": by_data,
                        **({} if clipping_norm is None else {"clipping_norm": clipping_norm}),
                    }
                ),
                "arrays": encode_arrays({"w": np.ones(2, np.float32)}),
                "weighted-sum-bins": ConfigRecord({"exponents": [-10]}),
                **records,
            }
        )

    def start(self) -> None:
        """Play the first two steps with all three nodes."""
        keys = {1: codec.decode_keys(self.ask(codec.encode_keys_request()).content)}
        states = {}
        for k in (2, 3):
            states[k], keys[k] = make_keys(k, self.round)
        request = ShareRequest({2: keys[2], 3: keys[3]}, 2)
        reply = self.ask(codec.encode_share_request(request))
        codec.decode_shares(reply.content)
        shares = {}
        for k in (2, 3):
            others = ShareRequest({i: keys[i] for i in NODES if i != k}, 2)
            _, shares[k] = make_shares(states[k], others)
        self.request = codec.encode_vector_request(
            VectorRequest(
                {k: one.sealed[1] for k, one in shares.items()},
                {k: one.mask_hashes[1] for k, one in shares.items()},
                {k: one.own_hashes[1] for k, one in shares.items()},
            )
        )

    @property
    def has_secrets(self) -> bool:
        """Whether the node's state has secrets of the round."""
        return "secrets" in self.context.state.get(MASK_STATE, ConfigRecord())


def read_failure(reply: Message) -> str | None:
    """Return the reason of the one client of a reply, which has nothing else."""
    [result] = decode_train_reply(reply.content)
    assert result.status is Status.FAILED
    assert reply.content.keys() == {"metrics", "failures"}
    return result.reason


UNMASK = codec.encode_unmask_request(UnmaskRequest((2, 3), ()))


def test_a_round_leaves_no_secrets() -> None:
    """They are there until the last answer; the masked integers are not those of the sum."""
    node = Node()
    assert not node.has_secrets
    node.start()
    assert node.has_secrets
    reply = node.ask(node.request, trains=True)
    assert {name for name, one in reply.content.items() if isinstance(one, ArrayRecord)} == {
        "masked-sum"
    }
    assert "weighted-sum-bins" not in reply.content
    [result] = decode_train_reply(reply.content)
    assert (result.num_examples, result.loss, result.accuracy) == (None, None, None)
    assert reply.content.keys() == {"metrics", "masked-sum"}
    vector = decode_masked_vector(reply.content)
    assert vector is not None
    assert vector.values.shape == (5,)
    assert not (vector.values[:4].reshape(2, 2) == BINS.to_integers(SUMS)).any()
    assert node.has_secrets
    shares = codec.decode_unmask_shares(node.ask(UNMASK).content)
    assert shares.own.keys() == {1, 2, 3}
    assert not node.has_secrets
    assert read_failure(node.ask(UNMASK)) == NO_MASK_STATE
    assert node.calls == 1


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize(("norm_bit", "count"), [(0, 1), (1, 0), (None, None), (0.5, None)])
def test_the_count_of_unclipped_updates_is_masked(
    by_data: bool, norm_bit: float | None, count: int | None
) -> None:
    """It is the last integer; a client that does not say if it clipped fails its node."""
    node, vectors = Node(), {}
    for kind, bit in (("one", norm_bit), ("none", 1)):
        result = TrainResult(5, Status.DONE, num_examples=2.0, norm_bit=bit)
        node.content = encode_train_reply([result], weighted_sum=SUMS)
        node.start()
        kept = codec.decode_state(node.context.state, 1, node.round)
        assert kept is not None
        reply = node.ask(node.request, trains=True, by_data=by_data, clipping_norm=1.0)
        if count is None and kind == "one":
            assert read_failure(reply) == NO_CLIP_INDICATOR
            return
        [sent] = decode_train_reply(reply.content)
        assert (sent.num_examples, sent.norm_bit) == (2.0 if by_data else None, None)
        vectors[kind] = _unmask_last(kept, node, reply)
    assert (vectors["one"], vectors["none"]) == (count, 0)


def _unmask_last(kept: NodeState, node: Node, reply: Message) -> int:
    """Return the last integer of a node's vector, by masking zeros with the same secrets."""
    request = codec.decode_vector_request(RecordDict(dict(node.request)))
    _, zeros = mask_vector(kept, request, np.zeros(5, np.uint64))
    sent = codec.decode_masked_vector(reply.content)
    assert sent is not None
    return int((sent.values - zeros.values)[-1])


def test_other_messages_reach_the_app() -> None:
    """Rounds without masks, inquiries, and queries."""
    node = Node()
    plain = encode_inquiry(4, (5,))
    assert node.send(plain).content is node.content
    node.start()
    assert node.send(plain).content is node.content
    assert node.send(node.request, MessageType.QUERY).content is node.content
    config = ConfigRecord({"protocol": 4, "server-round": 5, "client-id": [5]})
    assert node.send({"config": config}).content is node.content  # of another round
    assert node.calls == 4


@pytest.mark.parametrize("answered", [False, True])
def test_a_round_with_masks_gets_no_update_in_the_clear(answered: bool) -> None:
    """Neither between its steps nor after them."""
    node = Node()
    node.start()
    if answered:
        node.ask(node.request, trains=True)
        node.ask(UNMASK)
    assert read_failure(node.ask({}, trains=True)) == IN_THE_CLEAR
    assert node.calls == answered


@pytest.mark.parametrize("step", ["shares", "vector", "unmask"])
def test_a_node_without_secrets_says_so(step: str) -> None:
    """After a restart, as of a worker."""
    node = Node()
    node.start()
    if step == "unmask":
        node.ask(node.request, trains=True)
    node.context.state.clear()
    request = ShareRequest({k: make_keys(k, node.round)[1] for k in (2, 3)}, 2)
    records = {"shares": codec.encode_share_request(request), "vector": node.request}
    reply = node.ask(records.get(step, UNMASK), trains=step == "vector")
    assert read_failure(reply) == NO_MASK_STATE
    assert node.calls == (step == "unmask")


def test_new_keys_replace_the_secrets_of_an_earlier_round() -> None:
    """Whatever became of that round."""
    node = Node()
    node.start()
    before = codec.decode_state(node.context.state, 1, node.round)
    assert before is not None
    later = RoundId("9", 6)
    node.round = later
    node.ask(codec.encode_keys_request())
    after = codec.decode_state(node.context.state, 1, later)
    assert after is not None
    assert not {before.mask_secret, before.own_secret} & {after.mask_secret, after.own_secret}


OTHER_SUM: PartialSums = {"v": SUMS["w"]}
TOO_LARGE: PartialSums = {"w": BinnedSum(0, np.full(2, 2.0**60), np.zeros(2))}
DONE = [TrainResult(5, Status.DONE, num_examples=2.0)]
MODEL = {"w": np.ones(2, np.float32)}
BAD_REPLIES = {
    "a model": (encode_train_reply([TrainResult(5, Status.DONE, arrays=MODEL)]), NO_SUM),
    "nothing": (encode_train_reply(DONE), NO_SUM),
    "another array": (encode_train_reply(DONE, weighted_sum=OTHER_SUM), "none of the model's"),
    "too large": (encode_train_reply(DONE, weighted_sum=TOO_LARGE), "holds values up to"),
}


@pytest.mark.parametrize("kind", BAD_REPLIES)
def test_an_app_without_a_usable_sum_fails(kind: str) -> None:
    """And its arrays stay on the node."""
    node = Node()
    node.start()
    node.content, reason = BAD_REPLIES[kind]
    assert reason in (read_failure(node.ask(node.request, trains=True)) or "")
    assert not node.has_secrets


def test_clients_that_all_fail_send_no_vector() -> None:
    """Nor any array that the app may have added."""
    node = Node()
    node.start()
    node.content = encode_train_reply([TrainResult(5, Status.FAILED, reason="broke")], MODEL)
    reply = node.ask(node.request, trains=True)
    assert read_failure(reply) == "broke"


def test_an_error_of_the_app_passes() -> None:
    """As an error reply and as an exception, and the secrets are gone."""
    node = Node()
    node.start()
    node.error = RuntimeError("broke")
    with pytest.raises(RuntimeError, match="broke"):
        node.ask(node.request, trains=True)
    assert not node.has_secrets
    node.start()

    def erring(message: Message, context: Context) -> Message:
        return Message(Error(1, "not today"), reply_to=message)

    message = Message(RecordDict({**node.request, "config": ConfigRecord(CONFIG)}), 1, "train")
    message.content["arrays"] = encode_arrays(MODEL)
    message.content["weighted-sum-bins"] = ConfigRecord({"exponents": [-10]})
    assert SecureSumMod()(message, node.context, erring).error.reason == "not today"


def test_a_request_without_fixed_bins_is_refused() -> None:
    """Before the app trains."""
    node = Node()
    node.start()
    dynamic = {**node.request, "weighted-sum-bins": ArrayRecord()}
    reason = read_failure(node.ask(dynamic, trains=True))
    assert reason == "a masked sum needs bins that are fixed before training"
    assert node.calls == 0
