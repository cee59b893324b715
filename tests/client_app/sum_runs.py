"""Runs of some rounds with the real ClientApp in this process, for tests of sums."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from fedquorum import ComposedStrategy, Population
from fedquorum.flower.codec import (
    NamedArrays,
    decode_arrays,
    decode_partial_sum,
    encode_arrays,
    is_of_evaluation,
)
from fedquorum.flower.codec.secure import find_step
from fedquorum.flower.mods import get_base_message_type
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.server.privacy import AdaptiveClippingNorm, GaussianMechanism
from flwr.app import ConfigRecord, Context, Message, MessageType

from client_app import app as client_app
from server_app.engines.in_process import InProcessGrid, assign_id
from tests.builders_flower import build_named_strategy, evaluate_round

NUM_CLIENTS = 5
POPULATION = Population.from_size(NUM_CLIENTS, {0, 1})
OVERRIDES = (
    f"data=synth data.num_clients={NUM_CLIENTS} data.num_priority=2 data.samples_per_client=20 "
    "client.device=cpu client.local_epochs=1 seed=3"
)
RULES: Mapping[str, dict[str, Any]] = {
    "fedau": {"cutoff": 50},
    "average_participating": {},
    "average_all": {},
    "fedavg": {},
    "empirical": {},
    "known_statistics": {"rates": dict.fromkeys(range(NUM_CLIENTS), 0.7)},
}
FIXED_NORM = GaussianMechanism(0.0, 0.05, clients_clip=True)
ADAPTIVE_NORM = GaussianMechanism(0.0, 0.05, AdaptiveClippingNorm(), clients_clip=True)
PRIVACY = {"dp_fixed_client": FIXED_NORM, "dp_adaptive_client": ADAPTIVE_NORM}


class Run:
    """A run of some rounds in this process.

    Attributes
    ----------
    strategy : ComposedStrategy
    model : dict of array
    replies : list of Message
        The replies to all train messages.
    """

    def __init__(
        self,
        nodes: int,
        name: str = "fedau",
        overrides: str = "",
        rounds: int = 2,
        start: float = 0.0,
        *,
        population: Population = POPULATION,
        **communication: Any,
    ) -> None:
        self.strategy: ComposedStrategy = build_named_strategy(
            name, population, communication=NativeProtocol(**communication), **RULES[name]
        )
        config = {"experiment": "custom", "overrides": f"{OVERRIDES} {overrides}"}
        self.grid = self.make_grid(config, nodes)
        self.replies: list[Message] = []
        self.model: NamedArrays = {
            "linear.weight": np.full((10, 60), start, np.float32),
            "linear.bias": np.zeros(10, np.float32),
        }
        if self.strategy.needs_initial_evaluation:
            messages = self.strategy.configure_initial(encode_arrays(self.model), self.grid)
            self.strategy.aggregate_initial(self.grid.send_and_receive(messages))
        for server_round in range(1, rounds + 1):
            self.play(server_round)

    def make_grid(self, config: Mapping[str, Any], nodes: int) -> InProcessGrid:
        """Return the grid of the run."""
        return InProcessGrid(client_app.app, config, nodes)

    def play(self, server_round: int) -> None:
        """Play one more round."""
        arrays = encode_arrays(self.model)
        messages = self.strategy.configure_train(server_round, arrays, ConfigRecord(), self.grid)
        replies = list(self.grid.send_and_receive(messages))
        self.replies += replies
        combined, _ = self.strategy.aggregate_train(server_round, replies)
        if combined is not None:
            self.model = decode_arrays(combined)
            evaluate_round(self.strategy, self.grid, server_round, combined)

    @property
    def bits(self) -> dict[str, bytes]:
        """The bits of the model."""
        return {name: array.tobytes() for name, array in self.model.items()}

    @property
    def count_of_sums(self) -> int:
        """The number of replies with a weighted sum; no other reply has a client's model."""
        sums = [decode_partial_sum(reply.content) is not None for reply in self.replies]
        for reply, is_sum in zip(self.replies, sums, strict=True):
            assert is_sum is ("arrays" not in reply.content)
        return sum(sums)


class RecordingGrid(InProcessGrid):
    """Keeps all messages of training, and may lose or change replies.

    Attributes
    ----------
    sent : list of tuple
        Each request of training and the reply of its node, as it left the node.
    evaluated : list of tuple
        Those of evaluations.
    change : callable
        (step, node, reply) -> the reply that arrives, None if none does. A step is the name of the
        record that makes a message part of a secure sum; "" for any other message. That of an
        evaluation has "evaluation " before it.
    """

    def __init__(self, run_config: Mapping[str, Any], nodes: int) -> None:
        super().__init__(client_app.app, run_config, nodes)
        self.sent: list[tuple[Message, Message]] = []
        self.evaluated: list[tuple[Message, Message]] = []
        self.change: Callable[[str, int, Message], Message | None] = lambda step, node, reply: reply
        self.before: Callable[[str, int, Context], None] = lambda step, node, context: None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the node of each message reply, and return the messages' ids."""
        ids = []
        for message in messages:
            ids.append(assign_id(message))
            node, kind = message.metadata.dst_node_id, get_base_message_type(message)
            is_exchange = kind in {MessageType.TRAIN, MessageType.EVALUATE}
            step = find_step(message.content) or "" if is_exchange else ""
            evaluates = kind == MessageType.EVALUATE or is_of_evaluation(message.content)
            step = f"evaluation {step}" if evaluates else step
            if is_exchange:
                self.before(step, node, self._contexts[node])
            reply: Message | None = self._handle(message)
            if is_exchange and reply is not None:
                (self.evaluated if evaluates else self.sent).append((message, reply))
                reply = self.change(step, node, reply)
            if reply is not None:
                self._replies[ids[-1]] = reply
        return ids


class RecordedRun(Run):
    """A run whose messages can be read, lost and changed."""

    grid: RecordingGrid

    def make_grid(self, config: Mapping[str, Any], nodes: int) -> RecordingGrid:
        """Return the grid of the run."""
        return RecordingGrid(config, nodes)

    @property
    def statuses(self) -> dict[int, tuple[str, str | None]]:
        """The status and reason of each client in the last round."""
        report = self.strategy.step_result.report
        return {d.client: (d.status, d.reason) for d in report.decisions}
