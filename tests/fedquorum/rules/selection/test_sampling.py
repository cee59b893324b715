"""Partial participation: the sampled clients, and their weights over the draws."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.selection import AllClients, EpsilonGate, PriorityOnly, Sampling
from fedquorum.rules.types import ClientReports, Population, ReplacementSample, RoundPlan
from fedquorum.rules.weighting import DataFraction

from tests.builders import make_client_updates

POPULATION = Population(tuple(range(20)), frozenset(range(0, 20, 4)))  # 5 priority, 15 others
EXAMPLES = {0: 10.0, 4: 20.0, 8: 30.0, 12: 15.0, 16: 25.0}
NO_REPORTS = ClientReports()


def test_full_participation_selects_everyone() -> None:
    """Fraction 1 selects all clients in every round."""
    sample = Sampling(seed=3).sample(7, POPULATION, NO_REPORTS)
    assert sample.priority == POPULATION.priority_clients
    assert sample.priority + sample.non_priority == tuple(
        sorted(POPULATION.clients, key=lambda k: k % 4 > 0)
    )
    assert sample.draws is None


def test_a_fraction_of_each_group_uniformly() -> None:
    """round(C n) of each group; over many rounds every client is selected equally often."""
    sampling, rounds = Sampling(fraction=0.4, seed=1), 3000
    seen: Counter[int] = Counter()
    for t in range(rounds):
        sample = sampling.sample(t, POPULATION, NO_REPORTS)
        assert (len(set(sample.priority)), len(set(sample.non_priority))) == (2, 6)
        assert set(sample.priority) <= POPULATION.priority
        assert not set(sample.non_priority) & POPULATION.priority
        seen.update(sample.priority + sample.non_priority)
    # binomial(3000, 0.4): standard deviation 26.8; five of them
    assert all(abs(seen[k] - 1200) < 134 for k in POPULATION.clients)


def test_a_fraction_is_read_as_a_decimal() -> None:
    """0.575 of 100 is 57.5, which rounds to the even 58; in binary it is slightly less."""
    assert (
        len(Sampling(fraction=0.575).sample(0, Population.from_size(100), NO_REPORTS).clients) == 58
    )


def test_at_least_one_priority_client() -> None:
    """For any fraction at least one client defines the objective."""
    sample = Sampling(fraction=0.0).sample(0, POPULATION, NO_REPORTS)
    assert len(sample.priority) == 1
    assert sample.non_priority == ()


def test_a_sample_depends_on_seed_and_round_alone() -> None:
    """The same seed and round give the same clients; others give other clients."""
    draw = [
        Sampling(0.4, seed=s).sample(t, POPULATION, NO_REPORTS)
        for s, t in ((1, 1), (1, 1), (1, 2), (2, 1))
    ]
    assert draw[0] == draw[1]
    assert draw[0] != draw[2]
    assert draw[0] != draw[3]


@pytest.mark.slow
def test_draws_follow_the_data_with_replacement() -> None:
    """Each of |S| draws is client k with probability p_k, independently."""
    sampling, rounds = Sampling(priority_samples=4, seed=2), 3000
    counts: Counter[int] = Counter()
    doubled = 0
    for t in range(rounds):
        draws = sampling.sample(t, POPULATION, ClientReports(EXAMPLES)).draws
        assert draws is not None
        assert sum(draws.counts.values()) == 4
        assert draws.priority_data == 100.0
        counts.update(draws.counts)
        doubled += max(draws.counts.values()) > 1
    for client, data in EXAMPLES.items():
        expected, p = 4 * rounds * data / 100, data / 100
        assert abs(counts[client] - expected) < 5 * np.sqrt(4 * rounds * p * (1 - p))
    assert doubled > rounds / 4


def test_sampling_by_data_needs_the_amounts_of_data() -> None:
    """Without the priority clients' numbers of examples there is no p_k."""
    message = "must be None where the priority clients' amounts of data are unknown .*, got 2"
    with pytest.raises(ParameterError, match=message):
        Sampling(priority_samples=2).sample(0, POPULATION, NO_REPORTS)


