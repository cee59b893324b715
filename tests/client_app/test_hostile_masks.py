"""Nodes that break the protocol of masks, with Flower's own message store.

docs/reliability.md reports ``pytest tests/client_app/test_hostile_masks.py -s --long``.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from copy import copy

import numpy as np
import pytest
from fedquorum.flower.codec import Status, TrainResult, encode_arrays, encode_train_reply
from fedquorum.flower.codec.keys import SECURE_SUM_STEPS
from fedquorum.rules.round import NOT_UNMASKED
from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import make_message

from tests.builders_masks import (
    NUM_NODES,
    SHAPE,
    MaskedDevice,
    MaskedFederation,
    compute_step,
    damage_record,
    push_honestly,
)
from tests.builders_superlink import SuperNode
from tests.cases import is_long, sample_cases

pytestmark = pytest.mark.slow

MESSAGES = 1000
BATCH = 20  # rounds of one federation
TIMEOUT = 16.0  # of which an eighth is enough for five nodes on a busy machine
SLACK = 2.0  # seconds of a busy machine beyond the deadline of a round

KEYS, SHARES, SUM, UNMASK = SECURE_SUM_STEPS
NEXT = {KEYS: SHARES, SHARES: SUM, SUM: UNMASK, UNMASK: KEYS}


def replace_records(reply: Message, records: RecordDict) -> Message:
    """Return a reply with other records."""
    changed = copy(reply)
    changed.content = records
    return changed


class Attack:
    """What a node does with one reply of a round.

    Parameters
    ----------
    step : str
        The exchange.
    way : str
        One of ``WAYS``.
    device, other : MaskedDevice
        The hostile node, and one whose messages it may repeat.
    """

    def __init__(
        self, step: str, way: str, device: MaskedDevice, other: MaskedDevice, seed: int
    ) -> None:
        self._step, self._way = step, way
        self._own, self._others = device.sent, other.sent
        self._chance = random.Random(seed)

    def __call__(self, node: SuperNode, step: str, reply: Message) -> None:
        """Push a reply, or what the node has in its place."""
        if step != self._step or step not in reply.content:  # it has a part no more
            node.push(reply)
        else:
            WAYS[self._way](self, node, reply)

    def _damage(self, reply: Message) -> Message:
        records = {**reply.content}
        records[self._step] = damage_record(records[self._step], self._chance)
        return replace_records(reply, RecordDict(records))

    def damage(self, node: SuperNode, reply: Message) -> None:
        """Change a field of the record."""
        node.push(self._damage(reply))

    def drop(self, node: SuperNode, reply: Message) -> None:
        """Leave out the record."""
        records = {k: v for k, v in reply.content.items() if k != self._step}
        node.push(replace_records(reply, RecordDict(records)))

    def repeat_own(self, node: SuperNode, reply: Message) -> None:
        """Send what it sent in the round before."""
        node.push(replace_records(reply, self._own[self._step].content))

    def repeat_others(self, node: SuperNode, reply: Message) -> None:
        """Send what another node sent in the round before, as its own."""
        records = {**reply.content}
        records[self._step] = self._others[self._step].content[self._step]
        node.push(replace_records(reply, RecordDict(records)))

    def mix(self, node: SuperNode, reply: Message) -> None:
        """Add the record of another step."""
        step = NEXT[self._step]
        records = {**reply.content, step: self._own[step].content[step]}
        node.push(replace_records(reply, RecordDict(records)))

    def double(self, node: SuperNode, reply: Message) -> None:
        """Send two replies, of which one is damaged."""
        replies = [reply, self._damage(reply)]
        self._chance.shuffle(replies)
        for one in replies:
            node.push(one)

    def fail(self, node: SuperNode, reply: Message) -> None:
        """Send an error, or that the client failed."""
        if self._chance.random() < 0.5:
            node.push(make_message(metadata=reply.metadata, error=Error(1, "it broke")))
        else:
            failed = encode_train_reply([TrainResult(4, Status.FAILED, reason="it broke")])
            node.push(replace_records(reply, failed))

    def answer_for_another(self, node: SuperNode, reply: Message) -> None:
        """Reply for a client of another node."""
        content = encode_train_reply([TrainResult(1, Status.DONE)])
        records = RecordDict({**reply.content, "metrics": content["metrics"]})
        node.push(replace_records(reply, records))

    def send_model(self, node: SuperNode, reply: Message) -> None:
        """Send a model in the clear."""
        model = {"w": np.full(SHAPE, 7.0, np.float32)}
        records = {**reply.content, "arrays": encode_arrays(model)}
        node.push(replace_records(reply, RecordDict(records)))

    def contradict(self, node: SuperNode, reply: Message) -> None:
        """Push an object that names another exchange or another message."""
        field, value = self._chance.choice(
            [("_group_id", "train 1"), ("_reply_to_message_id", "0" * 64)]
        )
        said = copy(reply)
        said.metadata.__dict__[field] = value
        node.push(reply, says=said)

    def wait(self, node: SuperNode, reply: Message) -> None:
        """Reply after the exchange, if that is one of the short ones."""
        if self._step in (KEYS, SHARES):
            time.sleep(TIMEOUT / 8 + 0.2)
        node.push(reply)


WAYS: dict[str, Callable[[Attack, SuperNode, Message], None]] = {
    "damage": Attack.damage,
    "drop": Attack.drop,
    "repeat own": Attack.repeat_own,
    "repeat others": Attack.repeat_others,
    "mix": Attack.mix,
    "double": Attack.double,
    "fail": Attack.fail,
    "answer for another": Attack.answer_for_another,
    "model": Attack.send_model,
    "contradict": Attack.contradict,
    "wait": Attack.wait,
}
WEIGHTS = [10, *[2] * (len(WAYS) - 2), 1]
HOSTILE = 4  # the client of the hostile node


def check_round(federation: MaskedFederation, seconds: float, case: str) -> str:
    """Check that a round with a hostile message was exact or refused; return which."""
    assert seconds < TIMEOUT + SLACK, case
    node = federation.nodes[HOSTILE].id
    statuses, refused = federation.outcomes, federation.strategy.step_result.report.rejection_reason
    reasons = {k: reason or "" for k, (_, reason) in statuses.items()}
    blamed = f"node {node}"
    if refused is not None:
        assert refused == NOT_UNMASKED, case
        assert not federation.model.any(), case
        assert any(blamed in reason for reason in reasons.values()) or reasons[HOSTILE], case
        return "refused"
    trained = {k for k, (status, _) in statuses.items() if status == "trained"}
    assert (federation.model == compute_step(trained)).all(), case
    for client in {*range(NUM_NODES)} - trained:
        assert reasons[client], case
        assert client == HOSTILE or blamed in reasons[client], case
    if HOSTILE not in trained:
        return "left out"
    return "noted" if reasons[HOSTILE] else "ignored"


@pytest.mark.parametrize("batch", sample_cases(range(MESSAGES // BATCH), 1))
def test_no_message_that_breaks_the_protocol_changes_a_sum(batch: int) -> None:
    """The sum is exact over those that count, or the round is refused; the sender is named."""
    results: Counter[str] = Counter()
    with MaskedFederation(TIMEOUT) as federation:
        hostile, other = federation.devices[HOSTILE], federation.devices[1]
        federation.play(1)
        for number in range(2, BATCH + 2):
            seed = batch * BATCH + number
            chance = random.Random(seed)
            step = chance.choice(SECURE_SUM_STEPS)
            [way] = chance.choices([*WAYS], WEIGHTS)
            case = f"message {seed}: {way} in {step}"
            federation.model = np.zeros(SHAPE, np.float32)
            hostile.push = Attack(step, way, hostile, other, seed)
            results[check_round(federation, federation.play(number), case)] += 1
        hostile.push = push_honestly
        federation.model = np.zeros(SHAPE, np.float32)
        federation.play(BATCH + 2)
        assert (federation.model == compute_step({*range(NUM_NODES)})).all()
    print("\n", batch, dict(results))
    assert results["left out"] > 0
    assert is_long() or results["left out"] + results["refused"] >= BATCH / 2
