"""Partial participation: who is asked, and that weights are right over the draws."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.selection import AllClients, EpsilonGate, PriorityOnly, Sampling
from fedquorum.types import ClientReports, Population, ReplacementSample, RoundPlan
from fedquorum.weighting import DataFraction

from tests.builders import make_client_updates

POPULATION = Population(tuple(range(20)), frozenset(range(0, 20, 4)))  # 5 priority, 15 others
EXAMPLES = {0: 10.0, 4: 20.0, 8: 30.0, 12: 15.0, 16: 25.0}
NOTHING = ClientReports()


def test_full_participation_selects_everyone() -> None:
    """Fraction 1 is everybody, in every round."""
    sample = Sampling(seed=3).sample(7, POPULATION, NOTHING)
    assert sample.priority == POPULATION.priority_clients
    assert sample.priority + sample.non_priority == tuple(
        sorted(POPULATION.clients, key=lambda k: k % 4 > 0)
    )
    assert sample.draws is None


def test_a_fraction_of_each_group_uniformly() -> None:
    """round(C n) of each group; over many rounds every client is asked equally often."""
    sampling, rounds = Sampling(fraction=0.4, seed=1), 3000
    seen: Counter[int] = Counter()
    for t in range(rounds):
        sample = sampling.sample(t, POPULATION, NOTHING)
        assert (len(set(sample.priority)), len(set(sample.non_priority))) == (2, 6)
        assert set(sample.priority) <= POPULATION.priority
        assert not set(sample.non_priority) & POPULATION.priority
        seen.update(sample.priority + sample.non_priority)
    # binomial(3000, 0.4): standard deviation 26.8; five of them
    assert all(abs(seen[k] - 1200) < 134 for k in POPULATION.clients)


def test_a_fraction_is_the_decimal_that_was_written() -> None:
    """0.575 of 100 is 57.5, of which the even neighbour is 58; in binary it is a little less."""
    assert len(Sampling(fraction=0.575).sample(0, Population.from_size(100), NOTHING).clients) == 58


def test_at_least_one_priority_client() -> None:
    """However small the fraction, somebody defines the objective."""
    sample = Sampling(fraction=0.0).sample(0, POPULATION, NOTHING)
    assert len(sample.priority) == 1
    assert sample.non_priority == ()


def test_a_sample_depends_on_seed_and_round_alone() -> None:
    """The same words draw the same clients; other rounds and seeds draw others."""
    draw = [
        Sampling(0.4, seed=s).sample(t, POPULATION, NOTHING)
        for s, t in ((1, 1), (1, 1), (1, 2), (2, 1))
    ]
    assert draw[0] == draw[1]
    assert draw[0] != draw[2]
    assert draw[0] != draw[3]


def test_draws_follow_the_data_with_replacement() -> None:
    """Each of |S| draws is client k with probability p_k, independently."""
    sampling, rounds = Sampling(priority_samples=4, seed=2), 3000
    drawn: Counter[int] = Counter()
    doubled = 0
    for t in range(rounds):
        draws = sampling.sample(t, POPULATION, ClientReports(EXAMPLES)).draws
        assert draws is not None
        assert sum(draws.counts.values()) == 4
        assert draws.priority_data == 100.0
        drawn.update(draws.counts)
        doubled += max(draws.counts.values()) > 1
    for client, data in EXAMPLES.items():
        expected, p = 4 * rounds * data / 100, data / 100
        assert abs(drawn[client] - expected) < 5 * np.sqrt(4 * rounds * p * (1 - p))
    assert doubled > rounds / 4


def test_drawing_needs_to_know_the_data() -> None:
    """Without the priority clients' numbers of examples there is no p_k."""
    message = "must be None where the priority clients' amounts of data are unknown .*, got 2"
    with pytest.raises(ParameterError, match=message):
        Sampling(priority_samples=2).sample(0, POPULATION, NOTHING)


def test_weights_of_draws_by_hand() -> None:
    """w' = (1/|S|) sum_S w_k / (1 + A) + sum_admitted p_k w_k / (1 + A)."""
    client, priority, data = [0, 1, 4], [1.0, 0.0, 1.0], [10.0, 50.0, 20.0]
    drawn = make_client_updates(np.ones(3), client=client, priority=priority, data=data)
    call = RoundPlan((0, 1, 4), replacement_sample=ReplacementSample({0: 3, 4: 1}, 100.0))
    _, weights = DataFraction().weigh(None, call, drawn, np.ones(3))
    mass = 50 / 100
    np.testing.assert_allclose(
        weights.weight, [3 / 4 / (1 + mass), 0.5 / (1 + mass), 1 / 4 / (1 + mass)], rtol=1e-15
    )
    assert weights.inclusion_mass == pytest.approx(mass)
    # Client 4 fails: the draws of those that answered count.
    answered = make_client_updates(
        np.ones(2), client=client[:2], priority=priority[:2], data=data[:2]
    )
    _, weights = DataFraction().weigh(None, call, answered, np.ones(2))
    np.testing.assert_allclose(weights.weight, [1 / 1.5, 0.5 / 1.5], rtol=1e-15)


def test_the_expected_weight_of_a_draw_is_p_k() -> None:
    """Over all outcomes of two draws from three clients, E[c_k] = p_k exactly (gate closed)."""
    data = {0: 1.0, 1: 2.0, 2: 5.0}
    p = {k: d / 8 for k, d in data.items()}
    expected = dict.fromkeys(data, 0.0)
    for first, second in product(data, data):
        count = Counter((first, second))
        clients = sorted(count)
        drawn = make_client_updates(
            np.ones(len(clients)), client=clients, data=[data[k] for k in clients]
        )
        call = RoundPlan(tuple(clients), replacement_sample=ReplacementSample(count, 8.0))
        _, weights = DataFraction().weigh(None, call, drawn, np.ones(len(clients)))
        for k, weight in zip(clients, weights.weight, strict=True):
            expected[k] += p[first] * p[second] * weight
    assert expected == pytest.approx(p, rel=1e-12)


