"""Generated hostile messages through Flower's own message store, against every strategy.

Two federations play the same rounds. In one, some nodes push anything: spoilt objects,
objects that contradict each other, or false senders and messages. In the other, the same nodes
report a failure. Models, states and weights must agree to the last bit.
"""

import logging
import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum import ComposedStrategy, Population
from fedquorum.client.availability.rates import ParticipationRates
from fedquorum.flower.codec import (
    EvaluateResult,
    NamedArrays,
    Status,
    TrainResult,
    decode_arrays,
    decode_evaluate_request,
    decode_train_request,
    encode_arrays,
    encode_evaluate_reply,
    encode_hosted_clients,
    encode_train_reply,
)
from fedquorum.registry import NAMED_STRATEGIES
from fedquorum.rules.decisions import ClientDecision
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree

from conf.compose import compose_overrides
from server_app.runs.build import build_strategy
from tests.builders import NEEDED_WORDS
from tests.builders_flower import get_state_bytes
from tests.builders_objects import (
    Generator,
    Objects,
    corrupt_one_object,
    is_taken,
    is_valid_reply,
    list_reply_objects,
)
from tests.builders_superlink import Behavior, Federation, SuperNode
from tests.cases import is_long, sample_cases

NUM_CLIENTS, HONEST = 10, 4
PRIORITY = frozenset((0, 1, 4, 5))
TIMEOUT = 3.0  # seconds of a round in which a node does not reply
REFUSED = 0.003  # fraction of the objects refused by the SuperLink that are pushed
LONGEST = 7.0  # seconds: of a round on a busy machine
LARGE = 3_000_000  # numbers, 12 MB: of the largest array that is pushed
MEMORY = (NUM_CLIENTS - HONEST) * 4 * 4 * LARGE
"""Bytes by which the process may grow, with all nodes in it: each hostile one has its largest array
under way, made, encoded, stored and read."""
KEPT = MEMORY // 4
"""Bytes by which it may grow from the first third of many rounds to the last. The largest arrays
pushed in between come to about 190 MB; the allocator alone moves by 35."""
MODEL: NamedArrays = {
    "w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3),
    "n": np.array(3, dtype=np.int64),
}
PRIVATE = ("fedau", "average_all")


# --- replies of honest clients -------------------------------------------------------------------


def make_honest_result(message: Message, client: int) -> RecordDict:
    """Return an honest client's update, which depends only on the round and the client."""
    model, (task,) = decode_train_request(message.content, [client])
    rng = np.random.default_rng([task.server_round, client])
    arrays = {
        name: (a + rng.normal(scale=0.1, size=a.shape)).astype(a.dtype) for name, a in model.items()
    }
    answer = TrainResult(
        client,
        Status.DONE,
        num_examples=int(rng.integers(1, 100)),
        loss=float(rng.uniform(1.0, 1.2)),
        accuracy=float(rng.uniform(0.4, 0.6)),
        arrays=arrays,
    )
    return encode_train_reply([answer])


def make_honest_evaluation(message: Message, client: int) -> RecordDict:
    """Return an honest client's evaluation."""
    _, (task,) = decode_evaluate_request(message.content, [client])
    rng = np.random.default_rng([7, task.server_round, client])
    loss, accuracy = float(rng.uniform(1.0, 1.2)), float(rng.uniform(0.4, 0.6))
    answer = EvaluateResult(
        client,
        Status.DONE,
        num_examples=20,
        loss=loss if task.train else math.nan,
        accuracy=accuracy if task.train else math.nan,
        test_num_examples=5 if task.test else math.nan,
        test_loss=loss if task.test else math.nan,
        test_accuracy=accuracy if task.test else math.nan,
    )
    return encode_evaluate_reply([answer])


def make_honest_content(message: Message, client: int) -> RecordDict:
    """Return an honest client's reply to any message."""
    if message.metadata.message_type == MessageType.QUERY:
        return encode_hosted_clients([client])
    of = (
        make_honest_result
        if message.metadata.message_type == MessageType.TRAIN
        else make_honest_evaluation
    )
    return of(message, client)


