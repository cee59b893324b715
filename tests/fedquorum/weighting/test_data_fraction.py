"""Weights by data: FedALIGN's p_k / (1 + A), FedAvg's fractions, and those of all known clients."""

from fractions import Fraction

import numpy as np
import pytest
from fedquorum.types import Call
from fedquorum.weighting import DataFraction
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import responses

cohorts = st.lists(
    st.tuples(st.integers(1, 10**6), st.booleans(), st.booleans()), min_size=1, max_size=40
)


@given(cohorts)
def test_data_fraction_is_fedalign_aggregation(cohort: list[tuple[int, bool, bool]]) -> None:
    """c_k = p_k / (1 + A) with p_k = D_k / sum_P D_i, in exact fractions."""
    data = [d for d, _, _ in cohort]
    priority = [p for _, p, _ in cohort]
    admitted = [p or a for _, p, a in cohort]
    _, weights = DataFraction().weigh(
        None,
        Call(tuple(range(len(data)))),
        responses(np.ones(len(data)), data=data, priority=priority),
        np.array(admitted, dtype=np.float64),
    )
    total = sum(d for d, p in zip(data, priority, strict=True) if p)
    if total == 0:
        return
    p_k = [Fraction(d, total) if a else Fraction(0) for d, a in zip(data, admitted, strict=True)]
    mass = sum((f for f, p in zip(p_k, priority, strict=True) if not p), Fraction(0))
    np.testing.assert_allclose(weights.weight, [float(f / (1 + mass)) for f in p_k], rtol=1e-12)
    assert weights.inclusion_mass == pytest.approx(float(mass), rel=1e-12)
    assert weights.weight.sum() == pytest.approx(1.0)


def test_nobody_admitted_means_zero_weights() -> None:
    """Zero total weight gives zeros, not a division by zero."""
    _, weights = DataFraction().weigh(None, Call((0, 1)), responses([1.0, 2.0]), np.zeros(2))
    assert weights.weight.tolist() == [0.0, 0.0]
