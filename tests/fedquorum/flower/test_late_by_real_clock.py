"""Late updates that count by the real clock, over Flower's real message store."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, NativeProtocol
from fedquorum.flower.codec import (
    NamedArrays,
    Status,
    TrainResult,
    TrainTask,
    decode_arrays,
    encode_arrays,
)
from fedquorum.flower.waiting_grid import WaitingGrid
from fedquorum.rules.decisions import ClientDecision
from fedquorum.rules.robustness import Robustness
from fedquorum.rules.staleness import LateUpdates
from fedquorum.server.quorum import Quorum
from fedquorum.server.under_way import LOST_REASON
from flwr.app import ConfigRecord
from flwr.superlink.servicer.runtime import runtime_handlers

from tests.builders_flower import build_named_strategy, make_scripted_app
from tests.builders_superlink import Device, Federation, SuperNode

ENOUGH = 20.0  # seconds; a deadline for which no test waits
START = encode_arrays({"w": np.zeros(2)})


def fit(client: int, task: TrainTask, arrays: NamedArrays) -> TrainResult:
    """Add client + 1 to the model received."""
    trained = {"w": arrays["w"] + (client + 1.0)}
    return TrainResult(client, Status.DONE, num_examples=10, arrays=trained)


class Run:
    """A run round by round, with the decisions of each."""

    def __init__(
        self, devices: list[Device], federation: Federation, strategy: ComposedStrategy
    ) -> None:
        self.devices, self.federation, self.strategy = devices, federation, strategy
        self.grid: WaitingGrid = strategy.build_waiting_grid(federation.grid.inner)
        self.model, self.number = START, 0

    def train(self) -> dict[int, ClientDecision]:
        """Play the training of the next round; return the decisions by client."""
        self.number += 1
        sent = self.strategy.configure_train(self.number, self.model, ConfigRecord(), self.grid)
        replies = self.grid.send_and_receive(sent, timeout=ENOUGH)
        model, _ = self.strategy.aggregate_train(self.number, replies)
        self.model = model or self.model
        return {d.client: d for d in self.strategy.step_result.report.decisions}

    def train_until(self, client: int) -> dict[int, ClientDecision]:
        """Play rounds until one decides about a client; return its decisions."""
        until = time.monotonic() + ENOUGH
        while client not in (decisions := self.train()):
            assert time.monotonic() < until, f"client {client} does not arrive"
        return decisions

    def evaluate(self) -> list[int]:
        """Evaluate the model after the round; return the clients that did."""
        sent = self.strategy.configure_evaluate(self.number, self.model, ConfigRecord(), self.grid)
        replies = self.grid.send_and_receive(sent, timeout=ENOUGH)
        self.strategy.aggregate_evaluate(self.number, replies)
        return [e.client for e in self.strategy.step_result.evaluations]

    @property
    def w(self) -> float:
        return float(decode_arrays(self.model)["w"][0])

    def find_node(self, client: int) -> SuperNode:
        """Return the node of a client, where each node has one."""
        return self.federation.nodes[client]


def build(clients: int, quorum: int, late: LateUpdates, **options: Any) -> ComposedStrategy:
    protocol = NativeProtocol(quorum=Quorum(quorum), late_updates=late, **options)
    return build_named_strategy("average_participating", clients, communication=protocol)


@contextmanager
def start_run(
    quorum: int, late: LateUpdates, *, nodes: int = 3, clients: int = 3, **options: Any
) -> Iterator[Run]:
    """Start nodes and a strategy; all that are held are let go at the end."""
    devices = [Device(make_scripted_app(clients, fit), i, nodes) for i in range(nodes)]
    with Federation(*devices) as federation:
        try:
            yield Run(devices, federation, build(clients, quorum, late, **options))
        finally:
            for device in devices:
                device.gate.set()


def summarize(decisions: dict[int, ClientDecision]) -> dict[int, tuple[str, int | None]]:
    return {k: (d.status, d.start_round) for k, d in decisions.items()}


def expire_messages(grid: WaitingGrid, seconds: float = 0.0) -> None:
    """Let the life of all messages end soon, for which a test would have to wait."""
    until = time.monotonic() + seconds
    pending = vars(grid)["_pending"]
    pending |= {key: replace(message, expires_at=until) for key, message in pending.items()}


def wait_for_reply(run: Run, client: int) -> None:
    """Wait until the store has a client's reply."""
    until = time.monotonic() + ENOUGH
    while run.federation.link.state.num_message_res() == 0:
        assert time.monotonic() < until, f"client {client} does not reply"
        time.sleep(0.01)


