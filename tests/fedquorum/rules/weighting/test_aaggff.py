"""Common properties of AAggFF-S and AAggFF-D."""

import math
from typing import Any

import numpy as np
import pytest
from fedquorum.rules.types import Population, RoundPlan
from fedquorum.rules.weighting import AAggFFDWeighting, AAggFFSWeighting, Weighting

from tests.builders import compute_mixing_path, draw_losses, make_updates_from_losses


@pytest.mark.parametrize("loss", [0.0, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize(
    "rule",
    [
        AAggFFSWeighting(),
        AAggFFDWeighting(),
        AAggFFDWeighting("normal", baseline_response="running"),
    ],
)
def test_uniform_losses_give_uniform_p(rule: Weighting[Any], loss: float) -> None:
    """Equal losses give equal weights in every round."""
    history = [dict.fromkeys(range(6), loss)] * 20
    got, weights_by_round = compute_mixing_path(rule, history, 6)
    np.testing.assert_allclose(got, np.full((20, 6), 1 / 6), atol=1e-12)
    np.testing.assert_allclose(
        [w.weight for w in weights_by_round], np.full((20, 6), 1 / 6), atol=1e-12
    )


@pytest.mark.parametrize("rule", [AAggFFSWeighting(), AAggFFDWeighting()])
def test_larger_losses_weigh_more(rule: Weighting[Any]) -> None:
    """Constant losses order p by loss, and the differences increase over the rounds."""
    history = [{0: 1.0, 1: 1.5, 2: 2.0}] * 30
    got, _ = compute_mixing_path(rule, history, 3)
    assert np.all(np.diff(got, axis=1) >= 0)
    assert np.all(np.diff(got[:, 2]) >= -1e-12)


@pytest.mark.parametrize("rule", [AAggFFSWeighting(), AAggFFDWeighting()])
def test_the_decision_loss_uses_the_p_before_the_round(rule: Weighting[Any]) -> None:
    """l_t = -log(1 + <p_t, r_t>) with p_t decided without r_t."""
    history = draw_losses(5, 10, 5)
    got, weights_by_round = compute_mixing_path(rule, history, 5)
    mixing_before = np.vstack([np.full(5, 0.2), got])
    for t, weights in enumerate(weights_by_round):
        assert weights.response is not None
        assert weights.decision_loss == pytest.approx(
            -math.log1p(mixing_before[t] @ weights.response), abs=1e-14
        )


@pytest.mark.parametrize("rule", [AAggFFSWeighting(), AAggFFDWeighting()])
def test_admitted_fractions_multiply(rule: Weighting[Any]) -> None:
    """A fraction between 0 and 1 scales the client's p before normalization."""
    state = rule.init(Population.from_size(3))
    _, weights = rule.weigh(
        state,
        RoundPlan((0, 1, 2)),
        make_updates_from_losses({0: 1.0, 1: 1.0, 2: 1.0}),
        np.array([1.0, 0.5, 0.0]),
    )
    np.testing.assert_allclose(weights.weight, [2 / 3, 1 / 3, 0.0], rtol=1e-12)


@pytest.mark.parametrize("rule", [AAggFFSWeighting(), AAggFFDWeighting()])
def test_one_client_has_all_the_weight(rule: Weighting[Any]) -> None:
    """K = 1 does not divide by log K = 0."""
    got, _ = compute_mixing_path(rule, [{0: 1.0}, {0: 3.0}], 1)
    assert got.tolist() == [[1.0], [1.0]]
