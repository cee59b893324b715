"""q-FedAvg: its limits, and the paper's step against Flower's and against the formula."""

from dataclasses import replace

import numpy as np
import pytest
from fedquorum.rules.weighting import QFedAvgWeighting
from flwr.serverapp.strategy.qfedavg import compute_delta_and_h

from tests.builders import make_client_updates, weigh

LOSS = [0.5, 1.0, 2.0, 1.9]
DATA = [10.0, 20.0, 30.0, 40.0]


def test_q_fedavg_without_losses_left() -> None:
    """If all losses are 0, the weights are by data; a single positive loss has all the weight."""
    assert weigh(
        QFedAvgWeighting(), make_client_updates([0.0] * 2, data=[1.0, 3.0])
    ).weight.tolist() == [0.25, 0.75]
    assert weigh(QFedAvgWeighting(), make_client_updates([0.0, 1e-12, 0.0])).weight.tolist() == [
        0,
        1,
        0,
    ]


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_q_fedavg_with_h_is_flowers(q: float, rate: float) -> None:
    """With equal amounts of data the step is that of Flower's QFedAvg, L = 1 / learning rate."""
    rng = np.random.default_rng(1)
    model, updates = rng.normal(size=6), rng.normal(size=(4, 6))
    deltas, hs = zip(
        *(
            compute_delta_and_h([model.copy()], [model + u], q, 1 / rate, loss)
            for u, loss in zip(updates, LOSS, strict=True)
        ),
        strict=True,
    )
    expected = model - sum(d[0] for d in deltas) / sum(hs)
    weights = weigh(
        QFedAvgWeighting(q=q, lipschitz=1 / rate), make_client_updates(LOSS, updates=updates)
    )
    np.testing.assert_allclose(model + weights.weight @ updates, expected, rtol=1e-8)
    assert weights.weight.sum() == pytest.approx(1) if q == 0 else weights.weight.sum() < 1


def test_q_fedavg_with_h_and_data() -> None:
    """c_i = w_i F_i^q / sum_j w_j (q F_j^(q-1) L |Delta_j|^2 + F_j^q), w the data's fractions."""
    updates = np.random.default_rng(2).normal(size=(4, 5))
    loss, w, q, lipschitz = np.array(LOSS), np.array(DATA) / 100, 1.5, 4.0
    h = q * loss ** (q - 1) * lipschitz * (updates**2).sum(axis=1) + loss**q
    weights = weigh(
        QFedAvgWeighting(q, lipschitz), make_client_updates(LOSS, data=DATA, updates=updates)
    )
    np.testing.assert_allclose(weights.weight, w * loss**q / (w @ h), rtol=1e-13)
    assert weights.mixing is not None
    np.testing.assert_allclose(
        weights.mixing,
        weigh(QFedAvgWeighting(q), make_client_updates(LOSS, data=DATA)).weight,
        rtol=1e-13,
    )


def test_q_fedavg_with_h_at_extreme_losses() -> None:
    """With losses of 0 and 1e6 in one round the weights are finite and sum to at most 1."""
    updates = np.random.default_rng(3).normal(size=(4, 5))
    for q in (0.1, 1.0, 60.0):
        weights = weigh(
            QFedAvgWeighting(q, 10.0), make_client_updates([0.0, 1e-12, 1.0, 1e6], updates=updates)
        )
        assert np.isfinite(weights.weight).all()
        assert 0 <= weights.weight.sum() <= 1


def test_an_update_that_does_not_count_is_not_in_the_denominator() -> None:
    """Its length has no effect, because an audit does not know it."""
    updates = make_client_updates(LOSS[:3], updates=np.eye(3))
    (gram, fraction) = np.diag([1.0, np.nan, 4.0]), np.array([1.0, 0.0, 1.0])
    unknown, rule = replace(updates, gram=lambda: gram), QFedAvgWeighting(1.0, lipschitz=2.0)
    known = replace(updates, gram=lambda: np.diag([1.0, 9.0, 4.0]))
    found, expected = (weigh(rule, one, share=fraction) for one in (unknown, known))
    assert found.weight.tolist() == expected.weight.tolist()
    assert found.weight[1] == 0.0
    assert found.weight[0] > 0.0
