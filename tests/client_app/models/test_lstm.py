"""The recurrent network, by hand."""

import numpy as np
import torch
from numpy.typing import NDArray

from client_app.models import LSTM


def compute_sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 1 / (1 + np.exp(-x))
    return result


def run_layer(x: NDArray[np.float64], *weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the states (n, l, h) of one layer over x (n, l, d); gates input, forget, cell, out."""
    by_input, by_state, a, b = weights
    n, hidden = len(x), by_state.shape[1]
    state, cell = np.zeros((n, hidden)), np.zeros((n, hidden))
    states = []
    for t in range(x.shape[1]):
        gates = np.split(x[:, t] @ by_input.T + state @ by_state.T + a + b, 4, axis=1)
        cell = compute_sigmoid(gates[1]) * cell + compute_sigmoid(gates[0]) * np.tanh(gates[2])
        state = compute_sigmoid(gates[3]) * np.tanh(cell)
        states.append(state)
    return np.stack(states, axis=1)


def test_lstm_by_hand() -> None:
    """Embedding, two layers and logits at each position, or of the last one."""
    model = LSTM(9, 4, embedding=3, hidden=5).double()
    table, *recurrent, weight, bias = (t.numpy() for t in model.state_dict().values())
    tokens = np.random.default_rng(0).integers(9, size=(6, 7))
    states = run_layer(run_layer(table[tokens], *recurrent[:4]), *recurrent[4:])
    logits = model(torch.from_numpy(tokens)).detach().numpy()
    np.testing.assert_allclose(logits, states @ weight.T + bias, atol=1e-12)
    model.every_position = False
    last = model(torch.from_numpy(tokens)).detach().numpy()
    np.testing.assert_allclose(last, logits[:, -1], atol=1e-12)


def test_a_prediction_sees_no_later_token() -> None:
    """Changing tokens changes no logits before them."""
    model = LSTM(9, 9, embedding=3, hidden=5)
    x = torch.arange(8)[None] % 9
    changed = x.clone()
    changed[:, 5:] = 0
    assert torch.equal(model(x)[:, :5], model(changed)[:, :5])
    assert not torch.equal(model(x)[:, 5:], model(changed)[:, 5:])


def test_the_shakespeare_network_has_the_papers_numbers() -> None:
    """820,522 parameters with one bias for a gate, as counted in Adaptive Federated Optimization.

    Reddi et al. (ICLR 2021), Table 10: 90 characters, an embedding of 8, two layers of 256.
    """
    model = LSTM(90, 90, embedding=8)
    second_biases = 2 * 4 * 256
    assert sum(p.numel() for p in model.parameters()) - second_biases == 820_522
