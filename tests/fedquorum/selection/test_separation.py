"""Clients that rest after a round in which they were drawn."""

from collections import Counter

import pytest
from fedquorum.errors import ParameterError
from fedquorum.selection import EpsilonGate, Everyone, Sampling
from fedquorum.selection import sampling as module
from fedquorum.streams import stream
from fedquorum.types import Call, Population, Told

POPULATION = Population(tuple(range(20)), frozenset(range(0, 20, 4)))  # 5 priority, 15 others
NOTHING = Told()
RESTING = Sampling(0.2, seed=1, min_separation=4)  # 1 of 5 and 3 of 15: all are drawn in turn


def asked(sampling: Sampling, rounds: int, population: Population = POPULATION) -> list[set[int]]:
    return [set(sampling.sample(t, population, NOTHING).clients) for t in range(rounds)]


@pytest.mark.parametrize(("fraction", "rest"), [(0.2, 4), (0.2, 1), (0.1, 3)])
def test_nobody_is_drawn_again_while_it_rests(fraction: float, rest: int) -> None:
    """As many as ever of each group, none of whom was drawn in the R rounds before."""
    sampling = Sampling(fraction, seed=1, min_separation=rest)
    plain = Sampling(fraction, seed=1)
    rounds = asked(sampling, 60)
    for t, clients in enumerate(rounds):
        expected = plain.sample(t, POPULATION, NOTHING)
        got = sampling.sample(t, POPULATION, NOTHING)
        sizes = len(expected.priority), len(expected.others)
        assert (len(got.priority), len(got.others)) == sizes
        assert not clients & set().union(*rounds[max(0, t - rest) : t])
    back = {t - s for t in range(60) for s in range(t) if rounds[s] & rounds[t]}
    assert min(back) == rest + 1


def test_as_long_a_rest_as_can_be_is_a_cycle() -> None:
    """N = B (R + 1): everybody is drawn once in R + 1 rounds, in one order for ever."""
    rounds = asked(RESTING, 15)
    assert rounds[:5] == rounds[5:10] == rounds[10:]
    assert set().union(*rounds[:5]) == set(range(20))


def test_clients_are_drawn_alike() -> None:
    """Over 3,000 rounds each as often, within five deviations of independent draws."""
    seen = Counter(
        k for drawn in asked(Sampling(0.2, seed=2, min_separation=2), 3_000) for k in drawn
    )
    assert all(abs(seen[k] - 600) < 5 * (3_000 * 0.2 * 0.8) ** 0.5 for k in range(20))


@pytest.mark.parametrize("rest", [None, 0])
def test_without_rest_the_draws_are_as_ever(rest: int | None) -> None:
    """The bits of runs that do not set it; the first round has nobody who rests."""
    plain = asked(Sampling(0.4, seed=5), 20)
    assert asked(Sampling(0.4, seed=5, min_separation=rest), 20) == plain
    assert asked(Sampling(0.4, seed=5, min_separation=1), 20)[0] == plain[0]


def test_who_rests_follows_from_the_seed_alone() -> None:
    """Asked for late, early, again, and by a process that drew nothing before."""
    expected = asked(RESTING, 40)
    for t in (39, 3, 17, 39):
        module._rounds.cache_clear()
        told = Told(examples={0: 9.0}, losses={1: 2.0})
        assert set(RESTING.sample(t, POPULATION, told).clients) == expected[t]
    assert asked(Sampling(0.2, seed=2, min_separation=4), 40) != expected


def test_a_long_run_draws_each_round_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round and the one ahead of it, twice: 300 rounds are 300 streams."""
    drawn: list[int] = []

    def noted(seed: int, purpose: str, t: int) -> object:
        drawn.append(t)
        return stream(seed, purpose, t)

    monkeypatch.setattr(module, "stream", noted)
    sampling = Sampling(0.1, seed=77, min_separation=3)
    for t in range(299):
        for s in (t + 1, t):
            sampling.sample(s, POPULATION, NOTHING)
    assert drawn == list(range(300))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            Sampling(0.2, min_separation=5),
            r"min_separation must be at most 4 where a round draws 1 of a group of 5 .*, got 5",
        ),
        (
            Sampling(0.4, min_separation=2),
            r"min_separation must be at most 1 where a round draws 2 of a group of 5 .*, got 2",
        ),
        (Sampling(min_separation=1), "at most 0 where a round draws 5 of a group of 5 clients"),
    ],
)
def test_enough_clients_must_be_left(sampling: Sampling, message: str) -> None:
    """N - B R >= B in each group."""
    with pytest.raises(ParameterError, match=message):
        sampling.sample(0, POPULATION, NOTHING)
    with pytest.raises(ParameterError, match=message):
        sampling.check_population(POPULATION)


def test_clients_that_join_have_no_rounds_before() -> None:
    """Refused where clients are met while the run goes on."""
    message = "min_separation must be None or 0 where clients may join and leave .*, got 4"
    with pytest.raises(ParameterError, match=message):
        RESTING.sample(0, POPULATION, Told(present=frozenset(range(20))))
    joined = Population.of_joiners().joined_by(range(20))
    with pytest.raises(ParameterError, match=message):
        Sampling(0.2, min_separation=4).sample(0, joined, NOTHING)


def test_the_explanation_says_who_rests() -> None:
    """The round in which a client was drawn, and of whom the others were."""
    rule = Everyone(RESTING)
    first, second = (rule.call(t, POPULATION, NOTHING) for t in (0, 1))
    client = first.clients[0]
    told = rule.explain_call(1, POPULATION, second, client)
    assert told == "no; drawn in round 1, it rests for 4 rounds"
    told = rule.explain_call(1, POPULATION, second, second.clients[0])
    assert told.startswith("yes; clients with and without priority are asked, a fraction 0.2 of ")
    assert told.endswith(", round 2), of those not drawn in the 4 rounds before")
    told = rule.explain_call(5, POPULATION, rule.call(5, POPULATION, NOTHING), client)
    assert told.startswith("yes; ")


def test_a_warm_up_rests_whom_it_draws() -> None:
    """Clients without priority are drawn, and rest, though a warm-up asks none of them."""
    gate = EpsilonGate(num_rounds=10, warmup_rounds=3, sampling=RESTING)
    calls: list[Call] = [gate.call(t, POPULATION, NOTHING) for t in range(8)]
    drawn = asked(RESTING, 8)
    assert [set(call.clients) for call in calls[3:]] == drawn[3:]
    assert [set(call.clients) for call in calls[:3]] == [d & POPULATION.priority for d in drawn[:3]]
