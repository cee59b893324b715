"""Asynchronous training, event by event: FedBuff, FedAU and MIFA over late updates, in floats.

Every client is an event in a list, sorted by the time of its reply. A round ends with the reply
that completes the buffer. Shares no code with ``fedquorum``.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Train = Callable[[int, int, list[float]], list[float]]
"""Returns the model of a client that was asked in a round and starts from a model."""


@dataclass
class Server:
    """A server whose free clients start in every round; ``rule`` is one of the four below.

    ``seconds(k, t)`` is the response time of client k asked in round t, ``buffer`` the number of
    updates of a round, ``a`` the exponent of the discount.
    """

    w: list[float]
    num_clients: int
    rule: str
    buffer: int
    a: float
    train: Train
    seconds: Callable[[int, int], float]
    now: float = 0.0
    t: int = 0
    queue: list[tuple[float, int, int, list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = set(range(self.num_clients))
        self.memory = [[0.0] * len(self.w) for _ in range(self.num_clients)]
        self.intervals: list[list[int]] = [[] for _ in range(self.num_clients)]
        self.last = [0] * self.num_clients
        self.staleness: list[int] = []

    def run_round(self) -> None:
        """Start everyone that is free, wait for the buffer, and step."""
        self.t += 1
        for client in sorted(self.free):
            arrives = self.now + self.seconds(client, self.t)
            heapq.heappush(self.queue, (arrives, client, self.t, list(self.w)))
        replies = [heapq.heappop(self.queue) for _ in range(self.buffer)]
        self.now = replies[-1][0]
        while self.queue and self.queue[0][0] <= self.now * (1 + 1e-12):
            replies.append(heapq.heappop(self.queue))
        self.free = {client for _, client, _, _ in replies}
        self._step(replies)

    def _step(self, replies: Sequence[tuple[float, int, int, list[float]]]) -> None:
        size, step = range(len(self.w)), [0.0] * len(self.w)
        for _, client, start_round, start in replies:
            trained = self.train(client, start_round, start)
            delta = [trained[i] - start[i] for i in size]
            discount = (1 + self.t - start_round) ** -self.a
            ended = self.intervals[client]
            omega = sum(ended) / len(ended) if ended else 1.0
            if self.rule == "mifa":
                self.memory[client] = delta
                continue
            weight = {
                "fedbuff": discount / len(replies),
                "average_all": discount / self.num_clients,
                "fedau": discount * omega / self.num_clients,
            }[self.rule]
            step = [step[i] + weight * delta[i] for i in size]
            self.staleness.append(self.t - start_round)
        if self.rule == "mifa":
            step = [sum(y[i] for y in self.memory) / self.num_clients for i in size]
        for _, client, _, _ in replies:
            self.intervals[client].append(self.t - self.last[client])
            self.last[client] = self.t
        self.w = [self.w[i] + step[i] for i in size]


def run_delayed_sgd(
    w: list[float], halves: Sequence[Sequence[int]], rounds: int, a: float, train: Train
) -> list[float]:
    """Return w after rounds in which the halves of the clients take turns, each one round late.

    The first half counts in round 1, from w_0. From then on a round counts the half that started
    one round before, from the model of that round.
    """
    models = [w]
    for t in range(1, rounds + 1):
        start_round, half = max(1, t - 1), halves[(t - 1) % 2]
        start, discount = models[start_round - 1], (1 + t - start_round) ** -a
        trained = [train(client, start_round, start) for client in half]
        models.append(
            [
                x + discount * sum(one[i] - start[i] for one in trained) / len(half)
                for i, x in enumerate(models[-1])
            ]
        )
    return models[-1]
