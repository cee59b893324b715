"""FedMGDA+: the shortest mixture of the updates' directions, in its box."""

import numpy as np
from fedquorum.rules.types import AggregationWeights, FloatArray
from fedquorum.rules.weighting import FedMGDAWeighting

from tests.builders import assert_on_the_simplex, make_client_updates, weigh


def get_mixing(weights: AggregationWeights) -> FloatArray:
    """Return p, which this rule always has."""
    assert weights.mixing is not None
    return weights.mixing


def test_fedmgda_for_two_clients() -> None:
    """The shortest mixture of two directions is their mean, within epsilon of the data's."""
    updates = np.array([[3.0, 0.0], [0.0, 0.5]])
    for deviation, expected in ((1.0, 0.5), (0.1, 0.3), (0.0, 0.2)):
        weights = weigh(
            FedMGDAWeighting(deviation),
            make_client_updates([1.0, 1.0], data=[20.0, 80.0], updates=updates),
            2,
        )
        np.testing.assert_allclose(get_mixing(weights), [expected, 1 - expected], atol=1e-8)
        np.testing.assert_allclose(weights.weight, [expected / 3, (1 - expected) / 0.5], atol=1e-7)


def test_fedmgda_harms_no_client() -> None:
    """With epsilon = 1 the step has a product >= 0 with every client's own update."""
    rng = np.random.default_rng(4)
    for _ in range(10):
        updates = rng.normal(size=(6, 8)) * rng.lognormal(size=(6, 1)) + 0.2
        weights = weigh(FedMGDAWeighting(), make_client_updates([1.0] * 6, updates=updates), 6)
        step = weights.weight @ updates
        directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        assert np.all(directions @ step >= step @ step - 1e-9)
        assert np.linalg.norm(step) <= 1


def test_fedmgda_stays_in_its_box() -> None:
    """|p_i - w_i| <= epsilon for every client, also for a singular program."""
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(8, 2))
    data = rng.integers(1, 50, 8).astype(np.float64)
    for deviation in (0.02, 0.1, 0.5):
        weights = weigh(
            FedMGDAWeighting(deviation),
            make_client_updates([1.0] * 8, data=data.tolist(), updates=updates),
            8,
        )
        assert np.abs(get_mixing(weights) - data / data.sum()).max() <= deviation + 1e-11


def test_fedmgda_with_more_clients_than_dimensions() -> None:
    """p is then not unique, but the step does not depend on the order of the clients."""
    rng = np.random.default_rng(6)
    updates, order = rng.normal(size=(9, 4)) + 0.3, rng.permutation(9)
    steps = [
        weigh(FedMGDAWeighting(0.2), make_client_updates([1.0] * 9, updates=ordered), 9).weight
        @ ordered
        for ordered in (updates, updates[order])
    ]
    np.testing.assert_allclose(steps[0], steps[1], atol=1e-6)


def test_fedmgda_with_an_update_of_length_zero() -> None:
    """It has no direction, has no effect, and causes no division by 0."""
    updates = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    weights = weigh(FedMGDAWeighting(0.1), make_client_updates([1.0] * 3, updates=updates), 3)
    assert weights.weight[0] == 0
    assert np.isfinite(weights.weight).all()
    assert_on_the_simplex(get_mixing(weights))
