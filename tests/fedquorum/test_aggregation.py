"""The weighted sum of updates."""

import numpy as np
import pytest
from fedquorum.aggregation import (
    as_float64,
    averaged,
    combined_update,
    inner_products,
    is_statistic,
    like,
)
from fedquorum.flower.codec import NamedArrays
from hypothesis import given
from hypothesis import strategies as st

finite = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(st.floats(0, 1), finite), max_size=20), finite)
def test_sum_of_weighted_updates(clients: list[tuple[float, float]], start: float) -> None:
    """sum_k c_k (x_k - x_t), in float64, also for float32 models."""
    model = {"w": np.array([start], dtype=np.float32)}
    got = combined_update(model, [(c, {"w": np.array([x], dtype=np.float32)}) for c, x in clients])
    expected = sum(c * (float(np.float32(x)) - float(np.float32(start))) for c, x in clients)
    assert got["w"].dtype == np.float64
    np.testing.assert_allclose(got["w"][0], expected, rtol=1e-12, atol=1e-9)


def test_dtypes_come_back() -> None:
    """The model keeps its dtypes; the arithmetic is float64 in between."""
    model: NamedArrays = {
        "w": np.ones(2, dtype=np.float32),
        "v": np.ones(2, dtype=np.float16),
        "n": np.ones((), dtype=np.int64),
    }
    back = like(as_float64(model), model)
    assert {name: array.dtype for name, array in back.items()} == {
        name: array.dtype for name, array in model.items()
    }


def test_counters_are_rounded_not_cut() -> None:
    """A whole-number buffer moves to the nearest whole number of its weighted mean."""
    model: NamedArrays = {"n": np.array(10, dtype=np.int64)}
    moved = like({"n": np.array(12.7)}, model)
    assert moved["n"] == 13
    assert moved["n"].dtype == np.int64


def test_inner_products_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """<Delta_i, Delta_j> over all floating arrays, however they are cut into blocks."""
    rng = np.random.default_rng(0)
    model: NamedArrays = {
        "a": rng.normal(size=(3, 5)),
        "b": rng.normal(size=7).astype(np.float32),
        "counter": np.array(4),
    }
    clients: list[NamedArrays] = [
        {
            "a": rng.normal(size=(3, 5)),
            "b": rng.normal(size=7).astype(np.float32),
            "counter": np.array(100),
        }
        for _ in range(4)
    ]
    updates = np.array(
        [
            np.concatenate([(own[n].astype(np.float64) - model[n]).reshape(-1) for n in ("a", "b")])
            for own in clients
        ]
    )
    whole = inner_products(model, clients)
    np.testing.assert_allclose(whole, updates @ updates.T, rtol=1e-12)
    monkeypatch.setattr("fedquorum.aggregation.BLOCK", 4)
    np.testing.assert_allclose(inner_products(model, clients), whole, rtol=1e-12)


def test_statistics_stay_between_the_clients_and_the_servers() -> None:
    """Counters and running variances are averaged, so that no weights make a variance negative."""
    whole, real = np.array(3), np.array([1.0])
    assert is_statistic("bn.num_batches_tracked", whole)
    assert is_statistic("layer.bn.running_var", real)
    assert not is_statistic("layer.bn.weight", real)
    server, clients = 1.0, np.array([0.01, 0.02])
    for weights in (np.array([5.0, 3.0]), np.array([0.1, 0.2])):
        update = np.array([float(weights @ (clients - server))])
        moved = averaged(np.array([server]), update, float(weights.sum()))
        assert 0.01 <= moved[0] <= 1.0
