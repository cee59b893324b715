"""Server optimizers against independent implementations: by hand, torch.optim and Flower."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.errors import ParameterError
from fedquorum.rules.server_optimizer import SGD, Adagrad, Adam, Momentum, ServerOptimizer, Yogi
from fedquorum.rules.server_optimizer.adaptive import AdaptiveOptimizer, AdaptiveState
from fedquorum.rules.state_arrays import from_arrays, to_arrays
from fedquorum.rules.types import FloatArray
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedYogi
from flwr.serverapp.strategy.fedopt import FedOpt
from numpy.typing import NDArray

from tests.reference import server_optimizers as reference

RNG = np.random.default_rng(11)
START = RNG.normal(size=(3, 2))
UPDATES = RNG.normal(size=(12, 3, 2)) * 10.0 ** RNG.integers(-3, 2, size=(12, 1, 1))

RULES: dict[str, ServerOptimizer[Any]] = {
    "sgd": SGD(0.3),
    "momentum": Momentum(0.3, 0.8),
    "adam": Adam(0.05, beta1=0.8, beta2=0.95, tau=1e-2),
    "yogi": Yogi(0.05, beta1=0.8, beta2=0.95, tau=1e-2),
    "adagrad": Adagrad(0.05, tau=1e-2),
}


def run_path(rule: ServerOptimizer[Any], state: Any = None) -> list[FloatArray]:
    """Return the parameters after each of the updates."""
    parameters = {"w": START}
    state = rule.init(parameters) if state is None else state
    parameters_by_step = []
    for update in UPDATES:
        state, stepped = rule.step(state, parameters, {"w": update})
        parameters = {"w": stepped["w"]}
        parameters_by_step.append(stepped["w"])
    return parameters_by_step


def run_torch_path(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
) -> list[FloatArray]:
    """Return torch's parameters after each step, with the updates as negative gradients."""
    parameter = torch.nn.Parameter(torch.tensor(START))
    optimizer = make([parameter])
    parameters_by_step = []
    for update in UPDATES:
        parameter.grad = torch.tensor(-update)
        optimizer.step()
        parameters_by_step.append(parameter.detach().numpy().copy())
    return parameters_by_step


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_algorithm_2_coordinate_by_coordinate(kind: str) -> None:
    """Adam, Yogi and Adagrad match Reddi et al. in every coordinate."""
    rule = RULES[kind]
    assert isinstance(rule, AdaptiveOptimizer)
    got = run_path(rule)
    for i, j in np.ndindex(*START.shape):
        expected = reference.compute_adaptive_path(
            kind,
            UPDATES[:, i, j].tolist(),
            x=float(START[i, j]),
            eta=rule.learning_rate,
            beta1=rule.beta1,
            beta2=getattr(rule, "beta2", math.nan),
            tau=rule.tau,
        )
        np.testing.assert_allclose([x[i, j] for x in got], expected, rtol=1e-12)


def test_sgd_and_momentum_match_torch() -> None:
    """x + eta v with v <- momentum v + Delta is torch.optim.SGD without dampening."""
    for rule, momentum in ((SGD(0.3), 0.0), (Momentum(0.3, 0.8), 0.8)):
        theirs = run_torch_path(partial(torch.optim.SGD, lr=0.3, momentum=momentum))
        np.testing.assert_allclose(run_path(rule), theirs, rtol=1e-12)


def test_adagrad_matches_torch() -> None:
    """With the accumulator tau^2 torch's Adagrad is FedAdagrad without momentum."""
    theirs = run_torch_path(
        lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=1e-4, eps=1e-2)
    )
    np.testing.assert_allclose(run_path(Adagrad(0.05, tau=1e-2)), theirs, rtol=1e-12)


def test_adam_matches_torch_except_for_the_bias_correction() -> None:
    """From v = 0, and with eta_t and tau_t that undo torch's correction, the paths agree."""
    eta, beta1, beta2, eps = 0.05, 0.8, 0.95, 1e-2
    theirs = run_torch_path(lambda p: torch.optim.Adam(p, lr=eta, betas=(beta1, beta2), eps=eps))
    parameters = {"w": START}
    state = AdaptiveState({"w": np.zeros((3, 2))}, {"w": np.zeros((3, 2))})
    for t, update in enumerate(UPDATES, start=1):
        root = math.sqrt(1 - beta2**t)
        rule = Adam(eta * root / (1 - beta1**t), beta1=beta1, beta2=beta2, tau=eps * root)
        state, stepped = rule.step(state, parameters, {"w": update})
        parameters = {"w": stepped["w"]}
        np.testing.assert_allclose(stepped["w"], theirs[t - 1], rtol=1e-12)