def make_failed_content(message: Message, client: int) -> RecordDict:
    """Return the reply of a failed client."""
    if message.metadata.message_type == MessageType.TRAIN:
        return encode_train_reply([TrainResult(client, Status.FAILED, reason="fails")])
    return encode_evaluate_reply([EvaluateResult(client, Status.FAILED, reason="fails")])


# --- attacks of hostile nodes --------------------------------------------------------------------


Attack = Callable[[SuperNode, Message, int, Generator], None]


def push(node: SuperNode, reply: Message, objects: Objects) -> None:
    """Push objects as the reply to a message."""
    stored = message_to_proto(remove_content_from_message(reply))
    stored.metadata.message_id = objects.root
    node.push_objects(stored, objects.tree, objects.contents)


def spoilt_objects(node: SuperNode, message: Message, client: int, rng: Generator) -> None:
    """Push an honest reply with one spoilt object."""
    reply = Message(make_honest_content(message, client), reply_to=message)
    objects = corrupt_one_object(list_reply_objects(reply), rng)
    while is_valid_reply(objects) or not (is_taken(objects) or rng.uniform() < REFUSED):
        objects = corrupt_one_object(list_reply_objects(reply), rng)
    push(node, reply, objects)


def spoilt_announcement(node: SuperNode, message: Message, client: int, rng: Generator) -> None:
    """Announce objects other than those of the reply."""
    reply = Message(make_honest_content(message, client), reply_to=message)
    objects = list_reply_objects(reply)
    trees = (
        ObjectTree(object_id=next(iter(objects.contents))),
        ObjectTree(object_id="x" * 64, children=[objects.tree]),
        ObjectTree(object_id=objects.root, children=[ObjectTree(object_id="not an id")]),
    )
    push(node, reply, Objects(objects.root, objects.contents, trees[int(rng.integers(len(trees)))]))


def another_reply(node: SuperNode, message: Message, client: int, rng: Generator) -> None:
    """Push a message whose metadata differs from what the SuperLink checks."""
    reply = Message(make_honest_content(message, client), reply_to=message)
    said = Message(make_honest_content(message, client), reply_to=message)
    lies = {
        "_src_node_id": int(rng.integers(1, 2**62)),
        "_reply_to_message_id": "f" * 64,
        "_group_id": "train 12345",
        "_message_type": "query",
    }
    name = sorted(lies)[int(rng.integers(len(lies)))]
    said.metadata.__dict__[name] = lies[name]
    node.push(reply, says=said)


def unusable_content(node: SuperNode, message: Message, client: int, rng: Generator) -> None:
    """Push a well-formed reply with impossible content."""
    content = make_honest_content(message, client)
    metrics = dict(content.metric_records["metrics"])
    config = ConfigRecord({"client-id": [client] * 3, "reason": ["\x1b[2J\ud7ff" * 10_000] * 3})
    arrays = content.array_records.get("arrays", ArrayRecord())
    changes: tuple[Mapping[str, Any], ...] = (
        {"metrics": MetricRecord({**metrics, "num-examples": math.nan})},
        {"metrics": MetricRecord({**metrics, "num-examples": -(10**18)})},
        {"metrics": MetricRecord({**metrics, "loss": -1.0, "num-examples": 0})},
        {"metrics": MetricRecord({**metrics, "status": 99})},
        {"metrics": MetricRecord({**metrics, "client-id": 0 if client else 1})},
        {"metrics": MetricRecord({**metrics, "client-id": [*range(50_000)]})},
        {"metrics": MetricRecord({**metrics, "protocol": 1})},
        {"metrics": MetricRecord({**metrics, "\x1b[31m" * 60: 1.0})},
        {"metrics": MetricRecord()},
        {"metrics": MetricRecord({**metrics, "status": 3}), "failures": config},
        {"metrics": MetricRecord({**metrics, "status": 3}), "failures": ConfigRecord()},
        {"metrics": MetricRecord({**metrics, "accuracy": 2.0})},
        {"metrics": arrays},
        {f"record {i}": MetricRecord() for i in range(500)} | {"metrics": MetricRecord()},
    )
    changed = changes[int(rng.integers(len(changes)))]
    node.push(Message(RecordDict({**content, **changed}), reply_to=message))


