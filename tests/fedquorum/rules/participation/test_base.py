"""Common properties of all corrections for participation."""

from typing import Any

import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.participation import PARTICIPATIONS, Participation
from fedquorum.rules.regret import compute_regret_bound
from fedquorum.rules.weighting import AAggFFDWeighting, AverageAll, DataFraction

from tests.builders import build_corrected_weighting

OPTIONS: dict[str, dict[str, Any]] = {"known_statistics": {"probabilities": [0.5, 0.5]}}
ALL = list(PARTICIPATIONS.items())


@pytest.mark.parametrize(("key", "correction"), ALL)
def test_only_weights_over_a_fixed_population_are_corrected(
    key: str, correction: type[Participation[Any]]
) -> None:
    """A weight divided by the available clients already rises with absence."""
    options = OPTIONS.get(key, {})
    message = (
        r"^base must be a weighting over a fixed population, as with_fixed_denominator\(\) returns "
        r"it, got"
    )
    with pytest.raises(ParameterError, match=message):
        correction(**options, base=DataFraction())
    rule = correction(**options, base=DataFraction().with_fixed_denominator())
    assert rule.traits.has_fixed_denominator


@pytest.mark.parametrize("key", PARTICIPATIONS)
def test_a_correction_has_the_regret_bound_of_its_base(key: str) -> None:
    """The base decides p in the same way; a base without p has no bound."""
    options = OPTIONS.get(key, {})
    base = AAggFFDWeighting()
    bound = compute_regret_bound(base, 10, 2, 1.0)
    assert bound is not None
    corrected = build_corrected_weighting(base.with_fixed_denominator(), key, **options)
    assert compute_regret_bound(corrected, 10, 2, 1.0) == bound
    average = build_corrected_weighting(AverageAll(), key, **options)
    assert compute_regret_bound(average, 10, 2, 1.0) is None


@pytest.mark.parametrize("key", PARTICIPATIONS)
def test_nothing_is_corrected_twice(key: str) -> None:
    """The second correction would divide by the first one's rates."""
    rule = build_corrected_weighting(AverageAll(), key, **OPTIONS.get(key, {}))
    with pytest.raises(ParameterError, match="participation must be corrected for once"):
        rule.with_fixed_denominator()