def test_every_selection_samples() -> None:
    """Partial participation is the same for FedALIGN and both baselines."""
    sampling = Sampling(0.4, seed=5)
    gate = EpsilonGate(num_rounds=10, warmup_rounds=3, sampling=sampling)
    for t in range(10):
        sample = sampling.sample(t, POPULATION, NOTHING)
        everyone = tuple(sorted(sample.priority + sample.non_priority))
        assert AllClients(sampling).plan(t, POPULATION, NOTHING).clients == everyone
        assert PriorityOnly(sampling).plan(t, POPULATION, NOTHING).clients == sample.priority
        asked = gate.plan(t, POPULATION, NOTHING).clients
        assert asked == (sample.priority if t < 3 else everyone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.2}, "fraction must be a number >= 0 and <= 1, got 1.2"),
        ({"priority_samples": 0}, "priority_samples must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
    ],
)
def test_sampling_parameters_out_of_range(options: dict[str, float], message: str) -> None:
    """Wrong parameters are named."""
    with pytest.raises(ParameterError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


def test_draws_need_priority_weights_of_one() -> None:
    """A draw counts as a whole client, which half a priority client is not."""
    population = Population((0, 1), frozenset({0, 1}), {1: 0.5})
    message = "priority_samples must be None with priority weights other than 1 .*, got 2"
    with pytest.raises(ParameterError, match=message):
        Sampling(priority_samples=2).sample(0, population, ClientReports({0: 1.0, 1: 1.0}))


def test_only_connected_clients_are_drawn() -> None:
    """Where it is known who is connected, fractions are of these."""
    present = frozenset({0, 4, 1, 2, 3, 5})
    told = ClientReports(available=present)
    everyone = Sampling().sample(0, POPULATION, told)
    assert (everyone.priority, everyone.non_priority) == ((0, 4), (1, 2, 3, 5))
    half = Sampling(0.5, seed=1).sample(0, POPULATION, told)
    assert (len(half.priority), len(half.non_priority)) == (1, 2)
    assert set(half.clients) <= present


@pytest.mark.parametrize(
    ("fraction", "minimum", "asked"), [(0.5, 2, 10), (0.5, 12, 12), (0.26, 0, 5), (0.5, 99, 20)]
)
def test_a_minimum_counts_as_flowers_fedavg(fraction: float, minimum: int, asked: int) -> None:
    """max(int(C n), minimum) clients of a group, as far as there are so many."""
    sample = Sampling(fraction, minimum=minimum).sample(0, Population.from_size(20), NOTHING)
    assert len(sample.clients) == asked


def test_a_fraction_of_0_with_a_minimum_selects_nobody() -> None:
    """As in Flower's FedAvg, which then skips training."""
    assert Sampling(0.0, minimum=0).sample(0, Population.from_size(20), NOTHING).clients == ()


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("minimum", [None, 2])
def test_the_selection_probability_by_enumeration(fraction: float, minimum: int | None) -> None:
    """Of all samples of a group's size, how many have the client."""
    sampling = Sampling(fraction, minimum=minimum)
    asked = sampling.compute_probabilities(POPULATION, NOTHING)
    assert asked is not None
    drawn = sampling.sample(0, POPULATION, NOTHING)
    for group, sample in (
        (POPULATION.priority_clients, drawn.priority),
        (POPULATION.non_priority_clients, drawn.non_priority),
    ):
        samples = [*combinations(group, len(sample))]
        for client in group:
            share = sum(client in chosen for chosen in samples) / len(samples)
            assert asked[client] == pytest.approx(share, abs=1e-12)
    assert {*asked} == {*POPULATION.clients}


def test_the_probability_of_being_drawn_with_replacement_by_enumeration() -> None:
    """1 - (1 - p_k)^|S|; nobody knows it before the amounts of data are known."""
    sampling = Sampling(0.4, priority_samples=3)
    assert sampling.compute_probabilities(POPULATION, NOTHING) is None
    asked = sampling.compute_probabilities(POPULATION, ClientReports(EXAMPLES))
    assert asked is not None
    for client in POPULATION.priority:
        share = sum(
            math.prod(EXAMPLES[k] / 100 for k in drawn)
            for drawn in product(EXAMPLES, repeat=3)
            if client in drawn
        )
        assert asked[client] == pytest.approx(share, rel=1e-12)
    assert {asked[k] for k in POPULATION.non_priority_clients} == {6 / 15}


def test_among_the_connected_clients_the_groups_are_smaller() -> None:
    """A fraction of who is there: the probabilities are those, given who is there."""
    asked = Sampling(0.5).compute_probabilities(
        POPULATION, ClientReports(available=frozenset({0, 4, 1, 2, 3}))
    )
    assert dict(asked or {}) == {0: 0.5, 4: 0.5, 1: 2 / 3, 2: 2 / 3, 3: 2 / 3}


def test_the_selection_probability_over_many_rounds() -> None:
    """Over 4,000 rounds."""
    sampling, rounds = Sampling(0.4), 4_000
    asked = sampling.compute_probabilities(POPULATION, NOTHING)
    assert asked is not None
    counts = Counter(
        client for t in range(rounds) for client in sampling.sample(t, POPULATION, NOTHING).clients
    )
    for client, q in asked.items():
        assert abs(counts[client] / rounds - q) <= 5 * math.sqrt(q * (1 - q) / rounds)
