"""Rules that mix by losses as exponentiated gradients, each against its formula."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.registry import ALL_WEIGHTINGS
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.selection import AllClients, Sampling
from fedquorum.rules.types import FloatArray
from fedquorum.rules.weighting import (
    AFLWeighting,
    DataFraction,
    FedMGDAWeighting,
    PropFairWeighting,
    QFedAvgWeighting,
    TERMWeighting,
    Weighting,
)
from fedquorum.rules.weighting.exponentiated_gradient import compute_exponentiated_gradient

from tests.builders import make_client_updates, weigh

LOSS = [0.5, 1.0, 2.0, 1.9]
DATA = [10.0, 20.0, 30.0, 40.0]


@pytest.mark.parametrize(
    ("rule", "weight"),
    [
        (QFedAvgWeighting(q=2.0), lambda f: f**2),
        (QFedAvgWeighting(q=0.1), lambda f: f**0.1),
        (TERMWeighting(tilt=1.5), lambda f: np.exp(1.5 * f)),
        (TERMWeighting(tilt=-1.0), lambda f: np.exp(-f)),
        (PropFairWeighting(bound=3.0), lambda f: 1 / (3 - f)),
        (
            PropFairWeighting(bound=2.0, epsilon=0.15),
            lambda f: 1 / np.array([1.5, 1.0, 0.15, 0.15]),
        ),
    ],
)
def test_formulas(rule: Weighting[Any], weight: Callable[[FloatArray], FloatArray]) -> None:
    """c ~ w F^q, w exp(lambda F), w / (M - F): each is w exp(r) with the rule's response r."""
    weights = weigh(rule, make_client_updates(LOSS, data=DATA))
    expected = np.array(DATA) * weight(np.array(LOSS))
    np.testing.assert_allclose(weights.weight, expected / expected.sum(), rtol=1e-13)
    assert weights.response is not None
    np.testing.assert_allclose(
        compute_exponentiated_gradient(np.array(DATA), weights.response), weights.weight, rtol=1e-13
    )


@pytest.mark.parametrize(
    "rule",
    [
        QFedAvgWeighting(q=0.0),
        TERMWeighting(tilt=0.0),
        PropFairWeighting(bound=1e12),
        QFedAvgWeighting(q=0.0, lipschitz=3.0),
    ],
)
def test_limits_are_fedavg(rule: Weighting[Any]) -> None:
    """q = 0, lambda = 0 and M to infinity weight by data alone."""
    given = make_client_updates(
        LOSS, data=DATA, updates=np.random.default_rng(0).normal(size=(4, 3))
    )
    np.testing.assert_allclose(
        weigh(rule, given).weight, weigh(DataFraction(), given).weight, rtol=1e-10
    )


@pytest.mark.parametrize(
    "rule", [QFedAvgWeighting(q=500.0), TERMWeighting(tilt=500.0), AFLWeighting(step_size=500.0)]
)
def test_limits_are_the_worst_client(rule: Weighting[Any]) -> None:
    """q, lambda and gamma to infinity count only the largest loss."""
    np.testing.assert_allclose(
        weigh(rule, make_client_updates(LOSS, data=DATA)).weight, [0, 0, 1, 0], atol=1e-10
    )


def test_a_uniform_prior_is_fedebas() -> None:
    """c ~ exp(F / tau) for any amounts of data; equal losses give 1 / n."""
    given, tau = make_client_updates(LOSS, data=DATA), 0.8
    expected = np.exp(np.array(LOSS) / tau)
    weights = weigh(TERMWeighting(1 / tau, "uniform"), given)
    np.testing.assert_allclose(weights.weight, expected / expected.sum(), rtol=1e-13)
    equal = make_client_updates([0.7] * 4, data=DATA)
    assert weigh(TERMWeighting(1 / tau, "uniform"), equal).weight.tolist() == [0.25] * 4
    assert weigh(TERMWeighting(1e-12, "uniform"), given).weight == pytest.approx(0.25, rel=1e-9)
    no_data = make_client_updates(LOSS, data=0.0)
    assert (
        weigh(TERMWeighting(1 / tau, "uniform"), no_data).weight.tolist() == weights.weight.tolist()
    )


def test_the_prior_by_data_is_fedavgs_weights_to_the_bit() -> None:
    """TERM with the default prior starts from FedAvg's weights."""
    given = make_client_updates(LOSS, data=DATA)
    expected = compute_exponentiated_gradient(weigh(DataFraction(), given).weight, 1.5 * given.loss)
    assert weigh(TERMWeighting(1.5), given).weight.tolist() == expected.tolist()


def test_a_uniform_prior_has_no_draws() -> None:
    """Sampling with replacement weights clients by data, not uniformly."""
    sampling = Sampling(priority_samples=2)
    assert RuleSet(AllClients(sampling), TERMWeighting()).weighting.traits.weights_by_data
    with pytest.raises(ParameterError, match="priority_samples must be None with prior=uniform"):
        RuleSet(AllClients(sampling), TERMWeighting(prior="uniform"))


def test_propfair_near_its_bound() -> None:
    """A loss at or above M has the weight of M - epsilon, the largest, and not a negative one."""
    weights = weigh(PropFairWeighting(bound=2.0), make_client_updates([1.0, 1.8, 2.0, 50.0])).weight
    np.testing.assert_allclose(weights, np.array([1, 5, 5, 5]) / 16)


@pytest.mark.parametrize("rule", [QFedAvgWeighting(1.0, 4.0), FedMGDAWeighting(0.2)])
def test_rules_that_read_updates_record_their_norms(rule: Weighting[Any]) -> None:
    """Records have |Delta_i|, so that an audit can recompute a weight that depends on it."""
    updates = np.random.default_rng(5).normal(size=(4, 5))
    norms = weigh(rule, make_client_updates(LOSS, updates=updates)).update_norm
    assert norms is not None
    np.testing.assert_allclose(norms, np.linalg.norm(updates, axis=1), rtol=1e-12)
    assert weigh(TERMWeighting(), make_client_updates(LOSS, updates=updates)).update_norm is None


def test_rules_on_updates_need_inner_products() -> None:
    """Every round has them; without them it is not decided."""
    for rule in (FedMGDAWeighting(), QFedAvgWeighting(lipschitz=1.0)):
        with pytest.raises(AssertionError, match="has the inner products of its updates"):
            weigh(rule, make_client_updates(LOSS))


def test_products_are_computed_only_on_demand() -> None:
    """Rules on losses alone do not read the updates."""

    def fail() -> FloatArray:
        raise AssertionError("not needed")

    given = replace(make_client_updates(LOSS), gram=fail)
    for key, rule in ALL_WEIGHTINGS.items():
        if not rule().traits.needs_updates:
            assert np.isfinite(weigh(rule(), given).weight).all(), key
