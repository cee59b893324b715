"""Known rates and the averages: what each client counts in the mean, over all outcomes."""

import math

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.participation import KnownRates
from fedquorum.rule import RunFacts
from fedquorum.types import Call, FloatArray
from fedquorum.weighting import AverageAll, AverageParticipating

from tests.builders import took_part


def expected_weight(
    rule: AverageAll | AverageParticipating | KnownRates, p: FloatArray
) -> FloatArray:
    """Return N E[c_n 1{n takes part}] over all 2^N outcomes, exactly."""
    n = len(p)
    total = np.zeros(n)
    for outcome in range(2**n):
        present = [k for k in range(n) if outcome >> k & 1]
        probability = math.prod(p[k] if k in present else 1 - p[k] for k in range(n))
        _, weights = rule.weigh(None, Call(()), took_part(present, n), np.ones(len(present)))
        total[present] += probability * n * weights.weight
    return total


def test_known_statistics_is_unbiased() -> None:
    """Every client counts alike in expectation; the averages favour those often there."""
    p = np.array([0.02, 0.1, 0.5, 0.9, 1.0])
    known = KnownRates(p.tolist())
    np.testing.assert_allclose(expected_weight(known, p), np.ones(5), rtol=1e-12)
    np.testing.assert_allclose(expected_weight(AverageAll(), p), p, rtol=1e-12)
    participating = expected_weight(AverageParticipating(), p)
    assert np.all(np.diff(participating) > 0)
    assert participating[0] < 0.05


def test_nobody_there_weighs_nothing() -> None:
    """An empty round has no weights and divides by nothing."""
    for rule in (AverageAll(), AverageParticipating()):
        _, weights = rule.weigh(None, Call(()), took_part([], 0), np.ones(0))
        assert weights.weight.shape == (0,)


def test_known_statistics_needs_every_client() -> None:
    """A client without p_n, or with 0, is refused by name."""
    facts = RunFacts(clients=(0, 1))
    with pytest.raises(ParameterError, match=r"probabilities\[1\] must be a number .*, got None"):
        KnownRates.of({"probabilities": {0: 0.5}}, facts)
    with pytest.raises(ParameterError, match=r"probabilities must be .*got \{0: 0\.0, 1: 1\.0\}"):
        KnownRates.of({"probabilities": {0: 0.0, 1: 1.0}}, facts)
    with pytest.raises(ParameterError, match=r"probabilities must be .*nobody knows the rates"):
        KnownRates.of({}, facts)


def test_the_rates_that_a_simulation_knows_are_taken_where_none_are_given() -> None:
    """Those given win; a list is by client id; a client without a rate has omega 1."""
    known = RunFacts(rates={0: 0.5, 1: 0.25}, clients=(0, 1))
    assert dict(KnownRates.of({}, known).omega) == {0: 2.0, 1: 4.0}
    assert dict(KnownRates.of({"probabilities": [1.0, 0.1]}, known).omega) == {0: 1.0, 1: 10.0}
    assert KnownRates({1: 0.5}).omega_of(None, 0) == 1.0
