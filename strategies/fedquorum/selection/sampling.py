"""Partial participation: who of each group is asked in a round."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ParameterError
from ..parameters import COUNT, FRACTION, NON_NEGATIVE_COUNT
from ..rule import check_parameters, parameter, supplied
from ..streams import stream
from ..types import ByClient, Call, Draws, Population, Told


@dataclass(frozen=True)
class Sample:
    """The priority clients and the others that are asked, ascending."""

    priority: tuple[int, ...]
    others: tuple[int, ...]
    draws: Draws | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        """All that are asked, ascending."""
        return tuple(sorted(self.priority + self.others))


@dataclass(frozen=True)
class Sampling:
    """Draw the clients of a round, from (seed, "selection", round) alone.

    Form (a): a uniform fraction C of each group without replacement, round(C n) clients of a
    group of n, at least one of the priority clients; p_k is then normalised by the sampled
    priority data. With ``minimum`` it is max(int(C n), minimum) clients, as Flower's ``FedAvg``
    counts them.

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
    minimum : int, optional
        The fewest clients of a group that are asked, as far as there are so many.

    Raises
    ------
    ParameterError
        For a value outside its range.

    References
    ----------
    Ravi and Shomorony, supplement, partial participation (Theorem A.9) and section C.3.
    """

    fraction: float = parameter(1.0, FRACTION)
    priority_draws: int | None = parameter(None, COUNT)
    seed: int = supplied(NON_NEGATIVE_COUNT, default=0)
    minimum: int | None = supplied(NON_NEGATIVE_COUNT, default=None)

    def __post_init__(self) -> None:
        check_parameters(self)

    def sample(self, t: int, population: Population, told: Told) -> Sample:
        """Return who is asked in round t; ``told`` has D_k of the priority clients."""
        rng = stream(self.seed, "selection", t)
        priority, others = population.priority_clients, population.others
        if told.present is not None:
            priority = tuple(k for k in priority if k in told.present)
            others = tuple(k for k in others if k in told.present)
        draws = None
        if self.priority_draws is None:
            priority = self.fraction_of(priority, rng, at_least=1)
        else:
            if population.weights:
                raise ParameterError(
                    "priority_draws",
                    "None with priority weights other than 1",
                    self.priority_draws,
                    "a draw counts as a whole client",
                )
            draws = self._draw(priority, rng, told.examples, self.priority_draws)
            priority = tuple(sorted(draws.count))
        return Sample(priority, self.fraction_of(others, rng, at_least=0), draws)

    def explain(self, t: int, call: Call, client: int, groups: str, population: Population) -> str:
        """Return whether a client was asked in round t, and how it was drawn."""
        asked = "yes" if client in call.clients else "no"
        seed = f'(seed {self.seed}, "selection", round {t + 1})'
        if call.draws is not None and client in population.priority:
            return (
                f"{asked}; {groups}; drawn {call.draws.count.get(client, 0)} times of "
                f"{sum(call.draws.count.values())}, with probability D_k / "
                f"{call.draws.priority_data:.6g} each, from {seed}"
            )
        if self.fraction < 1.0:
            return (
                f"{asked}; {groups}, a fraction {self.fraction:g} of each group drawn from {seed}"
            )
        return f"yes; {groups}, all of them"

    def fraction_of(
        self, clients: tuple[int, ...], rng: np.random.Generator, *, at_least: int
    ) -> tuple[int, ...]:
        """Return the clients of a group that are asked, drawn uniformly, ascending."""
        if self.fraction == 1.0:
            return clients
        size = self.size(len(clients), at_least=at_least)
        # Of places, since an array of all clients would cost as much as they are many.
        chosen = rng.choice(len(clients), size, replace=False)
        return tuple(sorted(clients[i] for i in chosen.tolist()))

    def size(self, count: int, *, at_least: int) -> int:
        """Return how many clients of a group of ``count`` are asked."""
        if self.minimum is None:
            return max(at_least, round(self.fraction * count))
        if self.fraction == 0.0:
            return 0
        return min(count, max(int(count * self.fraction), self.minimum))

    @staticmethod
    def _draw(
        clients: tuple[int, ...], rng: np.random.Generator, examples: Mapping[int, float], size: int
    ) -> Draws:
        data = ByClient.of(examples).at(np.array(clients, dtype=np.int64), 0.0)
        if data.sum() == 0.0:
            raise ParameterError(
                "priority_draws",
                "None where the priority clients' amounts of data are unknown",
                size,
                "clients are drawn by their amounts of data",
            )
        drawn, count = np.unique(rng.choice(clients, size, p=data / data.sum()), return_counts=True)
        return Draws({int(k): int(n) for k, n in zip(drawn, count, strict=True)}, float(data.sum()))
