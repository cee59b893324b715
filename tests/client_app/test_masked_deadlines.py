"""Rounds with masks by the real clock, with Flower's own message store."""

import time

import pytest
from fedquorum.flower.codec.keys import SECURE_SUM_STEPS
from fedquorum.rules.round import NOT_UNMASKED
from fedquorum.server.quorum import Quorum
from fedquorum.server.virtual_clock import NO_REPLY_REASON
from flwr.app import Message

from tests.builders_masks import (
    NUM_NODES,
    MaskedFederation,
    compute_step,
    push_honestly,
    stay_silent_in,
)
from tests.builders_superlink import ENOUGH, SuperNode

pytestmark = pytest.mark.slow

TIMEOUT = 8.0
SLACK = 1.5  # seconds of a busy machine beyond the deadline of a round

KEYS, SHARES, SUM, UNMASK = SECURE_SUM_STEPS


@pytest.mark.parametrize("step", SECURE_SUM_STEPS)
def test_a_round_with_a_silent_node_ends_by_its_deadline(step: str) -> None:
    """Whatever the exchange; the sum of the others is exact, and the node is asked anew."""
    with MaskedFederation(TIMEOUT) as federation:
        assert federation.play(1) < TIMEOUT
        assert {status for status, _ in federation.outcomes.values()} == {"trained"}
        before = federation.model
        assert (before == compute_step({*range(NUM_NODES)})).all()
        federation.devices[2].push = stay_silent_in(step)
        seconds = federation.play(2)
        assert seconds < TIMEOUT + SLACK
        if step in (KEYS, SHARES):  # an eighth, not all of the time
            assert seconds < TIMEOUT / 2
        lost = () if step == UNMASK else (2,)
        expected = dict.fromkeys(range(NUM_NODES), ("trained", None))
        assert federation.outcomes == expected | dict.fromkeys(lost, ("failed", NO_REPLY_REASON))
        assert (federation.model - before == compute_step({*range(NUM_NODES)} - {*lost})).all()
        federation.devices[2].push = push_honestly
        federation.play(3)
        assert {status for status, _ in federation.outcomes.values()} == {"trained"}


def test_a_round_that_is_lost_in_each_exchange_ends_by_its_deadline() -> None:
    """Where too few are left, whether they were silent in one exchange or one in each."""
    with MaskedFederation(TIMEOUT) as federation:
        for device, step in zip(federation.devices, SECURE_SUM_STEPS, strict=False):
            device.push = stay_silent_in(step)
        assert federation.play(1) < TIMEOUT + SLACK
        assert federation.strategy.step_result.report.rejection_reason == NOT_UNMASKED
        assert not federation.model.any()


def test_a_node_that_is_late_after_its_shares_is_unmasked_by_the_others() -> None:
    """It is late when a quorum closes the round, and is asked anew."""
    # The grace lets all five send keys and shares, though four are enough.
    with MaskedFederation(ENOUGH, quorum=Quorum(4, grace_seconds=0.5)) as federation:
        delays = [3.0]

        def push_late(node: SuperNode, step: str, reply: Message) -> None:
            if step == SUM and delays:
                time.sleep(delays.pop())
            node.push(reply)

        federation.devices[2].push = push_late
        assert federation.play(1) < ENOUGH / 2
        status, _ = federation.outcomes[2]
        assert status == "late"
        others = {*range(NUM_NODES)} - {2}
        counted = {k for k, (status, _) in federation.outcomes.items() if status == "trained"}
        assert counted == others
        assert (federation.model == compute_step(others)).all()
        until = time.monotonic() + ENOUGH
        for server_round in range(2, 100):
            federation.play(server_round)
            if federation.outcomes[2][0] == "trained" or time.monotonic() > until:
                break
            time.sleep(0.2)
        assert federation.outcomes[2] == ("trained", None)
