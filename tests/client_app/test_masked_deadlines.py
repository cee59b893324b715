"""Rounds with masks by the real clock, with Flower's own message store."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum import ComposedStrategy, Population
from fedquorum.flower.codec import (
    Status,
    TrainResult,
    decode_sum_bins,
    decode_train_request,
    encode_arrays,
    encode_hosted_clients,
    encode_train_reply,
    is_inquiry,
)
from fedquorum.flower.codec.keys import SECURE_SUM_STEPS
from fedquorum.flower.codec.secure import find_step
from fedquorum.flower.mods import SecureSumMod
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.rules.round import NOT_UNMASKED
from fedquorum.server.quorum import Quorum
from fedquorum.server.virtual_clock import NO_REPLY_REASON
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.training.update_sum import UpdateSum
from tests.builders_flower import build_named_strategy
from tests.builders_superlink import ENOUGH, Federation, SuperNode

pytestmark = pytest.mark.slow

NUM_NODES = 5
SHAPE = (3, 2)
TIMEOUT = 6.0
SLACK = 1.5  # seconds of a busy machine beyond the deadline of a round

KEYS, SHARES, SUM, UNMASK = SECURE_SUM_STEPS


def build_app(client: int) -> ClientApp:
    """Return an app whose client moves each number of the model by (client + 1) / 4."""
    app = ClientApp()

    @app.query()
    def reply_with_ids(message: Message, context: Context) -> Message:
        return Message(encode_hosted_clients([client]), reply_to=message)

    @app.train(mods=[SecureSumMod()])
    def train(message: Message, context: Context) -> Message:
        result = TrainResult(client, Status.DONE)
        if is_inquiry(message.content):
            return Message(encode_train_reply([result]), reply_to=message)
        arrays, [task] = decode_train_request(message.content, [client])
        total = UpdateSum(arrays, torch.device("cpu"), decode_sum_bins(message.content, arrays))
        moved = torch.from_numpy(arrays["w"] + np.float32((client + 1) / 4))[None]
        assert total.add([moved], [task.compute_numerator(10.0)]) == [None]
        content = encode_train_reply([result], weighted_sum=total.get_sums())
        return Message(content, reply_to=message)

    return app


class MaskedDevice:
    """A node of one client with masks; ``change`` may lose, delay or replace its replies."""

    def __init__(self, client: int) -> None:
        self._app, self._state = build_app(client), RecordDict()
        self.change: Callable[[str, Message], Message | None] = lambda step, reply: reply

    def __call__(self, node: SuperNode, message: Message) -> None:
        """Reply to a message."""
        context = Context(node._link.run_id, node.id, {}, self._state, {})
        step = find_step(message.content) or ""
        reply = self.change(step, self._app(message, context))
        if reply is not None:
            node.push(reply)


class MaskedFederation(Federation):
    """Five nodes with masks, and the strategy that averages their updates."""

    def __init__(self, timeout: float = TIMEOUT, **communication: Any) -> None:
        self.devices = [MaskedDevice(client) for client in range(NUM_NODES)]
        super().__init__(*self.devices)
        protocol = NativeProtocol(
            round_timeout=timeout, secure_aggregation=SecureAggregation(), **communication
        )
        self.strategy: ComposedStrategy = build_named_strategy(
            "average_all", Population.from_size(NUM_NODES), communication=protocol
        )
        self.waiting = self.strategy.build_waiting_grid(self.grid.inner)
        self.model = np.zeros(SHAPE, np.float32)

    def play(self, server_round: int) -> float:
        """Play a round; return its seconds."""
        started, arrays = time.monotonic(), encode_arrays({"w": self.model})
        configured = self.strategy.configure_train(
            server_round, arrays, ConfigRecord(), self.waiting
        )
        timeout = self.strategy.communication.reply_timeout
        replies = self.waiting.send_and_receive(configured, timeout=timeout)
        combined, _ = self.strategy.aggregate_train(server_round, replies)
        if combined is not None:
            self.model = combined["w"].numpy().copy()
        return time.monotonic() - started

    @property
    def outcomes(self) -> dict[int, tuple[str, str | None]]:
        """The status and the reason of each client."""
        return {d.client: (d.status, d.reason) for d in self.strategy.step_result.report.decisions}


def compute_step(clients: set[int]) -> np.float32:
    """Return by how much the updates of these clients move the model."""
    return np.float32(sum((k + 1) / 4 for k in clients) / NUM_NODES)


@pytest.mark.parametrize("step", SECURE_SUM_STEPS)
def test_a_round_with_a_silent_node_ends_by_its_deadline(step: str) -> None:
    """Whatever the exchange; the sum of the others is exact, and the node is asked anew."""
    with MaskedFederation() as federation:
        assert federation.play(1) < TIMEOUT
        assert {status for status, _ in federation.outcomes.values()} == {"trained"}
        before = federation.model
        assert (before == compute_step({*range(NUM_NODES)})).all()
        federation.devices[2].change = lambda found, reply: None if found == step else reply
        seconds = federation.play(2)
        assert seconds < TIMEOUT + SLACK
        if step in (KEYS, SHARES):  # an eighth, not all of the time
            assert seconds < TIMEOUT / 2
        lost = () if step == UNMASK else (2,)
        expected = dict.fromkeys(range(NUM_NODES), ("trained", None))
        assert federation.outcomes == expected | dict.fromkeys(lost, ("failed", NO_REPLY_REASON))
        assert (federation.model - before == compute_step({*range(NUM_NODES)} - {*lost})).all()
        federation.devices[2].change = lambda found, reply: reply
        federation.play(3)
        assert {status for status, _ in federation.outcomes.values()} == {"trained"}


def test_a_round_that_is_lost_in_each_exchange_ends_by_its_deadline() -> None:
    """Where too few are left, whether they were silent in one exchange or one in each."""
    with MaskedFederation() as federation:

        def be_silent(own: str) -> Callable[[str, Message], Message | None]:
            return lambda found, reply: None if found == own else reply

        for device, step in zip(federation.devices, SECURE_SUM_STEPS, strict=False):
            device.change = be_silent(step)
        assert federation.play(1) < TIMEOUT + SLACK
        assert federation.strategy.step_result.report.rejection_reason == NOT_UNMASKED
        assert not federation.model.any()


def test_a_node_that_is_late_after_its_shares_is_unmasked_by_the_others() -> None:
    """It is late when a quorum closes the round, and is asked anew."""
    # The grace lets all five send keys and shares, though four are enough.
    with MaskedFederation(ENOUGH, quorum=Quorum(4, grace_seconds=0.5)) as federation:
        delays = [3.0]

        def train_slowly(step: str, reply: Message) -> Message:
            if step == SUM and delays:
                time.sleep(delays.pop())
            return reply

        federation.devices[2].change = train_slowly
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
