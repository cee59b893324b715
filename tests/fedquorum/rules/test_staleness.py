"""Which rules let updates of older models count, and by how much."""

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import ALL_SELECTIONS, ALL_WEIGHTINGS
from fedquorum.rules.composition import RuleSet, UpdateMemoryConfig
from fedquorum.rules.participation import (
    PARTICIPATIONS,
    EmpiricalCorrection,
    FedAUCorrection,
    KnownRatesCorrection,
)
from fedquorum.rules.round import ClientOutcome, compute_discounts
from fedquorum.rules.selection import AllClients, Sampling
from fedquorum.rules.selection import base as selection_base
from fedquorum.rules.staleness import LateUpdates, check_late_rules
from fedquorum.rules.types import ClientReports, ClientsUnderWay, Population
from fedquorum.rules.weighting import AverageAll, AverageParticipating
from fedquorum.rules.weighting import base as weighting_base

ALLOWED_WEIGHTINGS = {"data_fraction", "average_participating", "average_all"}
ALLOWED_SELECTIONS = {"everyone", "after_warmup"}


def under_way(*clients: int, concurrency: int | None = None) -> ClientReports:
    found = ClientsUnderWay(np.array(clients, dtype=np.int64), concurrency)
    return ClientReports(under_way=found)


@pytest.mark.parametrize("key", ALL_WEIGHTINGS)
def test_every_weighting_chooses(key: str) -> None:
    """A rule allows updates of older models, or has its own reason; none leaves it open."""
    reason = ALL_WEIGHTINGS[key]().traits.late_unsupported_reason
    assert (reason == "") == (key in ALLOWED_WEIGHTINGS)
    assert reason != weighting_base.LATE_UNDECLARED


@pytest.mark.parametrize("key", ALL_SELECTIONS)
def test_every_selection_chooses(key: str) -> None:
    """As every weighting does."""
    reason = ALL_SELECTIONS[key].traits.late_unsupported_reason
    assert (reason == "") == (key in ALLOWED_SELECTIONS)
    assert reason != selection_base.LATE_UNDECLARED


def test_every_correction_allows_what_its_base_allows() -> None:
    """The interval of FedAU ends in the round in which the update counts."""
    assert set(PARTICIPATIONS) == {"fedau", "empirical", "known_statistics"}
    for rule in (FedAUCorrection(), EmpiricalCorrection(), KnownRatesCorrection({0: 0.5})):
        assert rule.traits.late_unsupported_reason == ""
    base = ALL_WEIGHTINGS["afl"]().with_fixed_denominator()
    assert "a loss of an older model" in FedAUCorrection(base=base).traits.late_unsupported_reason


def test_the_discount_is_a_power_of_the_staleness() -> None:
    """With a memory of updates there is none: it takes an update as the client's newest."""
    late, rules = LateUpdates(0.5), RuleSet(AllClients(), AverageParticipating())
    usable = [
        ClientOutcome(0, "trained", start_round=9),
        ClientOutcome(1, "trained", start_round=6),
        ClientOutcome(2, "trained"),
    ]
    assert compute_discounts(rules, late, 9, usable).tolist() == [1.0, 0.5, 1.0]
    memory = RuleSet(AllClients(), AverageAll(), memory=UpdateMemoryConfig())
    assert compute_discounts(memory, late, 9, usable).tolist() == [1.0, 1.0, 1.0]
    assert compute_discounts(rules, LateUpdates(0.0), 9, usable).tolist() == [1.0, 1.0, 1.0]


def test_a_round_draws_from_the_free_clients() -> None:
    """As many as the concurrency leaves, each equally likely; without one, all that are free."""
    population, sampling = Population.from_size(10), Sampling(seed=3)
    assert sampling.sample(0, population, under_way(2, 5)).clients == (0, 1, 3, 4, 6, 7, 8, 9)
    assert sampling.sample(0, population, under_way(2, 5, concurrency=2)).clients == ()
    counts = np.zeros(10)
    for t in range(2000):
        drawn = sampling.sample(t, population, under_way(2, 5, concurrency=6)).clients
        assert len(drawn) == 4
        assert list(drawn) == sorted(drawn)
        counts[list(drawn)] += 1
    assert counts[[2, 5]].tolist() == [0, 0]
    np.testing.assert_allclose(np.delete(counts, [2, 5]) / 2000, 0.5, atol=0.05)
    half = Sampling(fraction=0.5, seed=3)
    usual = set(half.sample(4, population, ClientReports()).clients)
    assert set(half.sample(4, population, under_way(2, 5)).clients) == usual - {2, 5}


def test_contradictions_are_refused() -> None:
    """A sample beside a concurrency, draws with replacement, and rules by losses."""
    sampled = RuleSet(AllClients(Sampling(fraction=0.5)), AverageAll())
    check_late_rules(sampled, LateUpdates())
    with pytest.raises(ParameterError, match="concurrency must be None with a fraction below 1"):
        check_late_rules(sampled, LateUpdates(concurrency=3))
    with pytest.raises(ParameterError, match="late_replies must be discard with maxfl"):
        check_late_rules(RuleSet(AllClients(), ALL_WEIGHTINGS["maxfl"]()), LateUpdates())
    drawn = AllClients(Sampling(priority_samples=3))
    with pytest.raises(ParameterError, match="priority_samples must be None with late_replies"):
        check_late_rules(RuleSet(drawn, ALL_WEIGHTINGS["data_fraction"]()), LateUpdates())
    for wrong in ({"staleness_exponent": -1.0}, {"max_staleness": -1}, {"concurrency": 0}):
        with pytest.raises(ParameterError):
            LateUpdates(**wrong)
