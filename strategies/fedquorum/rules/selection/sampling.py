"""Sample the clients of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...errors import ParameterError
from ...rng import make_generator
from ..parameters import FRACTION, NON_NEGATIVE_INT, POSITIVE_INT
from ..rounding import round_half_even
from ..rule import check_parameters, injected_value, parameter
from ..types import (
    ClientReports,
    ClientsUnderWay,
    PerClient,
    Population,
    ReplacementSample,
    RoundPlan,
)


@dataclass(frozen=True)
class ClientSample:
    """The sampled clients with and without priority, ascending by id."""

    priority: tuple[int, ...]
    non_priority: tuple[int, ...]
    draws: ReplacementSample | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        """All sampled clients, ascending by id."""
        return tuple(sorted(self.priority + self.non_priority))


@dataclass(frozen=True)
class Sampling:
    """Sample the clients of a round, from (seed, "selection", round) alone.

    Priority clients and other clients are two groups.

    Form (a), the default: draw a uniform fraction C of each group without replacement. That is
    round(C n) clients of a group of n, and at least one priority client. p_k is normalized by the
    sampled priority data. With ``minimum`` the number is max(int(C n), minimum), as in Flower's
    ``FedAvg``.

    Form (b), with ``priority_samples``: draw |S| priority clients WITH replacement, with
    probabilities p_k = D_k / sum_{i in P} D_i. Each draw counts 1 / |S|. The other group is drawn
    as in (a).

    Parameters
    ----------
    fraction : float
        C in [0, 1]; 1 selects all clients.
    priority_samples : int, optional
        |S| >= 1.
    seed : int
        The run's seed, >= 0.
    minimum : int, optional
        Smallest number of clients to select in a group; all clients of a smaller group.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    References
    ----------
    Ravi and Shomorony, supplement, partial participation (Theorem A.9) and section C.3.
    """

    fraction: float = parameter(1.0, FRACTION)
    priority_samples: int | None = parameter(None, POSITIVE_INT)
    seed: int = injected_value(NON_NEGATIVE_INT, default=0)
    minimum: int | None = injected_value(NON_NEGATIVE_INT, default=None)

    def __post_init__(self) -> None:
        check_parameters(self)

    def count_sampled(self, population: Population) -> tuple[int, int]:
        """Return the number of priority draws of a round, and that of all its draws."""
        priority, others = len(population.priority_clients), len(population.non_priority_clients)
        drawn = min(priority, self.priority_samples or priority)
        if self.priority_samples is None and self.fraction < 1:
            drawn = self.compute_sample_size(priority, at_least=min(1, priority))
        return drawn, drawn + self.compute_sample_size(others, at_least=0)

    def sample(self, t: int, population: Population, reports: ClientReports) -> ClientSample:
        """Return the sample of round t; ``reports`` has D_k of the priority clients."""
        priority, non_priority = population.priority_clients, population.non_priority_clients
        if reports.available is not None:
            priority = tuple(k for k in priority if k in reports.available)
            non_priority = tuple(k for k in non_priority if k in reports.available)
        if reports.under_way is not None:
            return self._sample_free(t, population, reports, reports.under_way)
        if self.fraction == 1.0 and self.priority_samples is None:
            return ClientSample(priority, non_priority)
        rng, draws = make_generator(self.seed, "selection", t), None
        if self.priority_samples is None:
            priority = self.sample_fraction(priority, rng, at_least=1)
        else:
            if population.weights:
                raise ParameterError(
                    "priority_samples",
                    "None with priority weights other than 1",
                    self.priority_samples,
                    "a draw counts as a whole client",
                )
            draws = self._draw(priority, rng, reports.num_examples, self.priority_samples)
            priority = tuple(sorted(draws.counts))
        return ClientSample(priority, self.sample_fraction(non_priority, rng, at_least=0), draws)

    def _sample_free(
        self,
        t: int,
        population: Population,
        reports: ClientReports,
        under_way: ClientsUnderWay,
    ) -> ClientSample:
        """Return the clients that round t sends on their way, where late updates count.

        With a concurrency M they are M minus those under way, drawn uniformly from the free
        clients, from (seed, "concurrency", t) alone. Otherwise they are the usual sample without
        those under way.
        """
        clients, limit = population.sorted_clients, under_way.concurrency
        if reports.available is not None:
            clients = clients[np.isin(clients, list(reports.available))]
        if limit is None and self.fraction < 1.0:
            usual = self.sample(t, population, replace(reports, under_way=None))
            clients = np.array(usual.clients, dtype=np.int64)
        free = under_way.find_free(clients)
        if limit is not None:
            size = min(len(free), max(0, limit - len(under_way.clients)))
            if size < len(free):
                rng = make_generator(self.seed, "concurrency", t)
                free = np.sort(rng.choice(free, size, replace=False))
        asked = free.tolist()
        return ClientSample(
            tuple(k for k in asked if k in population.priority),
            tuple(k for k in asked if k not in population.priority),
        )

    def compute_probabilities(
        self, population: Population, reports: ClientReports
    ) -> PerClient | None:
        """Return the probability that ``sample`` contains a client, for each eligible client.

        For a group of n it is the size of the sample over n. With ``priority_samples`` it is
        1 - (1 - p_k)^|S| for a priority client; None while the amounts of data are unknown.
        """
        available = population.sorted_clients
        if reports.available is not None:
            available = available[np.isin(available, list(reports.available))]
        priority = np.isin(available, population.priority_clients)
        probabilities = np.where(
            priority,
            self._compute_fraction(int(priority.sum()), at_least=1),
            self._compute_fraction(int((~priority).sum()), at_least=0),
        )
        if self.priority_samples is not None:
            data = PerClient.from_mapping(reports.num_examples).get_array(available[priority], 0.0)
            if data.sum() == 0.0:
                return None
            probabilities[priority] = 1.0 - (1.0 - data / data.sum()) ** self.priority_samples
        return PerClient(available, probabilities)

    def _compute_fraction(self, count: int, *, at_least: int) -> float:
        """Return the sampled fraction of a group of ``count`` clients, 1 for an empty group."""
        if self.fraction == 1.0 or count == 0:
            return 1.0
        return self.compute_sample_size(count, at_least=at_least) / count

    def explain(
        self, t: int, plan: RoundPlan, client: int, groups: str, population: Population
    ) -> str:
        """Say whether a client was selected in round t, and how it was sampled."""
        answer = "yes" if client in plan.clients else "no"
        seed = f'(seed {self.seed}, "selection", round {t + 1})'
        if plan.replacement_sample is not None and client in population.priority:
            return (
                f"{answer}; {groups}; drawn {plan.replacement_sample.counts.get(client, 0)} times "
                f"of {sum(plan.replacement_sample.counts.values())}, with probability D_k / "
                f"{plan.replacement_sample.priority_data:.6g} each, from {seed}"
            )
        if self.fraction == 1.0:
            return f"yes; {groups}, and all of them are selected"
        each = " of each group" if population.non_priority_clients else ""
        return f"{answer}; {groups}, a fraction {self.fraction:g}{each} drawn from {seed}"

    def sample_fraction(
        self, clients: tuple[int, ...], rng: np.random.Generator, *, at_least: int
    ) -> tuple[int, ...]:
        """Return the sampled fraction of a group, ascending by id."""
        if self.fraction == 1.0:
            return clients
        size = self.compute_sample_size(len(clients), at_least=at_least)
        # Sample indices: an array of all clients would cost memory in proportion to their number.
        chosen = rng.choice(len(clients), size, replace=False)
        return tuple(sorted(clients[i] for i in chosen.tolist()))

    def compute_sample_size(self, count: int, *, at_least: int) -> int:
        """Return the number of clients to select in a group of ``count``."""
        if self.minimum is None:
            return max(at_least, round_half_even(self.fraction, count))
        if self.fraction == 0.0:
            return 0
        # The product is one of floats, as in Flower's strategies: 0.29 of 100 is 28.
        return min(count, max(int(self.fraction * count), self.minimum))

    @staticmethod
    def _draw(
        clients: tuple[int, ...], rng: np.random.Generator, examples: Mapping[int, float], size: int
    ) -> ReplacementSample:
        data = PerClient.from_mapping(examples).get_array(np.array(clients, dtype=np.int64), 0.0)
        if data.sum() == 0.0:
            raise ParameterError(
                "priority_samples",
                "None where the priority clients' amounts of data are unknown",
                size,
                "clients are drawn by their amounts of data",
            )
        sampled, count = np.unique(
            rng.choice(clients, size, p=data / data.sum()), return_counts=True
        )
        return ReplacementSample(
            {int(k): int(n) for k, n in zip(sampled, count, strict=True)}, float(data.sum())
        )