def test_a_late_update_counts_where_it_arrives() -> None:
    """It counts relative to the model that its client was sent, with its discount."""
    with start_run(2, LateUpdates(0.5)) as run:
        slow, other = run.devices[2], run.devices[1]
        slow.gate.clear()
        first = run.train()
        assert summarize(first) == {0: ("trained", 1), 1: ("trained", 1), 2: ("late", 1)}
        assert first[2].reply_seconds is None
        assert run.w == pytest.approx(1.5, rel=1e-15)
        assert summarize(run.train()) == {0: ("trained", 2), 1: ("trained", 2)}
        assert run.w == pytest.approx(3.0, rel=1e-15)
        other.gate.clear()
        slow.gate.set()
        third = run.train()
        assert summarize(third) == {0: ("trained", 3), 1: ("late", 3), 2: ("trained", 1)}
        assert third[2].staleness == 2
        assert third[2].discount == pytest.approx(3**-0.5, rel=1e-15)
        assert third[2].weight == pytest.approx(3**-0.5 / 2, rel=1e-15)
        assert third[2].reply_seconds is not None
        assert run.w == pytest.approx(3.0 + (1.0 + 3.0 * 3**-0.5) / 2, rel=1e-12)
        assert [(r.round, r.client) for r in run.strategy.step_result.report.late_replies] == [
            (1, 2)
        ]
        # Nobody trains from the models of rounds 1 and 2 any more.
        sent = {name for name in run.strategy.get_state() if name.startswith("sent.")}
        assert sent == {"sent.3.w"}
        assert [group for group in slow.asked if group] == ["train 1"]


def test_a_late_update_is_clipped_as_the_change_since_its_own_model() -> None:
    """The newest model is another one, from which it may be far away or near."""
    with start_run(2, LateUpdates(0.0), robustness=Robustness(clip_norm=1.0)) as run:
        run.devices[2].gate.clear()
        for _ in range(3):
            run.train()
        before = run.w
        run.devices[1].gate.clear()
        run.devices[2].gate.set()
        assert summarize(run.train())[2] == ("trained", 1)
        assert run.w - before == pytest.approx(2**-0.5, rel=1e-12)


def test_a_message_expires_after_its_life() -> None:
    """Then its client has failed and is free, and a reply counts nowhere."""
    with start_run(2, LateUpdates()) as run:
        run.devices[2].gate.clear()
        assert summarize(run.train())[2] == ("late", 1)
        expire_messages(run.grid)
        second = run.train()
        assert summarize(second)[2] == ("failed", 1)
        assert second[2].reason == "no reply in time"
        run.devices[2].gate.set()
        time.sleep(0.1)
        third = run.train()
        assert {d.start_round for d in third.values()} == {3}


def test_an_update_that_is_too_old_is_refused() -> None:
    """It does not close the round either, and its client is free again."""
    with start_run(2, LateUpdates(max_staleness=0)) as run:
        run.devices[2].gate.clear()
        run.train()
        assert {n for n in run.strategy.get_state() if n.startswith("sent.")} == set()
        run.devices[2].gate.set()
        found = run.train_until(2)
        now = run.number
        assert summarize(found) == {0: ("trained", now), 1: ("trained", now), 2: ("rejected", 1)}
        assert found[2].reason == f"its model is {now - 1} rounds old, and max_staleness is 0"
        assert run.train()[2].start_round == now + 1


def test_a_reply_that_the_store_repeats_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink may list a reply twice, and again in later rounds."""
    pull = runtime_handlers.pull_messages
    earlier: list[tuple[Any, Any]] = []

    def pull_again(*args: Any) -> Any:
        found = pull(*args)
        earlier.extend(zip(found.messages_list, found.message_object_trees, strict=True))
        for stored, tree in [*earlier]:
            found.messages_list.append(stored)
            found.message_object_trees.append(tree)
        return found

    monkeypatch.setattr(runtime_handlers, "pull_messages", pull_again)
    with start_run(2, LateUpdates()) as run:
        run.devices[2].gate.clear()
        run.train()
        run.devices[2].gate.set()
        statuses = [summarize(run.train_until(2)) for _ in range(3)]
    arrived = [s[2] for s in statuses if s.get(2, ("late", 0))[0] == "trained"]
    assert arrived.count(("trained", 1)) == 1
    assert len({*arrived}) == len(arrived)


def test_a_node_that_the_superlink_takes_for_lost_may_come_back() -> None:
    """The SuperLink would refuse the reply if anybody had asked for it meanwhile."""
    with start_run(2, LateUpdates()) as run:
        run.devices[2].gate.clear()
        run.train()
        state, node = run.federation.link.state, run.find_node(2)
        vars(state)["nodes"][node.id].online_until = 0.0
        assert set(run.train()) == {0, 1}
        run.devices[2].gate.set()
        time.sleep(0.1)
        assert set(run.train()) == {0, 1}
        state.acknowledge_node_heartbeat(node.id, 3600.0)
        run.devices[1].gate.clear()
        assert summarize(run.train()) == {0: ("trained", 4), 1: ("late", 4), 2: ("trained", 1)}


def test_a_round_does_not_wait_for_nodes_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if its quorum cannot be reached; what such a node trained may still count."""
    with start_run(3, LateUpdates()) as run:
        run.devices[2].gate.clear()
        state, node = run.federation.link.state, run.find_node(2)
        inner = vars(run.grid)["_grid"]
        find_nodes = inner.get_node_ids

        def get_node_ids() -> list[int]:
            # Between this question and the next for replies, the SuperLink would answer for a node
            # that it takes for lost, so the node leaves before the question.
            if "train 1" in run.devices[2].asked:
                vars(state)["nodes"][node.id].online_until = 0.0
            return list(find_nodes())

        with monkeypatch.context() as context:
            context.setattr(inner, "get_node_ids", get_node_ids)
            assert summarize(run.train()) == {0: ("trained", 1), 1: ("trained", 1), 2: ("late", 1)}
            assert set(run.train()) == {0, 1}
        state.acknowledge_node_heartbeat(node.id, 3600.0)
        run.devices[2].gate.set()
        assert summarize(run.train())[2] == ("trained", 1)


