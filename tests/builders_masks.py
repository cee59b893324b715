"""Nodes with masks, and Flower's own message store for tests of deadlines and of hostile nodes."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
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
    view_arrays,
)
from fedquorum.flower.codec.secure import find_step
from fedquorum.flower.mods import SecureSumMod
from fedquorum.flower.protocol import NativeProtocol
from fedquorum.flower.secure.settings import SecureAggregation
from fedquorum.server.exact_sum import ExactAccumulator
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from tests.builders_flower import build_named_strategy
from tests.builders_superlink import Federation, SuperNode

FloatArray = npt.NDArray[np.floating[Any]]

NUM_NODES = 5
SHAPE = (3, 2)


def build_app(
    find_client: Callable[[Context], int], train_array: Callable[[int, FloatArray], FloatArray]
) -> ClientApp:
    """Return an app of nodes of one client, which sends a sum if the server allows it.

    Parameters
    ----------
    find_client : callable
        Takes a node's context, and returns its client.
    train_array : callable
        Takes the client and an array of the model, and returns the trained array.
    """
    app = ClientApp()

    @app.query()
    def reply_with_ids(message: Message, context: Context) -> Message:
        return Message(encode_hosted_clients([find_client(context)]), reply_to=message)

    @app.train(mods=[SecureSumMod()])
    def train(message: Message, context: Context) -> Message:
        client = find_client(context)
        result = TrainResult(client, Status.DONE, num_examples=10.0)
        if is_inquiry(message.content):
            return Message(encode_train_reply([result]), reply_to=message)
        model, [task] = decode_train_request(message.content, [client])
        trained = {name: train_array(client, array) for name, array in model.items()}
        if task.known_weight is None:
            done = replace(result, arrays=trained)
            return Message(encode_train_reply([done]), reply_to=message)
        total = ExactAccumulator(model, decode_sum_bins(message.content, model))
        total.add_model(task.compute_numerator(10.0), trained)
        content = encode_train_reply([result], weighted_sum=total.get_sums())
        return Message(content, reply_to=message)

    return app


def move_array(client: int, array: FloatArray) -> FloatArray:
    """Return an array whose numbers are larger by (client + 1) / 4."""
    return array + np.float32((client + 1) / 4)


Push = Callable[[SuperNode, str, Message], None]
"""Pushes a node's reply to a step of a secure sum ("" for any other message), or another."""


class MaskedDevice:
    """A node of one client with masks; ``push`` may lose, delay or replace its replies.

    Attributes
    ----------
    sent : dict of str to Message
        The last reply with a record of each step, as its app returned it.
    """

    def __init__(self, client: int) -> None:
        self._app, self._state = build_app(lambda _: client, move_array), RecordDict()
        self.sent: dict[str, Message] = {}
        self.push: Push = push_honestly

    def __call__(self, node: SuperNode, message: Message) -> None:
        """Reply to a message."""
        context = Context(node._link.run_id, node.id, {}, self._state, {})
        step, reply = find_step(message.content) or "", self._app(message, context)
        self.push(node, step, reply)
        if step in reply.content:
            self.sent[step] = reply


def push_honestly(node: SuperNode, step: str, reply: Message) -> None:
    """Push a reply as it is."""
    node.push(reply)


def stay_silent_in(step: str) -> Push:
    """Return what pushes all replies but those to a step."""

    def push(node: SuperNode, found: str, reply: Message) -> None:
        if found != step:
            node.push(reply)

    return push


class MaskedFederation(Federation):
    """Five nodes with masks, and the strategy that averages their updates."""

    def __init__(self, timeout: float, **communication: Any) -> None:
        self.devices = [MaskedDevice(client) for client in range(NUM_NODES)]
        super().__init__(*self.devices)
        SecureAggregation().choose_size(NUM_NODES, 1.0)  # imports, which no deadline should see
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


def damage_record(record: Any, chance: random.Random) -> Any:
    """Return a record with another type, field, length or content."""
    if isinstance(record, ArrayRecord):
        values = view_arrays(record)["values"]
        return chance.choice(
            [
                encode_arrays({"values": values[:-1]}),
                encode_arrays({"values": values.view(np.int64)}),
                encode_arrays({"values": values, "more": values}),
                encode_arrays({"other": values}),
                ConfigRecord({"values": values.tobytes()}),
            ]
        )
    fields: dict[str, Any] = dict(record)
    key = chance.choice(sorted(fields))
    value = fields[key]
    if isinstance(value, bytes):
        flipped = bytes([value[0] ^ 1]) + value[1:]
        fields[key] = chance.choice([flipped, value[:-1], bytes(len(value)), 1, [value]])
    elif value and isinstance(value[0], bytes):
        i = chance.randrange(len(value))
        flipped = bytes([value[i][0] ^ 1]) + value[i][1:]
        other = value[(i + 1) % len(value)]
        new = chance.choice([flipped, other, value[i][:-1], bytes(len(value[i]))])
        fields[key] = chance.choice([[*value[:i], new, *value[i + 1 :]], value[:i], b"x"])
    elif value:
        fields[key] = chance.choice([value[:-1], [*value, 99], [value[0]] * len(value), "x", 7])
    else:
        fields[key] = chance.choice([[7], b"", 1.5])
    return ConfigRecord(fields)