def other_arrays(node: SuperNode, message: Message, client: int, rng: Generator) -> None:
    """Push arrays other than the model's."""
    content = make_honest_content(message, client)
    if "arrays" not in content.array_records:
        unusable_content(node, message, client, rng)
        return
    arrays = decode_arrays(content.array_records["arrays"])
    w = arrays["w"]
    changes: tuple[NamedArrays, ...] = (
        {**arrays, "w": w * np.nan},
        {**arrays, "w": np.full_like(w, np.inf)},
        {**arrays, "w": np.full_like(w, 1e30)},
        {**arrays, "w": w.astype(np.float64)},
        {**arrays, "w": w.reshape(3, 5)},
        {**arrays, "w": w[:0]},
        {**arrays, "w": np.zeros((2, 5, 3), dtype=np.float32)},
        {**arrays, "x": w},
        {"w": w},
        {"w": w, "\n" * 300: arrays["n"]},
        {**arrays, "w": np.zeros(LARGE, dtype=np.float32)},
    )
    content["arrays"] = encode_arrays(changes[int(rng.integers(len(changes)))])
    node.push(Message(content, reply_to=message))


def withhold_objects(node: SuperNode, message: Message, client: int, rng: Generator) -> None:
    """Announce a reply, and upload nothing or half of it."""
    reply = Message(make_honest_content(message, client), reply_to=message)
    objects = list_reply_objects(reply)
    names = list(objects.contents)
    half = {k: objects.contents[k] for k in names[: int(rng.integers(len(names)))]}
    push(node, reply, Objects(objects.root, half, objects.tree))


ATTACKS: Mapping[str, tuple[Attack, float]] = {
    "spoilt objects": (spoilt_objects, 0.44),
    "spoilt announcement": (spoilt_announcement, 0.01),
    "another reply": (another_reply, 0.1),
    "unusable content": (unusable_content, 0.24),
    "other arrays": (other_arrays, 0.2),
    "silence": (withhold_objects, 0.01),
}


@dataclass
class Hostile:
    """A node that attacks with every reply, or fails in the reference federation."""

    client: int
    attacks: bool
    pushed: Counter[str] = field(default_factory=Counter)

    def __call__(self, node: SuperNode, message: Message) -> None:
        """Reply to one message."""
        if message.metadata.message_type == MessageType.QUERY:
            node.push(Message(make_honest_content(message, self.client), reply_to=message))
            return
        if self.attacks:
            rng = np.random.default_rng([self.client, self.pushed.total()])
            weights = [share for _, share in ATTACKS.values()]
            kind = str(rng.choice(list(ATTACKS), p=weights))
            self.pushed[kind] += 1
            with suppress(Exception):  # refused by the SuperLink
                ATTACKS[kind][0](node, message, self.client, rng)
            if kind == "silence":
                return
        # The store takes one reply: this one, if it refused the hostile one.
        with suppress(Exception):
            node.push(Message(make_failed_content(message, self.client), reply_to=message))


def honest(client: int) -> Behavior:
    """Return the behavior of an honest node."""
    return lambda node, message: node.push(
        Message(make_honest_content(message, client), reply_to=message)
    )


# --- the rounds ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """The models, states and decisions after each round."""

    models: Sequence[bytes]
    state: Mapping[str, bytes]
    decisions: Sequence[Sequence[ClientDecision]]
    seconds: Sequence[float]
    memory: Sequence[int]
    pushed: Counter[str]


