"""What a weighting of the user's own says of itself where it says nothing."""

from dataclasses import replace

import pytest
from fedquorum.errors import ParameterError
from fedquorum.imports import import_object
from fedquorum.weighting import Weighting

from tests.builders import decide_first_round, make_client_updates
from tests.fedquorum.records.made import FIXTURES


@pytest.fixture
def rule() -> Weighting[None]:
    """Return a rule with the two methods that it must have, and no others."""
    made: Weighting[None] = import_object(f"{FIXTURES / 'my_rule.py'}:Tempered")(power=1.0)
    return made


def test_its_weight_is_explained_by_what_it_is(rule: Weighting[None]) -> None:
    """With its parameters, since nobody else knows the formula."""
    made = decide_first_round(rule, make_client_updates([1.0, 1.0], data=[10, 30]), 2)
    assert [*rule.explain(made, 1)] == ["c_k = 0.75 by Tempered(power=1.0)"]
    assert [*rule.explain(replace(made, weights=None), 1)] == []
    assert [*rule.check_unreplayable(made)] == []


def test_nothing_is_assumed_of_it(rule: Weighting[None]) -> None:
    """Neither a bound on one client's weight nor that it is known before the training."""
    assert (rule.numerator, rule.needs_losses, rule.has_fixed_denominator) == (
        "Tempered",
        True,
        False,
    )
    assert rule.compute_regret_bound(10, 2, 1.0) is None
    with pytest.raises(ParameterError, match="the rule declares no largest weight"):
        rule.compute_max_share(2)
    with pytest.raises(
        ParameterError,
        match=r"participation must be none with the weighting Tempered \(it weights by the updates "
        r"of a round, and absent clients send none\), got 'a correction'",
    ):
        rule.with_fixed_denominator()
