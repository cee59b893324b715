"""AFL by hand: p climbs the losses, with the mass of the reporting clients."""

import numpy as np
from fedquorum.rules.types import Population, RoundPlan
from fedquorum.rules.weighting import AFLWeighting
from fedquorum.rules.weighting.afl import AFLState

from tests.builders import make_client_updates


def test_afl_by_hand() -> None:
    """p = (1/2, 1/2) + 0.1 (1, 3) is projected back, which subtracts the mean."""
    state, weights_by_round = AFLWeighting(0.1).init(Population.from_size(2)), []
    for _ in range(2):
        state, weights = AFLWeighting(0.1).weigh(
            state, RoundPlan((0, 1)), make_client_updates([1.0, 3.0]), np.ones(2)
        )
        weights_by_round.append(weights.weight)
    np.testing.assert_allclose(weights_by_round, [[0.4, 0.6], [0.3, 0.7]])


def test_afl_moves_only_the_mass_of_reporting_clients() -> None:
    """The p of a client that does not report stays; the others divide their total mass."""
    rule = AFLWeighting(0.1)
    state = rule.init(Population.from_size(4))
    state, weights = rule.weigh(
        state, RoundPlan((1, 3)), make_client_updates([1.0, 3.0], client=[1, 3]), np.ones(2)
    )
    np.testing.assert_allclose(state.mixing, [0.25, 0.15, 0.25, 0.35])
    np.testing.assert_allclose(weights.weight, [0.3, 0.7])


def test_afl_with_no_mass_left_among_reporting_clients() -> None:
    """Their p stays 0, and the largest loss gets all the weight, as with a tiny mass."""
    rule = AFLWeighting(1.0)
    state = rule.init(Population.from_size(3))
    state, _ = rule.weigh(
        state, RoundPlan((0, 1, 2)), make_client_updates([0.0, 0.0, 100.0]), np.ones(3)
    )
    assert state.mixing.tolist() == [0, 0, 1]
    state, weights = rule.weigh(
        state, RoundPlan((0, 1)), make_client_updates([5.0, 1.0]), np.ones(2)
    )
    assert weights.weight.tolist() == [1, 0]
    assert state.mixing.tolist() == [0, 0, 1]
    hardly = AFLState(state.client, np.array([1e-12, 1e-12, 1 - 2e-12]))
    _, close = rule.weigh(hardly, RoundPlan((0, 1)), make_client_updates([5.0, 1.0]), np.ones(2))
    assert close.weight.tolist() == [1, 0]
