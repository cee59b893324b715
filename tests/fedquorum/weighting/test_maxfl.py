"""MaxFL's weights: against the formulas, at their limits, and without what they need."""

import math
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rule import RunFacts
from fedquorum.types import Population, Weights
from fedquorum.weighting import Satisfaction
from fedquorum.weighting.maxfl import NO_REQUIREMENT, satisfaction_slope

from tests.builders import decided, responses, weigh
from tests.reference import maxfl as reference

LOSS = [0.5, 1.25, 3.0, 0.75]
RHO = [1.0, 1.0, 0.5, 0.75]


def weights_of(rho: Any, losses: list[float] = LOSS, **options: Any) -> Weights:
    return weigh(Satisfaction(rho, **options), responses(losses))


@pytest.mark.parametrize(("slope", "offset"), [(1, "0"), (3, "0"), (2, "0.5"), (1, "10")])
def test_the_weights_are_those_of_the_formulas(slope: int, offset: str) -> None:
    """Against exact fractions; with an offset they sum to less than 1."""
    gaps = [str(loss - rho) for loss, rho in zip(LOSS, RHO, strict=True)]
    expected = [float(weight) for weight in reference.weights(gaps, slope, offset)]
    got = weights_of(RHO, slope=float(slope), offset=float(offset)).weight
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert got.sum() == pytest.approx(1.0) if offset == "0" else got.sum() < 1.0


def test_equal_gaps_are_the_plain_average() -> None:
    """1 / n to the last bit, however large the gap, and for either sign."""
    for gap in (-700.0, -1.0, 0.0, 1.0, 700.0):
        rho = [loss - gap for loss in (800.0, 801.0, 803.0, 900.0)]
        assert weights_of(rho, [800.0, 801.0, 803.0, 900.0]).weight.tolist() == [0.25] * 4


def test_q_is_largest_at_the_requirement_and_falls_on_both_sides() -> None:
    """q(0) = 1/4, q(z) = q(-z), q(800) = 0 without an overflow: hopeless clients are given up."""
    z = np.array([0.0, 1.0, -1.0, 800.0, -800.0, math.inf])
    q = satisfaction_slope(z)
    assert q[0] == 0.25
    assert q[1] == q[2] == pytest.approx(math.e / (1 + math.e) ** 2, rel=1e-15)
    assert q[3:].tolist() == [0.0, 0.0, 0.0]
    assert (np.diff(satisfaction_slope(np.linspace(0.0, 40.0, 200))) < 0).all()
    satisfied, near, hopeless = weights_of([11.0] * 3, [1.0, 11.0, 21.0]).weight
    assert satisfied == pytest.approx(hopeless)
    assert near > 0.99


def test_no_client_near_its_requirement_is_no_step() -> None:
    """All weights are 0 where every q underflows, with an offset too."""
    for offset in (0.0, 1.0):
        got = weights_of([900.0, -900.0], [0.0, 1.0], offset=offset)
        assert (got.weight.tolist(), got.divisor) == ([0.0, 0.0], 0.0)


def test_an_infinite_or_missing_requirement_has_no_weight() -> None:
    """The missing one is told; the others share as if both were not there."""
    got = weights_of([math.inf, -math.inf, math.nan, 1.0])
    assert got.weight.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert got.reason == {2: NO_REQUIREMENT}
    rule = Satisfaction({0: 1.0, 3: 1.0})
    made = decided(rule, responses(LOSS), 4)
    assert [d.reason for d in made.recorded] == [None, NO_REQUIREMENT, NO_REQUIREMENT, None]
    assert [*rule.explain(made, 1)] == [f"c_k = 0; {NO_REQUIREMENT}"]


def test_what_was_admitted_in_part_counts_in_part() -> None:
    """c_k is proportional to s_k q_k."""
    got = weigh(Satisfaction(1.0), responses([1.0, 1.0]), share=np.array([1.0, 0.25]))
    assert got.weight.tolist() == [0.8, 0.2]


def test_the_requirements_are_those_of_the_run() -> None:
    """A run that has them hands them over, whatever the setting is: a directory is read by it."""
    facts = RunFacts(clients=(0, 1), requirements={0: 0.5, 1: math.nan})
    rule = Satisfaction.of({"requirement": "outputs/local"}, facts)
    assert rule.requirements(np.array([0, 1, 7])).tolist()[0] == 0.5
    assert np.isnan(rule.requirements(np.array([1, 7]))).all()
    assert Satisfaction.of({"requirement": 2}, RunFacts(clients=(0,))) == Satisfaction(2)


@pytest.mark.parametrize("given", [None, [math.inf, math.nan], {5: 1.0}, "outputs/local"])
def test_nobody_with_a_requirement_is_refused(given: Any) -> None:
    """With the parameter to give."""
    with pytest.raises(ParameterError, match=r"requirement must be a number, .*none has one"):
        Satisfaction.of({"requirement": given}, RunFacts(clients=(0, 1)))


def test_python_reads_no_directory() -> None:
    """Rules open no files; the command line does."""
    with pytest.raises(ParameterError, match=r"a mapping in Python .*, got 'outputs/local'"):
        Satisfaction("outputs/local").init(Population.of(2))


def test_absent_clients_have_no_weight_to_correct() -> None:
    """Participation cannot be corrected for."""
    with pytest.raises(ParameterError, match=r"participation must be none with .* maxfl"):
        Satisfaction(1.0).over_known()
