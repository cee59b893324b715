"""Weights by data: FedALIGN's p_k / (1 + A), FedAvg's fractions, and draws."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.rules.types import ReplacementSample, RoundPlan
from fedquorum.rules.weighting import DataFraction
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import decide_first_round, make_client_updates

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
        RoundPlan(tuple(range(len(data)))),
        make_client_updates(np.ones(len(data)), data=data, priority=priority),
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


def test_no_admitted_client_means_zero_weights() -> None:
    """Zero total weight gives zeros, not a division by zero."""
    _, weights = DataFraction().weigh(
        None, RoundPlan((0, 1)), make_client_updates([1.0, 2.0]), np.zeros(2)
    )
    assert weights.weight.tolist() == [0.0, 0.0]


def test_an_admitted_fraction_scales_the_data() -> None:
    """Half of 20 examples counts as much as 10."""
    given = make_client_updates([1.0, 1.0], data=[10, 20], priority=[1.0, 0.5])
    _, weights = DataFraction().weigh(None, RoundPlan((0, 1)), given, np.array([1.0, 0.5]))
    assert weights.weight.tolist() == [0.5, 0.5]
    assert weights.inclusion_mass == 0.0


def test_without_priority_clients_there_is_no_inclusion_mass() -> None:
    """The fraction is explained by itself, since A divides by the priority clients' data."""
    given = make_client_updates([1.0, 1.0], data=[10, 30], priority=0.0)
    _, weights = DataFraction().weigh(None, RoundPlan((0, 1)), given, np.ones(2))
    trace = replace(decide_first_round(DataFraction(), given, 2), updates=given, weights=weights)
    (line,) = DataFraction().explain(trace, 1)
    assert line.endswith("s_k D_k = 1 x 30, the sum is 40: c_k = 0.75")


# Client 0 was drawn twice and client 1 once, from priority clients with 60 examples in all.
SAMPLED_PLAN = RoundPlan((0, 1, 2), replacement_sample=ReplacementSample({0: 2, 1: 1}, 60.0))


def test_a_weight_by_draws_is_explained_with_its_numbers() -> None:
    """n_k / |S| for a drawn priority client, p_k for others, both over 1 + A = 1 + 30 / 60."""
    rule = DataFraction()
    given = make_client_updates([1.0] * 3, data=[10, 20, 30], priority=[1, 1, 0])
    _, weights = rule.weigh(None, SAMPLED_PLAN, given, np.ones(3))
    np.testing.assert_allclose(weights.weight, [2 / 3 / 1.5, 1 / 3 / 1.5, 0.5 / 1.5])
    trace = replace(
        decide_first_round(rule, given, 3), plan=SAMPLED_PLAN, updates=given, weights=weights
    )
    assert [list(rule.explain(trace, index)) for index in range(3)] == [
        ["c_k = n_k / |S| / (1 + A) = 2 / 3 / (1 + 0.5) = 0.444444"],
        ["c_k = n_k / |S| / (1 + A) = 1 / 3 / (1 + 0.5) = 0.222222"],
        [
            "p_k = D_k / sum of D_i over P = 30 / 60 = 0.5",
            "c_k = p_k / (1 + A) = 0.5 / (1 + 0.5) = 0.333333",
        ],
    ]
    assert [*rule.explain(replace(trace, weights=None), 0)] == []
