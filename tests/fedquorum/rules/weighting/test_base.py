"""The defaults of a custom weighting."""

from dataclasses import replace

import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import import_object
from fedquorum.rules.regret import compute_regret_bound
from fedquorum.rules.weighting import Weighting
from fedquorum.rules.weighting.base import find_contradictions

from tests.builders import decide_first_round, make_client_updates
from tests.fedquorum.records.made import FIXTURES


@pytest.fixture
def rule() -> Weighting[None]:
    """Return a rule with the two abstract methods alone."""
    made: Weighting[None] = import_object(f"{FIXTURES / 'my_rule.py'}:Tempered")(power=1.0)
    return made


def test_its_weight_is_explained_by_its_repr(rule: Weighting[None]) -> None:
    """The library does not know its formula."""
    trace = decide_first_round(rule, make_client_updates([1.0, 1.0], data=[10, 30]), 2)
    assert [*rule.explain(trace, 1)] == ["c_k = 0.75 by Tempered(power=1.0)"]
    assert [*rule.explain(replace(trace, weights=None), 1)] == []
    assert [*find_contradictions(rule, trace)] == []


def test_it_has_no_bounds_by_default(rule: Weighting[None]) -> None:
    """It has neither a largest weight nor a regret bound nor a form to correct."""
    traits = rule.traits
    assert (traits.numerator, traits.needs_losses, traits.has_fixed_denominator) == (
        "Tempered",
        True,
        False,
    )
    assert traits.dp_unsupported_reason == "the rule declares no largest weight"
    assert compute_regret_bound(rule, 10, 2, 1.0) is None
    with pytest.raises(NotImplementedError, match="Tempered declares no largest weight"):
        rule.compute_max_share(2)
    with pytest.raises(
        ParameterError,
        match=r"participation must be none with the weighting Tempered \(it weights by the updates "
        r"of a round, and absent clients send none\), got 'a correction'",
    ):
        rule.with_fixed_denominator()
