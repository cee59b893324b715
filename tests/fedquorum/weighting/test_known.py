"""Weights divided by all known clients that can count, there or not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.types import ClientUpdates, RoundPlan
from fedquorum.weighting import (
    AAggFFDWeighting,
    AFLWeighting,
    AverageAll,
    DataFraction,
    PopulationDataFraction,
    PopulationMixing,
    Weighting,
)

from tests.builders import FIVE, make_client_updates

CALL = RoundPlan((0, 1, 2, 3, 4))
ALIGNED = np.array([1.0, 1.0, 1.0, 1.0, 0.0])


def two() -> ClientUpdates:
    """Return the responses of clients 0 and 2 of five, all of whose data are known."""
    return make_client_updates(
        FIVE.loss[[0, 2]],
        client=[0, 2],
        priority=[1.0, 0.0],
        data=FIVE.data[[0, 2]],
        known=5,
        examples=dict(enumerate(FIVE.data.tolist())),
    )


@pytest.mark.parametrize("base", [AverageAll(), DataFraction(), AAggFFDWeighting(), AFLWeighting()])
def test_a_fixed_divisor_stays_what_it_is(base: Weighting[Any]) -> None:
    """What divides by a fixed population already is corrected as it is."""
    once = base.with_fixed_denominator()
    assert once.with_fixed_denominator() is once
    assert once.has_fixed_denominator
    assert once.numerator == base.numerator


def test_only_rules_with_p_of_all_are_divided_by_it() -> None:
    """A rule that holds no mixing vector cannot be divided by its sum."""
    rule = PopulationMixing(DataFraction())
    with pytest.raises(TypeError, match="DataFraction holds no p of all clients"):
        rule.weigh(rule.init(FIVE.population), CALL, two(), np.ones(2))


def test_weights_are_zero_without_data_amounts() -> None:
    """Without any D_k there is nothing to divide by: all weights are 0, and A^ is unknown."""
    rule = PopulationDataFraction()
    unheard = make_client_updates([], known=5)
    _, weights = rule.weigh(rule.init(FIVE.population), RoundPlan(()), unheard, np.zeros(0))
    assert weights.weight.tolist() == []
    assert weights.inclusion_mass is None


def test_inclusion_mass_counts_the_reported_data() -> None:
    """A^ = (data of all that can count - of the priority clients) / of the priority clients."""
    rule = PopulationDataFraction()
    there = two()
    covered = replace(there, admitted_fractions=ALIGNED)
    _, weights = rule.weigh(rule.init(FIVE.population), RoundPlan(()), covered, np.ones(2))
    assert weights.weight.tolist() == [0.3, 0.2]
    assert weights.inclusion_mass == pytest.approx(60 / 40)


def test_nobody_who_can_count_holds_any_of_p() -> None:
    """Where p is all on a client outside of the gate, the others have no weight, not NaN."""
    rule = PopulationMixing(AFLWeighting(0.01))
    there = two()
    state = replace(rule.init(FIVE.population), mixing=np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    covered = replace(there, admitted_fractions=ALIGNED)
    _, weights = rule.weigh(state, CALL, covered, np.ones(2))
    assert weights.weight.tolist() == [0.0, 0.0]


def test_nobody_can_count_in_the_average_of_all() -> None:
    """Where the selection covers nobody all weights are 0, not NaN."""
    there = two()
    nobody = replace(there, admitted_fractions=np.zeros(5))
    _, weights = AverageAll().weigh(None, CALL, nobody, np.zeros(2))
    assert weights.weight.tolist() == [0.0, 0.0]
