"""Weights over all registered clients that can count, available or not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.rules.types import ClientUpdates, RoundPlan
from fedquorum.rules.weighting import (
    AAggFFDWeighting,
    AFLWeighting,
    AverageAll,
    DataFraction,
    PopulationDataFraction,
    PopulationMixing,
    Weighting,
)

from tests.builders import FIVE, make_client_updates

PLAN = RoundPlan((0, 1, 2, 3, 4))
ALIGNED = np.array([1.0, 1.0, 1.0, 1.0, 0.0])


def make_two_updates() -> ClientUpdates:
    """Return the updates of clients 0 and 2 of five that all reported their amounts of data."""
    return make_client_updates(
        FIVE.loss[[0, 2]],
        client=[0, 2],
        priority=[1.0, 0.0],
        data=FIVE.data[[0, 2]],
        known=5,
        reported_examples=dict(enumerate(FIVE.data.tolist())),
    )


@pytest.mark.parametrize("base", [AverageAll(), DataFraction(), AAggFFDWeighting(), AFLWeighting()])
def test_a_fixed_denominator_stays_the_same(base: Weighting[Any]) -> None:
    """A weighting that already divides by a fixed population is not changed."""
    once = base.with_fixed_denominator()
    assert once.with_fixed_denominator() is once
    assert once.traits.has_fixed_denominator
    assert once.traits.numerator == base.traits.numerator


def test_population_mixing_needs_a_rule_with_p_of_all_clients() -> None:
    """A rule without a mixing vector has no sum to divide by."""
    rule = PopulationMixing(DataFraction())
    with pytest.raises(AssertionError, match="DataFraction holds no p of all clients"):
        rule.weigh(rule.init(FIVE.population), PLAN, make_two_updates(), np.ones(2))


def test_weights_are_zero_without_data_amounts() -> None:
    """Without any D_k the denominator is 0: all weights are 0, and A^ is unknown."""
    rule = PopulationDataFraction()
    no_updates = make_client_updates([], known=5)
    _, weights = rule.weigh(rule.init(FIVE.population), RoundPlan(()), no_updates, np.zeros(0))
    assert weights.weight.tolist() == []
    assert weights.inclusion_mass is None


def test_inclusion_mass_counts_the_reported_data() -> None:
    """A^ = (data of all that can count - of the priority clients) / of the priority clients."""
    rule = PopulationDataFraction()
    updates = make_two_updates()
    gated = replace(updates, admitted_fractions=ALIGNED)
    _, weights = rule.weigh(rule.init(FIVE.population), RoundPlan(()), gated, np.ones(2))
    assert weights.weight.tolist() == [0.3, 0.2]
    assert weights.inclusion_mass == pytest.approx(60 / 40)


def test_no_client_that_can_count_has_mass_in_p() -> None:
    """If p is concentrated on a client outside the gate, the others have weight 0, not NaN."""
    rule = PopulationMixing(AFLWeighting(0.01))
    updates = make_two_updates()
    state = replace(rule.init(FIVE.population), mixing=np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    gated = replace(updates, admitted_fractions=ALIGNED)
    _, weights = rule.weigh(state, PLAN, gated, np.ones(2))
    assert weights.weight.tolist() == [0.0, 0.0]


def test_no_client_can_count_in_the_average_of_all() -> None:
    """If the selection covers no client all weights are 0, not NaN."""
    updates = make_two_updates()
    none_admitted = replace(updates, admitted_fractions=np.zeros(5))
    _, weights = AverageAll().weigh(None, PLAN, none_admitted, np.zeros(2))
    assert weights.weight.tolist() == [0.0, 0.0]
