"""What a weighting of the user's own says of itself where it says nothing."""

from dataclasses import replace

import pytest
from fedquorum.errors import ParameterError
from fedquorum.imports import object_at
from fedquorum.weighting import Weighting

from tests.builders import decided, responses
from tests.fedquorum.records.made import FIXTURES


@pytest.fixture
def rule() -> Weighting[None]:
    """Return a rule with the two methods that it must have, and no others."""
    made: Weighting[None] = object_at(f"{FIXTURES / 'my_rule.py'}:Tempered")(power=1.0)
    return made


def test_its_weight_is_explained_by_what_it_is(rule: Weighting[None]) -> None:
    """With its parameters, since nobody else knows the formula."""
    made = decided(rule, responses([1.0, 1.0], data=[10, 30]), 2)
    assert [*rule.explain(made, 1)] == ["c_k = 0.75 by Tempered(power=1.0)"]
    assert [*rule.explain(replace(made, weights=None), 1)] == []
    assert [*rule.check_recorded(made)] == []


def test_nothing_is_assumed_of_it(rule: Weighting[None]) -> None:
    """Neither a bound on one client's weight nor that it is known before the training."""
    assert (rule.factor, rule.needs_losses, rule.fixed_divisor) == ("Tempered", True, False)
    assert rule.regret_bound(10, 2, 1.0) is None
    with pytest.raises(ParameterError, match="the rule declares no largest weight"):
        rule.largest_share(2)
    with pytest.raises(
        ParameterError,
        match=r"participation must be none with the weighting Tempered \(it weights by the updates "
        r"of a round, and absent clients send none\), got 'a correction'",
    ):
        rule.over_known()