def test_only_free_nodes_are_evaluated_until_the_last_round() -> None:
    """An evaluation never queues behind a training; the last one waits for everybody."""
    with start_run(2, LateUpdates(), last_round=3) as run:
        run.devices[2].gate.clear()
        run.train()
        started = time.monotonic()
        assert run.evaluate() == [0, 1]
        run.train()
        assert run.evaluate() == [0, 1]
        run.train()
        timer = threading.Timer(0.3, run.devices[2].gate.set)
        timer.start()
        assert run.evaluate() == [0, 1, 2]
        assert 0.3 < time.monotonic() - started < ENOUGH
        assert summarize(
            {d.client: d for d in run.strategy.step_result.report.decisions}
        ).keys() == {0, 1}


def test_a_reply_waits_at_the_superlink_while_others_are_evaluated() -> None:
    """It takes no memory of the server, unless its message is about to expire."""
    with start_run(2, LateUpdates()) as run:
        slow, state = run.devices[2], run.federation.link.state
        slow.gate.clear()
        run.train()
        slow.gate.set()
        wait_for_reply(run, 2)
        assert run.evaluate() == [0, 1]
        assert state.num_message_res() == 1
        assert summarize(run.train_until(2))[2] == ("trained", 1)


def test_what_was_under_way_is_lost_with_an_interrupted_run() -> None:
    """The resumed run records it as failed, and asks its client in the round after."""
    with start_run(2, LateUpdates()) as run:
        run.devices[2].gate.clear()
        run.train()
        state, model = run.strategy.get_state(), decode_arrays(run.model)
    with start_run(2, LateUpdates()) as run:
        run.strategy.restore(state, model)
        run.number, run.model = 1, encode_arrays(model)
        second = run.train()
        assert summarize(second) == {0: ("trained", 2), 1: ("trained", 2), 2: ("failed", 1)}
        assert second[2].reason == LOST_REASON
        assert not any(run.devices[2].asked)
        assert run.train()[2].start_round == 3


def test_a_node_of_several_clients_is_free_when_none_is_under_way() -> None:
    """Its other clients are busy meanwhile, and the draw leaves them out."""
    late = LateUpdates(concurrency=2)
    with start_run(1, late, nodes=2, clients=8) as run:
        for device in run.devices:
            device.gate.clear()
        run.devices[0].gate.set()
        found = []
        for _ in range(6):
            decisions = run.train()
            found.append(decisions)
            held = {k for k, d in decisions.items() if d.status == "late"}
            busy = {k for k, d in decisions.items() if d.status == "busy"}
            assert not held & busy
        nodes = [{k for k, d in one.items() if d.status == "busy"} for one in found]
        assert any(nodes)
        assert len({*filter(None, run.devices[1].asked)}) <= 1


def test_the_state_of_a_run_is_restored_to_the_byte() -> None:
    """Who is under way, and since when, is in the checkpoint."""
    with start_run(2, LateUpdates()) as run:
        run.devices[2].gate.clear()
        run.train()
        state = run.strategy.get_state()
        other = build(3, 2, LateUpdates())
        other.restore(state, decode_arrays(run.model))
        again = other.get_state()
    assert state.keys() == again.keys()
    assert all(np.array_equal(state[name], again[name]) for name in state)
    assert state["under-way.client"].tolist() == [2]
