"""Play rounds of secure sums, with nodes that are lost and messages that are changed."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fedquorum.flower.secure.errors import ProtocolViolationError
from fedquorum.flower.secure.keys import RoundId, Vector
from fedquorum.flower.secure.node import NodeState, make_keys, make_shares, mask_vector, unmask
from fedquorum.flower.secure.plan import GraphSize
from fedquorum.flower.secure.server import SecureSum

ROUND = RoundId("run", 3)
LARGE = 2**51
"""No number of a vector is larger, as of a part of an update."""

STEPS = ("keys", "shares", "vector", "unmask")
Change = Callable[[str, int, Any], Any]
"""(step, node, message) -> the message that arrives, None if none does."""


@dataclass
class Play:
    """A round, step by step.

    Parameters
    ----------
    nodes : collection of int
    size : GraphSize
    length : int
        The length of the vectors, which are random by node id.
    complaints : list
        Nodes that sent no vector because of a message, and the sender of that message.
    """

    nodes: Collection[int]
    size: GraphSize
    length: int = 10
    states: dict[int, NodeState] = field(default_factory=dict)
    sent: dict[str, dict[int, Any]] = field(default_factory=dict)
    complaints: list[tuple[int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = SecureSum(ROUND, self.nodes, 1, self.length)
        self.vectors = {
            k: np.random.default_rng(k).integers(-LARGE, LARGE, self.length).view(np.uint64)
            for k in self.nodes
        }

    def run(self, deliver: Callable[[str, int, Any], None]) -> tuple[Vector, tuple[int, ...]]:
        """Play all steps; ``deliver`` gives a message to the server, or not."""
        for k in self.nodes:
            self.states[k], keys = make_keys(k, ROUND)
            self._send("keys", k, keys, deliver)
        for k, share_request in self.server.close_keys(lambda _: self.size).items():
            self.states[k], shares = make_shares(self.states[k], share_request)
            self._send("shares", k, shares, deliver)
        for k, vector_request in self.server.close_shares().items():
            vector = self.vectors[k].copy()
            try:
                self.states[k], masked = mask_vector(self.states[k], vector_request, vector)
            except ProtocolViolationError as error:
                self.complaints.append((k, error.sender))
                continue
            self._send("vector", k, masked, deliver)
        for k, unmask_request in self.server.close_vectors().items():
            self._send("unmask", k, unmask(self.states[k], unmask_request), deliver)
        return self.server.finish()

    def _send(
        self, step: str, node: int, message: Any, deliver: Callable[[str, int, Any], None]
    ) -> None:
        self.sent.setdefault(step, {})[node] = message
        deliver(step, node, message)

    def receive(self, step: str, node: int, message: Any) -> None:
        """Give the server a message."""
        receive: Mapping[str, Callable[[int, Any], None]] = {
            "keys": self.server.receive_keys,
            "shares": self.server.receive_shares,
            "vector": self.server.receive_vector,
            "unmask": self.server.receive_unmask,
        }
        receive[step](node, message)

    def lose(self, lost: Mapping[str, Collection[int]]) -> Callable[[str, int, Any], None]:
        """Return what delivers all messages but those of lost nodes, from their step on."""

        def deliver(step: str, node: int, message: Any) -> None:
            earlier = STEPS[: STEPS.index(step) + 1]
            if not any(node in lost.get(one, ()) for one in earlier):
                self.receive(step, node, message)

        return deliver

    def add_up(self, nodes: Collection[int]) -> Vector:
        """Return the sum of these nodes' vectors, by Python's integers."""
        total = [sum(int(self.vectors[k][i]) for k in nodes) % 2**64 for i in range(self.length)]
        return np.array(total, dtype=np.uint64)