def run_flower_path(strategy: FedOpt, monkeypatch: pytest.MonkeyPatch) -> list[FloatArray]:
    """Return the parameters of Flower's strategy, with a given mean of the clients."""
    averaged: dict[str, NDArray[Any]] = {}
    monkeypatch.setattr(
        "flwr.serverapp.strategy.fedavg.FedAvg.aggregate_train",
        lambda *_: (ArrayRecord({k: Array(a) for k, a in averaged.items()}), None),
    )
    strategy.current_arrays = {"w": START}
    parameters_by_step = []
    for t, update in enumerate(UPDATES):
        assert strategy.current_arrays is not None
        averaged["w"] = strategy.current_arrays["w"] + update
        arrays, _ = strategy.aggregate_train(t, [])
        assert arrays is not None
        strategy.current_arrays = {"w": arrays["w"].numpy()}
        parameters_by_step.append(arrays["w"].numpy())
    return parameters_by_step


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_the_steps_match_flower(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From v = 0, as Flower's strategies start; its FedAdam also corrects the bias in eta."""
    theirs: dict[str, FedOpt] = {
        "adam": FedAdam(eta=0.05, beta_1=0.8, beta_2=0.95, tau=1e-2),
        "yogi": FedYogi(eta=0.05, beta_1=0.8, beta_2=0.95, tau=1e-2),
        "adagrad": FedAdagrad(eta=0.05, tau=1e-2),
    }
    expected = run_flower_path(theirs[kind], monkeypatch)
    rule = RULES[kind]
    assert isinstance(rule, AdaptiveOptimizer)
    parameters = {"w": START}
    state = AdaptiveState({"w": np.zeros((3, 2))}, {"w": np.zeros((3, 2))})
    for t, update in enumerate(UPDATES):
        eta = 0.05
        if kind == "adam":
            eta *= math.sqrt(1 - 0.95 ** (t + 1)) / (1 - 0.8 ** (t + 1))
        state, stepped = replace(rule, learning_rate=eta).step(state, parameters, {"w": update})
        parameters = {"w": stepped["w"]}
        np.testing.assert_allclose(stepped["w"], expected[t], rtol=1e-9)


@pytest.mark.parametrize("kind", RULES)
def test_a_step_is_pure_and_its_state_is_restored_from_arrays(kind: str) -> None:
    """The same arguments give the same step, and are not changed."""
    rule = RULES[kind]
    parameters, update = {"a.w": START.copy()}, {"a.w": UPDATES[0].copy()}
    state, _ = rule.step(rule.init(parameters), parameters, update)
    arrays = {name: array.copy() for name, array in to_arrays(state, "optimizer").items()}
    first = rule.step(state, parameters, update)[1]
    again = rule.step(from_arrays(rule.init(parameters), "optimizer", arrays), parameters, update)
    np.testing.assert_array_equal(first["a.w"], again[1]["a.w"])
    np.testing.assert_array_equal(parameters["a.w"], START)
    np.testing.assert_array_equal(update["a.w"], UPDATES[0])
    for name, array in to_arrays(state, "optimizer").items():
        np.testing.assert_array_equal(array, arrays[name])


def test_sgd_step() -> None:
    """x + eta * update, by name."""
    _, stepped = SGD(0.5).step(None, {"w": np.array([1.0, 2.0])}, {"w": np.array([2.0, -2.0])})
    assert stepped["w"].tolist() == [2.0, 1.0]


def test_momentum_zero_is_sgd() -> None:
    """The reduction holds from the first round, to the last bit."""
    np.testing.assert_array_equal(run_path(Momentum(0.3, 0.0)), run_path(SGD(0.3)))


def test_an_adaptive_step_is_about_eta_for_any_length_of_the_update() -> None:
    """In the first round, without momentum and with a negligible tau, it is eta exactly."""
    for scale in (1e-2, 1.0, 1e4):
        rule = Adagrad(0.1, tau=1e-12)
        _, stepped = rule.step(
            rule.init({"w": np.zeros(1)}), {"w": np.zeros(1)}, {"w": scale * np.ones(1)}
        )
        np.testing.assert_allclose(stepped["w"], 0.1, rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(0.0), "learning_rate must be a number > 0, got 0.0"),
        (lambda: Adam(0.0), "learning_rate must be a number > 0, got 0.0"),
        (lambda: Adam(beta1=1.0), "beta1 must be a number >= 0 and < 1, got 1.0"),
        (lambda: Yogi(beta2=1.0), "beta2 must be a number >= 0 and < 1, got 1.0"),
        (lambda: Adagrad(tau=0.0), "tau must be a number > 0, got 0.0"),
        (lambda: Momentum(momentum=1.0), "momentum must be a number >= 0 and < 1, got 1.0"),
    ],
)
def test_values_out_of_range(make: Callable[[], object], message: str) -> None:
    """The error has the parameter, the allowed values and the value given."""
    with pytest.raises(ParameterError, match=message):
        make()
