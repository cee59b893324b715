"""Weights divided by all known clients that can count, there or not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.types import Call, Responses
from fedquorum.weighting import (
    AgnosticMixing,
    AverageAll,
    DataFraction,
    DoublyRobustMixing,
    KnownData,
    KnownMixing,
    Weighting,
)

from tests.builders import FIVE, responses

CALL = Call((0, 1, 2, 3, 4))
ALIGNED = np.array([1.0, 1.0, 1.0, 1.0, 0.0])


def two() -> Responses:
    """Return the responses of clients 0 and 2 of five, all of whose data are known."""
    return responses(
        FIVE.loss[[0, 2]],
        client=[0, 2],
        priority=[1.0, 0.0],
        data=FIVE.data[[0, 2]],
        known=5,
        examples=dict(enumerate(FIVE.data.tolist())),
    )


@pytest.mark.parametrize(
    "base", [AverageAll(), DataFraction(), DoublyRobustMixing(), AgnosticMixing()]
)
def test_a_fixed_divisor_stays_what_it_is(base: Weighting[Any]) -> None:
    """What divides by a fixed population already is corrected as it is."""
    once = base.over_known()
    assert once.over_known() is once
    assert once.fixed_divisor
    assert once.factor == base.factor


def test_only_rules_with_p_of_all_are_divided_by_it() -> None:
    """A rule that holds no mixing vector cannot be divided by its sum."""
    rule = KnownMixing(DataFraction())
    with pytest.raises(TypeError, match="DataFraction holds no p of all clients"):
        rule.weigh(rule.init(FIVE.population), CALL, two(), np.ones(2))


def test_nobody_has_told_how_much_data_there_is() -> None:
    """Without any D_k there is nothing to divide by: all weights are 0, and A^ is unknown."""
    rule = KnownData()
    unheard = responses([], known=5)
    _, weights = rule.weigh(rule.init(FIVE.population), Call(()), unheard, np.zeros(0))
    assert weights.weight.tolist() == []
    assert weights.inclusion_mass is None


def test_inclusion_mass_is_of_the_known_data() -> None:
    """A^ = (data of all that can count - of the priority clients) / of the priority clients."""
    rule = KnownData()
    there = two()
    covered = replace(there, covered=ALIGNED)
    _, weights = rule.weigh(rule.init(FIVE.population), Call(()), covered, np.ones(2))
    assert weights.weight.tolist() == [0.3, 0.2]
    assert weights.inclusion_mass == pytest.approx(60 / 40)


def test_nobody_who_can_count_holds_any_of_p() -> None:
    """Where p is all on a client outside of the gate, the others have no weight, not NaN."""
    rule = KnownMixing(AgnosticMixing(0.01))
    there = two()
    state = replace(rule.init(FIVE.population), mixing=np.array([0.0, 0.0, 0.0, 0.0, 1.0]))
    covered = replace(there, covered=ALIGNED)
    _, weights = rule.weigh(state, CALL, covered, np.ones(2))
    assert weights.weight.tolist() == [0.0, 0.0]


def test_nobody_can_count_in_the_average_of_all() -> None:
    """Where the selection covers nobody all weights are 0, not NaN."""
    there = two()
    nobody = replace(there, covered=np.zeros(5))
    _, weights = AverageAll().weigh(None, CALL, nobody, np.zeros(2))
    assert weights.weight.tolist() == [0.0, 0.0]
