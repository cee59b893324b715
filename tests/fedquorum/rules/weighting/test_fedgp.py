"""FedGP: the priority clients' step, and the projections of the other updates onto it."""

import math

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.selection import AllClients, PriorityOnly
from fedquorum.rules.types import (
    ClientUpdates,
    FloatArray,
    Population,
    ReplacementSample,
    RoundPlan,
)
from fedquorum.rules.weighting import DataFraction, FedGPWeighting

from tests.builders import (
    GATE,
    World,
    build_corrected_weighting,
    decide_rounds,
    make_client_updates,
    weigh,
)
from tests.reference import fedgp as reference

RNG = np.random.default_rng(21)
UPDATES = RNG.normal(size=(7, 5)) * RNG.lognormal(size=(7, 1)) + 0.4
PRIORITY = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
DATA = np.array([30.0, 10.0, 7.0, 12.0, 50.0, 90.0, 3.0])


def make_updates(
    updates: FloatArray, priority: FloatArray, data: FloatArray | float = 10.0
) -> ClientUpdates:
    """Return updates without losses, which the rule does not need."""
    losses = np.full(len(updates), math.nan)
    return make_client_updates(losses, priority=priority, data=data, updates=updates)


def compute_step(updates: FloatArray, priority: list[float], beta: float = 0.5) -> FloatArray:
    """Return sum_k c_k Delta_k."""
    weights = weigh(FedGPWeighting(beta), make_updates(updates, np.array(priority)))
    return np.asarray(weights.weight @ updates)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_the_step_matches_the_definition(beta: float) -> None:
    """An independent implementation projects vectors; the rule weights by inner products."""
    is_target, is_source = PRIORITY > 0, PRIORITY == 0
    weights = weigh(FedGPWeighting(beta), make_updates(UPDATES, PRIORITY, DATA))
    g_target = reference.compute_target(UPDATES[is_target].tolist(), DATA[is_target].tolist())
    expected = reference.step(g_target, UPDATES[is_source].tolist(), beta)
    np.testing.assert_allclose(weights.weight @ UPDATES, expected, rtol=1e-12)
    assert weights.update_norm is not None
    np.testing.assert_allclose(weights.update_norm, np.linalg.norm(UPDATES, axis=1), rtol=1e-12)
    assert weights.weight.min() >= 0


def test_beta_0_is_fedavg_on_the_priority_clients_to_the_bit() -> None:
    """Numerators and denominator are equal, and so are the models."""
    updates = make_updates(UPDATES, PRIORITY, DATA)
    got = weigh(FedGPWeighting(0.0), updates)
    expected = weigh(DataFraction(), updates, share=PRIORITY)
    assert got.numerator.tolist() == expected.numerator.tolist()
    assert got.denominator == expected.denominator


@pytest.mark.parametrize("selection", [AllClients(), PriorityOnly()])
def test_priority_weights_are_those_of_the_objective(selection: AllClients | PriorityOnly) -> None:
    """p_k = lambda_k D_k / sum of lambda_i D_i, counted once, for any selection."""
    population = Population((0, 1, 2), frozenset({0, 1}), {1: 0.25})
    world = World(population, DATA[:3], np.ones(3), updates=UPDATES[:3])
    (got,) = decide_rounds(RuleSet(selection, FedGPWeighting(0.0)), world, [[1, 1, 1]])
    assert got.weight[:2] == pytest.approx([30 / 32.5, 2.5 / 32.5], rel=1e-12)