def test_weights_of_draws_by_hand() -> None:
    """w' = (1/|S|) sum_S w_k / (1 + A) + sum_admitted p_k w_k / (1 + A)."""
    client, priority, data = [0, 1, 4], [1.0, 0.0, 1.0], [10.0, 50.0, 20.0]
    updates = make_client_updates(np.ones(3), client=client, priority=priority, data=data)
    plan = RoundPlan((0, 1, 4), replacement_sample=ReplacementSample({0: 3, 4: 1}, 100.0))
    _, weights = DataFraction().weigh(None, plan, updates, np.ones(3))
    mass = 50 / 100
    np.testing.assert_allclose(
        weights.weight, [3 / 4 / (1 + mass), 0.5 / (1 + mass), 1 / 4 / (1 + mass)], rtol=1e-15
    )
    assert weights.inclusion_mass == pytest.approx(mass)
    # Client 4 fails: only the draws of the reporting clients count.
    reported = make_client_updates(
        np.ones(2), client=client[:2], priority=priority[:2], data=data[:2]
    )
    _, weights = DataFraction().weigh(None, plan, reported, np.ones(2))
    np.testing.assert_allclose(weights.weight, [1 / 1.5, 0.5 / 1.5], rtol=1e-15)


def test_the_expected_weight_of_a_draw_is_p_k() -> None:
    """Over all outcomes of two draws from three clients, E[c_k] = p_k exactly (closed gate)."""
    data = {0: 1.0, 1: 2.0, 2: 5.0}
    p = {k: d / 8 for k, d in data.items()}
    expected = dict.fromkeys(data, 0.0)
    for first, second in product(data, data):
        count = Counter((first, second))
        clients = sorted(count)
        updates = make_client_updates(
            np.ones(len(clients)), client=clients, data=[data[k] for k in clients]
        )
        plan = RoundPlan(tuple(clients), replacement_sample=ReplacementSample(count, 8.0))
        _, weights = DataFraction().weigh(None, plan, updates, np.ones(len(clients)))
        for k, weight in zip(clients, weights.weight, strict=True):
            expected[k] += p[first] * p[second] * weight
    assert expected == pytest.approx(p, rel=1e-12)