def play(name: str, *, private: bool, attacks: bool, rounds: int) -> Played:
    """Run rounds of a strategy against nodes that attack, or that fail instead."""
    strategy = build_strategy_by_name(name, private=private)
    hostile = [Hostile(k, attacks) for k in range(HONEST, NUM_CLIENTS)]
    model = encode_arrays(make_model(private))
    models, decisions, seconds, memory = [], [], [], []
    with Federation(*map(honest, range(HONEST)), *hostile) as federation:
        grid = federation.grid
        if strategy.needs_initial_evaluation:
            sent = strategy.configure_initial(model, grid)
            strategy.aggregate_initial(grid.send_and_receive(sent, timeout=TIMEOUT))
        for number in range(1, rounds + 1):
            started = time.monotonic()
            sent = strategy.configure_train(number, model, ConfigRecord(), grid)
            replies = grid.send_and_receive(sent, timeout=TIMEOUT)
            seconds.append(time.monotonic() - started)
            moved, _ = strategy.aggregate_train(number, replies)
            model = moved or model
            sent = strategy.configure_evaluate(number, model, ConfigRecord(), grid)
            strategy.aggregate_evaluate(number, grid.send_and_receive(sent, timeout=TIMEOUT))
            models.append(b"".join(a.tobytes() for a in decode_arrays(model).values()))
            decisions.append(strategy.step_result.report.decisions)
            memory.append(measure_resident_bytes())
    pushed = sum((node.pushed for node in hostile), Counter[str]())
    return Played(models, get_state_bytes(strategy), decisions, seconds, memory, pushed)


def measure_resident_bytes() -> int:
    """Return the current memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def build_strategy_by_name(name: str, *, private: bool) -> ComposedStrategy:
    """Return a strategy, private or not, without noise."""
    words = [f"strategy={name}", "rounds=1000", "data.num_clients=10", "data.num_priority=4"]
    words += [f"engine.round_timeout={TIMEOUT}", *NEEDED_WORDS.get(name, ())]
    if name == "fedalign":
        words += ["strategy.warmup_fraction=0.1", "strategy.epsilon=0.3"]
    if private:
        words += ["privacy=dp_fixed_server", "privacy.noise_multiplier=0"]
        words += ["privacy.clipping_norm=100"]
        words += ["strategy.cutoff=50"] * (name == "fedau")
    composed = compose_overrides(tuple(words))
    population = Population(tuple(range(NUM_CLIENTS)), PRIORITY)
    return build_strategy(composed, population, ParticipationRates(np.full(NUM_CLIENTS, 0.5)))


def make_model(private: bool) -> NamedArrays:
    """Return the initial model; a private one has no integers."""
    return {"w": MODEL["w"]} if private else MODEL


CASES = [
    *sample_cases(sorted({*NAMED_STRATEGIES, "composed"}), 1),
    *sample_cases([f"private {name}" for name in PRIVATE], 1),
]
ROUNDS = 220 if is_long() else 5  # 220 take 2,000 messages


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_hostile_messages_have_no_effect(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Model, state and weights are as if the hostile nodes had failed; each has a reason."""
    caplog.set_level(logging.CRITICAL, "flwr")  # pytest would keep 500 MB of lines
    name, private = case.removeprefix("private "), case.startswith("private ")
    before = measure_resident_bytes()
    attacked = play(name, private=private, attacks=True, rounds=ROUNDS)
    reference = play(name, private=private, attacks=False, rounds=ROUNDS)
    for decisions, others in zip(attacked.decisions, reference.decisions, strict=True):
        for decision, other in zip(decisions, others, strict=True):
            assert decision.weight == other.weight
            if decision.client < HONEST:
                assert decision == other
            else:
                assert decision.status in ("failed", "rejected")
                assert decision.reason
                assert len(decision.reason) <= 1000
                assert decision.reason.isprintable()
    assert attacked.models == reference.models
    assert attacked.state == reference.state
    assert max(attacked.seconds) < LONGEST
    assert max(attacked.memory) - before < MEMORY
    third = ROUNDS // 3
    grown = max(attacked.memory[-third:]) - max(attacked.memory[:third])
    assert grown < KEPT or not is_long()
    counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(attacked.pushed.items()))
    print(
        f"\n{case}: {attacked.pushed.total()} messages in {ROUNDS} rounds: {counts}; at most "
        f"{max(attacked.seconds):.1f} s a round; memory {max(attacked.memory) - before:+,} bytes, "
        f"{grown:+,} from the first third to the last"
    )
