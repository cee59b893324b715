"""Partial participation: who of each group is asked in a round."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategies.parameters import COUNT, FRACTION, NON_NEGATIVE_COUNT
from strategies.streams import stream
from strategies.types import Draws, Population


@dataclass(frozen=True)
class Sample:
    """The priority clients and the others that are asked, ascending."""

    priority: tuple[int, ...]
    others: tuple[int, ...]
    draws: Draws | None = None


@dataclass(frozen=True)
class Sampling:
    """Draw the clients of a round, from (seed, "selection", round) alone.

    Form (a): a uniform fraction C of each group without replacement, round(C n) clients of a
    group of n, at least one of the priority clients; p_k is then normalised by the sampled
    priority data.

    Form (b), with ``priority_draws``: |S| priority clients drawn WITH replacement with
    probabilities p_k = D_k / sum_{i in P} D_i, each draw counting 1 / |S|. The others as in (a).

    Parameters
    ----------
    fraction : float
        C in [0, 1]; 1 asks everybody.
    priority_draws : int, optional
        |S| >= 1.
    seed : int
        The run's seed, >= 0.

    References
    ----------
    Ravi and Shomorony, supplement, partial participation (Theorem A.9) and section C.3.
    """

    fraction: float = 1.0
    priority_draws: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        FRACTION.check("fraction", self.fraction)
        if self.priority_draws is not None:
            COUNT.check("priority_draws", self.priority_draws)
        NON_NEGATIVE_COUNT.check("seed", self.seed)

    def sample(self, t: int, population: Population, examples: Mapping[int, float]) -> Sample:
        """Return who is asked in round t; ``examples`` is D_k of the priority clients."""
        rng = stream(self.seed, "selection", t)
        priority = population.priority_clients
        draws = None
        if self.priority_draws is None:
            priority = self._fraction_of(priority, rng, at_least=1)
        else:
            if population.weights:
                raise ValueError(
                    "priority_draws needs priority weights of 1: a draw counts as a whole client"
                )
            draws = self._draw(priority, rng, examples, self.priority_draws)
            priority = tuple(sorted(draws.count))
        return Sample(priority, self._fraction_of(population.others, rng, at_least=0), draws)

    def _fraction_of(
        self, clients: tuple[int, ...], rng: np.random.Generator, *, at_least: int
    ) -> tuple[int, ...]:
        if self.fraction == 1.0:
            return clients
        size = max(at_least, round(self.fraction * len(clients)))
        # Of places, since an array of all clients would cost as much as they are many.
        chosen = rng.choice(len(clients), size, replace=False)
        return tuple(sorted(clients[i] for i in chosen.tolist()))

    @staticmethod
    def _draw(
        clients: tuple[int, ...], rng: np.random.Generator, examples: Mapping[int, float], size: int
    ) -> Draws:
        data = np.array([examples.get(k, 0.0) for k in clients])
        if data.sum() == 0.0:
            raise ValueError("drawing by p_k needs the priority clients' numbers of examples")
        drawn, count = np.unique(rng.choice(clients, size, p=data / data.sum()), return_counts=True)
        return Draws({int(k): int(n) for k, n in zip(drawn, count, strict=True)}, float(data.sum()))