def test_every_selection_samples() -> None:
    """Partial participation is the same for FedALIGN and both baselines."""
    sampling = Sampling(0.4, seed=5)
    gate = EpsilonGate(num_rounds=10, warmup_rounds=3, sampling=sampling)
    for t in range(10):
        sample = sampling.sample(t, POPULATION, NO_REPORTS)
        everyone = tuple(sorted(sample.priority + sample.non_priority))
        assert AllClients(sampling).plan(t, POPULATION, NO_REPORTS).clients == everyone
        assert PriorityOnly(sampling).plan(t, POPULATION, NO_REPORTS).clients == sample.priority
        selected = gate.plan(t, POPULATION, NO_REPORTS).clients
        assert selected == (sample.priority if t < 3 else everyone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.2}, "fraction must be a number >= 0 and <= 1, got 1.2"),
        ({"priority_samples": 0}, "priority_samples must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
    ],
)
def test_sampling_parameters_out_of_range(options: dict[str, float], message: str) -> None:
    """The error names the parameter."""
    with pytest.raises(ParameterError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


def test_draws_need_priority_weights_of_one() -> None:
    """A draw counts as a whole client, not as a fraction of one."""
    population = Population((0, 1), frozenset({0, 1}), {1: 0.5})
    message = "priority_samples must be None with priority weights other than 1 .*, got 2"
    with pytest.raises(ParameterError, match=message):
        Sampling(priority_samples=2).sample(0, population, ClientReports({0: 1.0, 1: 1.0}))


def test_only_connected_clients_are_drawn() -> None:
    """If the connected clients are known, fractions refer to them."""
    available = frozenset({0, 4, 1, 2, 3, 5})
    reports = ClientReports(available=available)
    all_sampled = Sampling().sample(0, POPULATION, reports)
    assert (all_sampled.priority, all_sampled.non_priority) == ((0, 4), (1, 2, 3, 5))
    half = Sampling(0.5, seed=1).sample(0, POPULATION, reports)
    assert (len(half.priority), len(half.non_priority)) == (1, 2)
    assert set(half.clients) <= available


@pytest.mark.parametrize(
    ("fraction", "minimum", "num_selected"),
    [(0.5, 2, 10), (0.5, 12, 12), (0.26, 0, 5), (0.5, 99, 20)],
)
def test_a_minimum_counts_as_flowers_fedavg(
    fraction: float, minimum: int, num_selected: int
) -> None:
    """max(int(C n), minimum) clients of a group, at most all of them."""
    sample = Sampling(fraction, minimum=minimum).sample(0, Population.from_size(20), NO_REPORTS)
    assert len(sample.clients) == num_selected


def test_a_minimum_truncates_the_float_product() -> None:
    """0.29 of 100 is 28.999999999999996, so that Flower selects 28."""
    assert Sampling(0.29, minimum=0).compute_sample_size(100, at_least=0) == 28


def test_a_fraction_of_0_with_a_minimum_selects_no_client() -> None:
    """As in Flower's FedAvg, which then skips training."""
    assert Sampling(0.0, minimum=0).sample(0, Population.from_size(20), NO_REPORTS).clients == ()


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("minimum", [None, 2])
def test_the_selection_probability_by_enumeration(fraction: float, minimum: int | None) -> None:
    """The fraction of all samples of a group that contain the client."""
    sampling = Sampling(fraction, minimum=minimum)
    probabilities = sampling.compute_probabilities(POPULATION, NO_REPORTS)
    assert probabilities is not None
    sampled = sampling.sample(0, POPULATION, NO_REPORTS)
    for group, sample in (
        (POPULATION.priority_clients, sampled.priority),
        (POPULATION.non_priority_clients, sampled.non_priority),
    ):
        samples = [*combinations(group, len(sample))]
        for client in group:
            frequency = sum(client in chosen for chosen in samples) / len(samples)
            assert probabilities[client] == pytest.approx(frequency, abs=1e-12)
    assert {*probabilities} == {*POPULATION.clients}


def test_the_probability_of_being_drawn_with_replacement_by_enumeration() -> None:
    """1 - (1 - p_k)^|S|; None before the amounts of data are known."""
    sampling = Sampling(0.4, priority_samples=3)
    assert sampling.compute_probabilities(POPULATION, NO_REPORTS) is None
    probabilities = sampling.compute_probabilities(POPULATION, ClientReports(EXAMPLES))
    assert probabilities is not None
    for client in POPULATION.priority:
        expected = sum(
            math.prod(EXAMPLES[k] / 100 for k in drawn)
            for drawn in product(EXAMPLES, repeat=3)
            if client in drawn
        )
        assert probabilities[client] == pytest.approx(expected, rel=1e-12)
    assert {probabilities[k] for k in POPULATION.non_priority_clients} == {6 / 15}


def test_among_the_connected_clients_the_groups_are_smaller() -> None:
    """The probabilities refer to the connected clients."""
    probabilities = Sampling(0.5).compute_probabilities(
        POPULATION, ClientReports(available=frozenset({0, 4, 1, 2, 3}))
    )
    assert dict(probabilities or {}) == {0: 0.5, 4: 0.5, 1: 2 / 3, 2: 2 / 3, 3: 2 / 3}


def test_the_selection_probability_over_many_rounds() -> None:
    """The frequencies over 4,000 rounds match the probabilities."""
    sampling, rounds = Sampling(0.4), 4_000
    probabilities = sampling.compute_probabilities(POPULATION, NO_REPORTS)
    assert probabilities is not None
    counts = Counter(
        client
        for t in range(rounds)
        for client in sampling.sample(t, POPULATION, NO_REPORTS).clients
    )
    for client, q in probabilities.items():
        assert abs(counts[client] / rounds - q) <= 5 * math.sqrt(q * (1 - q) / rounds)
