"""FedAWE with models and rounds that stay on the devices, as in Algorithm 1 of Xiang et al. 2024.

Written from the paper, in plain numbers, without the models that the server of ``fedquorum``
stores; shares no code with it. Models are lists of d numbers.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

Model = list[float]
Train = Callable[[int, int, Model], Model]
"""Returns w_k of a client k, the round t from 0 and the model x_k that it starts from."""


@dataclass
class Device:
    """A client: its model x_k, and the last round in which it took part."""

    x: Model
    tau: int = -1


@dataclass
class Federation:
    """All devices, and the server's model w_t.

    ``clip`` bounds the norm of the mean echoed innovation, as the authors' code does.
    """

    w: Model
    count: int
    server_lr: float = 1.0
    clip: float = math.inf
    echo_cap: float = math.inf
    t: int = 0
    devices: list[Device] = field(init=False)

    def __post_init__(self) -> None:
        self.devices = [Device(list(self.w)) for _ in range(self.count)]

    def run_round(self, active: Collection[int], train: Train) -> dict[int, float]:
        """Run round t; return the echo of each active device."""
        echoes: dict[int, float] = {}
        innovations: dict[int, Model] = {}
        for k in sorted(active):
            device = self.devices[k]
            trained = train(k, self.t, device.x)
            echoes[k] = min(self.t - device.tau, self.echo_cap)
            innovations[k] = [v - x for v, x in zip(trained, device.x, strict=True)]
        if active:
            self._gossip(echoes, innovations)
        self.t += 1
        return echoes

    def _gossip(self, echoes: dict[int, float], innovations: dict[int, Model]) -> None:
        n = len(echoes)
        echoed = self._compute_mean([[echoes[k] * v for v in innovations[k]] for k in echoes])
        norm = math.sqrt(math.fsum(v * v for v in echoed))
        factor = self.server_lr * (min(1.0, self.clip / norm) if norm > 0 else 1.0)
        base = self._compute_mean([self.devices[k].x for k in echoes])
        self.w = [b + factor * v for b, v in zip(base, echoed, strict=True)]
        for k in echoes:
            self.devices[k] = Device(list(self.w), self.t)
        assert n > 0

    @property
    def mean(self) -> Model:
        """The mean of the devices' models, over all devices."""
        return self._compute_mean([device.x for device in self.devices])

    @staticmethod
    def _compute_mean(models: Sequence[Model]) -> Model:
        return [math.fsum(values) / len(models) for values in zip(*models, strict=True)]


def make_quadratic_descent(targets: Sequence[float], lr: float, steps: int = 1) -> Train:
    """Return gradient descent on F_k(x) = |x - u_k|^2 / 2."""

    def train(client: int, t: int, x: Model) -> Model:
        for _ in range(steps):
            x = [value - lr * (value - targets[client]) for value in x]
        return x

    return train


def draw_active(rates: Sequence[float], rounds: int, seed: int) -> Iterable[list[int]]:
    """Yield the active devices, each with its rate, independently in every round."""
    rng = Random(seed)
    for _ in range(rounds):
        yield [k for k, rate in enumerate(rates) if rng.random() < rate]


@dataclass(frozen=True)
class TimeMeans:
    """Means over the second half of the rounds: FedAvg's model, FedAWE's w_t and xbar."""

    fedavg: float
    w: float
    mean: float


def run_two_clients(lr: float, rounds: int, seed: int = 0) -> TimeMeans:
    """Return the results for u = (0, 100) and p = (0.9, 0.1); a fair method leads to 50."""
    targets, rates = (0.0, 100.0), (0.9, 0.1)
    ours, plain = Federation([50.0], 2), 50.0
    train = make_quadratic_descent(targets, lr)
    sums = [0.0, 0.0, 0.0]
    for t, active in enumerate(draw_active(rates, rounds, seed)):
        ours.run_round(active, train)
        if active:
            plain = math.fsum(train(k, t, [plain])[0] for k in active) / len(active)
        if t >= rounds // 2:
            sums = [s + x for s, x in zip(sums, (plain, ours.w[0], ours.mean[0]), strict=True)]
    return TimeMeans(*(s / (rounds - rounds // 2) for s in sums))