def test_a_sources_length_does_not_matter() -> None:
    """Scaling its update by any positive number gives the same step."""
    before = compute_step(UPDATES, PRIORITY.tolist())
    for factor in (1e-6, 3.0, 1e9):
        longer = UPDATES.copy()
        longer[4] *= factor
        np.testing.assert_allclose(compute_step(longer, PRIORITY.tolist()), before, rtol=1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_source_along_the_target_changes_nothing(beta: float) -> None:
    """One source that is a positive multiple of g_T: the step is g_T."""
    for factor in (0.01, 1.0, 50.0):
        updates = np.array([[3.0, 4.0], [factor * 3.0, factor * 4.0]])
        np.testing.assert_allclose(compute_step(updates, [1, 0], beta), [3.0, 4.0], rtol=1e-12)


def test_opposed_sources_halve_the_step() -> None:
    """All projections are 0, and the step is (1 - beta) g_T."""
    updates = np.array([[3.0, 4.0], [-1.0, -1.0], [-4.0, 2.9], [0.0, -9.0]])
    np.testing.assert_allclose(compute_step(updates, [1, 0, 0, 0]), [1.5, 2.0], rtol=1e-12)
    np.testing.assert_allclose(compute_step(updates, [1, 0, 0, 0], 0.2), [2.4, 3.2], rtol=1e-12)


def test_a_huge_source_moves_the_model_by_its_bound_at_most() -> None:
    """|c_i Delta_i| <= (beta / N_s) |g_T| for any update of a source."""
    updates = np.array([[3.0, 4.0], [1e6, 0.0]])
    np.testing.assert_allclose(compute_step(updates, [1, 0]), [3.0, 2.0], rtol=1e-12)
    rng = np.random.default_rng(2)
    for beta in (0.5, 1.0):
        for _ in range(20):
            updates = rng.normal(size=(5, 3)) * 10.0 ** rng.uniform(-6, 6, (5, 1))
            weight = weigh(
                FedGPWeighting(beta), make_updates(updates, np.array([1, 1, 0, 0, 0]))
            ).weight
            lengths = weight[2:] * np.linalg.norm(updates[2:], axis=1)
            g_target = np.linalg.norm(updates[:2].mean(axis=0))
            assert lengths.max() <= beta / 3 * g_target * (1 + 1e-9)


def test_without_a_priority_update_nothing_counts() -> None:
    """As in FedALIGN's gate, there is no direction to follow."""
    weights = weigh(FedGPWeighting(), make_updates(UPDATES, np.zeros(7)))
    assert weights.weight.tolist() == [0.0] * 7


def test_without_a_source_it_is_fedavg() -> None:
    """The step is not halved, and the rule needs no inner products."""
    alone = make_client_updates(np.ones(3), data=[10.0, 20.0, 10.0])
    assert weigh(FedGPWeighting(), alone).weight.tolist() == [0.25, 0.5, 0.25]


def test_updates_without_a_direction_count_nothing() -> None:
    """An update of length 0, one so short that c_i overflows, or one whose square overflows."""
    updates = np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0], [1e-160, 0.0], [1e200, 0.0]])
    with np.errstate(over="ignore"):
        weights = weigh(FedGPWeighting(), make_updates(updates, np.array([1, 0, 0, 0, 0])))
    assert weights.weight[:3].tolist() == [0.5, 0.0, 0.0]
    assert weights.weight[4] == 0.0
    assert np.isfinite(weights.weight).all()


def test_draws_count_as_in_fedavg_on_the_priority_clients() -> None:
    """p_k = n_k / |S| if priority clients are sampled with replacement."""
    rule, updates = FedGPWeighting(0.5), make_updates(UPDATES, PRIORITY, DATA)
    plan = RoundPlan(tuple(range(7)), replacement_sample=ReplacementSample({0: 1, 3: 3}, 45.0))
    _, weights = rule.weigh(None, plan, updates, np.ones(7))
    np.testing.assert_allclose(weights.weight[[0, 3, 6]], [0.125, 0.375, 0.0], rtol=1e-12)


def test_it_refuses_unsupported_combinations() -> None:
    """Corrections, gates, and sources without inner products, each with the reason."""
    with pytest.raises(ParameterError, match=r"participation must be none with .* fedgp"):
        build_corrected_weighting(FedGPWeighting(), "fedau")
    with pytest.raises(ParameterError, match=r"selection must be one without a gate .* fedgp"):
        RuleSet(GATE, FedGPWeighting())
    with pytest.raises(AssertionError, match="has the inner products of its updates"):
        weigh(FedGPWeighting(), make_client_updates([1.0, 1.0], priority=[1.0, 0.0]))
    assert (
        RuleSet(AllClients(), FedGPWeighting()).compute_known_weights(None, RoundPlan((0, 1)))
        is None
    )
