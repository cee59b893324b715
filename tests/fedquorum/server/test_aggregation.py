"""The server's step, and inner products of updates."""

from typing import Any

import numpy as np
import pytest
from fedquorum.flower.codec import NamedArrays
from fedquorum.rules.server_optimizer import SGD, Adam, Momentum, ServerOptimizer
from fedquorum.server.aggregation import (
    Float64View,
    apply_server_step,
    average_buffer,
    cast_like,
    compute_inner_products,
    compute_update_norm,
    is_buffer,
)
from fedquorum.server.exact_sum import compute_weighted_sum


def test_the_model_retains_its_dtypes() -> None:
    """The arithmetic in between is float64."""
    model: NamedArrays = {
        "w": np.ones(2, dtype=np.float32),
        "v": np.ones(2, dtype=np.float16),
        "n": np.ones((), dtype=np.int64),
    }
    back = cast_like(Float64View(model), model)
    assert {name: array.dtype for name, array in back.items()} == {
        name: array.dtype for name, array in model.items()
    }


def test_counters_are_rounded_not_truncated() -> None:
    """An integer buffer becomes the whole number nearest to its weighted mean."""
    model: NamedArrays = {"n": np.array(10, dtype=np.int64)}
    rounded = cast_like({"n": np.array(12.7)}, model)
    assert rounded["n"] == 13
    assert rounded["n"].dtype == np.int64


def test_booleans_are_rounded() -> None:
    """A mask follows the majority of the weight, not any single client."""
    rounded = cast_like(
        {"mask": np.array([0.1, 0.9, 1e-9])}, {"mask": np.array([False, True, False])}
    )
    assert rounded["mask"].tolist() == [False, True, False]
    assert rounded["mask"].dtype == np.bool_


def test_inner_products_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """<Delta_i, Delta_j> over all floating arrays, statistics too, in blocks of any size."""
    rng = np.random.default_rng(0)
    model: NamedArrays = {
        "a": rng.normal(size=(3, 5)),
        "bn.running_var": rng.normal(size=7).astype(np.float32),
        "counter": np.array(4),
    }
    clients: list[NamedArrays] = [
        {
            "a": rng.normal(size=(3, 5)),
            "bn.running_var": rng.normal(size=7).astype(np.float32),
            "counter": np.array(100),
        }
        for _ in range(4)
    ]
    updates = np.array(
        [
            np.concatenate(
                [
                    (arrays[n].astype(np.float64) - model[n]).reshape(-1)
                    for n in ("a", "bn.running_var")
                ]
            )
            for arrays in clients
        ]
    )
    whole = compute_inner_products(model, clients)
    np.testing.assert_allclose(whole, updates @ updates.T, rtol=1e-12)
    monkeypatch.setattr("fedquorum.server.aggregation.BLOCK_LENGTH", 4)
    np.testing.assert_allclose(compute_inner_products(model, clients), whole, rtol=1e-12)


def test_statistics_stay_between_the_clients_and_the_servers() -> None:
    """Counters and running variances are averaged, so that no weights make a variance negative."""
    whole, real = np.array(3), np.array([1.0])
    assert is_buffer("bn.num_batches_tracked", whole)
    assert is_buffer("layer.bn.running_var", real)
    assert is_buffer("bn.num_batches_tracked", real)
    assert not is_buffer("layer.bn.weight", real)
    server, clients = 1.0, np.array([0.01, 0.02])
    for weights in (np.array([5.0, 3.0]), np.array([0.1, 0.2])):
        update = np.array([float(weights @ (clients - server))])
        averaged = average_buffer(np.array([server]), update, float(weights.sum()))
        assert 0.01 <= averaged[0] <= 1.0


STATISTICS: NamedArrays = {
    "bn.weight": np.ones(3, np.float32),
    "bn.running_mean": np.zeros(3, np.float32),
    "bn.running_var": np.ones(3, np.float32),
    "bn.num_batches_tracked": np.array(7),
}


@pytest.mark.parametrize("optimizer", [SGD(5.0), Momentum(3.0), Adam(2.0)])
@pytest.mark.parametrize("weights", [[0.2, 0.7], [40.0, 5.0], [1e120, 1e100], [1e-30, 1e-20]])
def test_no_step_takes_statistics_out_of_the_range(
    optimizer: ServerOptimizer[Any], weights: list[float]
) -> None:
    """Weights above 1, learning rates above 1 and momentum affect trained arrays alone."""
    rng = np.random.default_rng(0)
    model, state = STATISTICS, None
    for _ in range(12):
        clients: list[NamedArrays] = [
            {
                "bn.weight": rng.normal(size=3).astype(np.float32),
                "bn.running_mean": rng.normal(size=3).astype(np.float32),
                "bn.running_var": rng.lognormal(-3.0, 3.0, size=3).astype(np.float32),
                "bn.num_batches_tracked": np.array(int(rng.integers(0, 1000))),
            }
            for _ in weights
        ]
        update = compute_weighted_sum(model, zip(weights, clients, strict=True))
        state, stepped = apply_server_step(optimizer, state, model, update, sum(weights))
        if stepped is None:  # trained arrays may leave the finite numbers
            break
        for name in ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked"):
            sent = np.stack([model[name], *(client[name] for client in clients)]).astype(np.float64)
            slack = 1e-6 * np.abs(sent).max()
            assert (stepped[name] >= sent.min(axis=0) - slack).all()
            assert (stepped[name] <= sent.max(axis=0) + slack).all()
        assert stepped["bn.running_var"].min() >= 0.0
        model = stepped


def test_neither_rounding_nor_noise_makes_a_variance_negative() -> None:
    """A mean may be negative, and a variance that already was may stay negative."""
    stepped = apply_server_step(
        SGD(),
        None,
        STATISTICS,
        {
            "bn.weight": np.zeros(3),
            "bn.running_mean": np.array([-1.0, 0.0, 1.0]),
            "bn.running_var": np.array([-1.0 - 1e-12, -5.0, 0.5]),
            "bn.num_batches_tracked": np.array(0.0),
        },
        1.0,
    )[1]
    assert stepped is not None
    assert stepped["bn.running_mean"].tolist() == [-1.0, 0.0, 1.0]
    assert stepped["bn.running_var"].tolist() == [0.0, 0.0, 1.5]
    wrong = {**STATISTICS, "bn.running_var": np.full(3, -2.0, np.float32)}
    still = apply_server_step(
        SGD(), None, wrong, {k: np.zeros(a.shape) for k, a in wrong.items()}, 1.0
    )
    assert still[1] is not None
    assert still[1]["bn.running_var"].tolist() == [-2.0] * 3


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1.0, 1e200, 1e307])
def test_the_norm_of_an_update_of_any_size(size: float) -> None:
    """Its squares may overflow; integer arrays do not count."""
    model = {"w": np.zeros(2), "v": np.zeros(1), "n": np.zeros(1, np.int64), "e": np.zeros(0)}
    update = {"w": size * np.array([2.0, -3.0]), "v": np.array([6 * size])}
    whole = {"n": np.array([1e300]), "e": np.zeros(0)}
    assert compute_update_norm(model, update | whole) == pytest.approx(7 * size, rel=1e-12)
    assert compute_update_norm(model, {"w": np.zeros(2), "v": np.zeros(1)} | whole) == 0.0
    assert compute_update_norm(model, update | {"v": np.array([np.inf])} | whole) == np.inf
