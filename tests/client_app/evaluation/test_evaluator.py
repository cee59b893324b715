"""Test metrics of many clients, computed once."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app.data import ClientData
from client_app.data.base import Split, select_split
from client_app.evaluation.evaluator import CachedEvaluator, _is_same_model
from client_app.evaluation.passes import evaluate_clients
from client_app.models import CNN, LogisticRegression
from client_app.training.local_sgd import load_arrays
from tests.client_app.clients import copy_arrays, make_cached_evaluator, make_ragged_data

FEATURES, CLASSES = 5, 3
DATA = make_ragged_data([6, 1, 9, 4], (FEATURES,), CLASSES)
PARTS: tuple[Split, ...] = ("train", "test")


class Spy(LogisticRegression):
    """A model that records the number of rows of each pass."""

    def __init__(self) -> None:
        super().__init__((FEATURES,), CLASSES)
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.rows.append(len(x))
        return super().forward(x)


def make_random_arrays(seed: int) -> list[NDArray[Any]]:
    rng = np.random.default_rng(seed)
    shapes = ((CLASSES, FEATURES), (CLASSES,))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def make_spied_evaluator(data: dict[int, ClientData] = DATA) -> tuple[CachedEvaluator, Spy]:
    model = Spy()
    return make_cached_evaluator(data, model, metric="f1"), model


@pytest.mark.parametrize("split", PARTS)
def test_equal_to_one_by_one(split: Split) -> None:
    """Together or alone, each client's metrics equal those of its rows."""
    arrays = make_random_arrays(0)
    batched, model = make_spied_evaluator()
    batched.prepare(arrays, split, DATA)
    separate, _ = make_spied_evaluator()
    for client, client_data in DATA.items():
        x, y = (torch.from_numpy(a) for a in select_split(client_data, split))
        name = "f1" if split == "test" else "loss"
        (expected,) = evaluate_clients(model, x, y, [len(y)], metric_name=name)
        for found in (batched, separate):
            evaluate = found.evaluate(arrays, split, client)
            assert evaluate.num_examples == found.count(split, client) == len(y)
            assert (evaluate.loss, evaluate.accuracy, evaluate.metric) == pytest.approx(
                (expected.loss, expected.accuracy, expected.metric), rel=1e-6, nan_ok=True
            )
            assert np.isnan(evaluate.metric) == (split == "train")


def test_nothing_is_computed_twice() -> None:
    """The metrics of a model are cached for each split and client."""
    measurements, model = make_spied_evaluator()
    arrays = make_random_arrays(0)
    measurements.prepare(arrays, "train", [0, 2])
    assert model.rows == [6, 9]
    measurements.evaluate(arrays, "train", 2)
    measurements.prepare(arrays, "train", [2, 0])
    assert model.rows == [6, 9]
    measurements.prepare(arrays, "train", [0, 1, 2, 3])
    assert model.rows == [6, 9, 1, 4]
    measurements.prepare(arrays, "test", [0, 1])
    measurements.evaluate(arrays, "test", 1)
    assert model.rows == [6, 9, 1, 4, 3, 3]
    measurements.prepare(arrays, "train", [])
    copies = [array.copy() for array in arrays]
    measurements.evaluate(copies, "train", 3)
    measurements.evaluate(copies, "test", 0)
    assert model.rows == [6, 9, 1, 4, 3, 3]


def test_a_diverged_model_is_evaluated_once() -> None:
    """NaN equal themselves; a number in place of a NaN makes another model."""
    measurements, model = make_spied_evaluator()
    arrays = make_random_arrays(0)
    arrays[0].flat[0] = np.nan
    found = measurements.evaluate(arrays, "train", 0)
    assert np.isnan(found.loss)
    copies = [array.copy() for array in arrays]
    measurements.evaluate(copies, "train", 0)
    measurements.prepare([array.copy() for array in arrays], "train", [0])
    assert model.rows == [6]
    copies[0] = np.nan_to_num(copies[0])
    assert measurements.evaluate(copies, "train", 0) != found
    assert model.rows == [6, 6]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_arrays_are_compared_bit_by_bit(dtype: str, shape: tuple[int, ...]) -> None:
    """Of every type and shape, also where they do not lie in one piece; -0 is not 0."""
    one = np.zeros(shape, dtype)
    stored = one.copy()
    turned = np.zeros(shape[::-1], dtype).T
    assert _is_same_model([one], [stored])
    assert _is_same_model([one], [turned])
    assert not _is_same_model([one], [one[None]])
    assert not _is_same_model([one], [np.zeros(shape, "f4" if dtype == "f8" else "f8")])
    if one.size:
        stored[...] = -stored if one.dtype.kind in "fc" else 1
        assert not _is_same_model([one], [stored])


@pytest.mark.parametrize("position", [0, 1])
def test_another_model_is_evaluated_again(position: int) -> None:
    """One different number makes another model, and clears the cache."""
    measurements, model = make_spied_evaluator()
    first = make_random_arrays(0)
    second = [array.copy() for array in first]
    second[position].flat[-1] += 1
    before = measurements.evaluate(first, "train", 0)
    measurements.evaluate(first, "test", 0)
    after = measurements.evaluate(second, "train", 0)
    assert before.loss != after.loss
    assert measurements.evaluate(first, "train", 0) == before
    assert model.rows == [6, 3, 6, 6]


def test_the_arrays_are_not_those_of_the_model() -> None:
    """Changes of the shared model in between do not change the metrics."""
    measurements, model = make_spied_evaluator()
    arrays = make_random_arrays(0)
    before = measurements.evaluate(arrays, "train", 0)
    load_arrays(make_random_arrays(1), model)
    model.train()
    measurements.evaluate(arrays, "test", 0)
    again, _ = make_spied_evaluator()
    assert measurements.evaluate(arrays, "train", 0) == before
    assert measurements.evaluate(arrays, "test", 0) == again.evaluate(arrays, "test", 0)


def test_rows_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client is evaluated separately, in passes of at most ``rows_at_once`` rows."""
    measurements, model = make_spied_evaluator()
    monkeypatch.setattr(measurements, "_rows_at_once", 5)
    measurements.prepare(make_random_arrays(0), "train", DATA)
    assert model.rows == [5, 1, 1, 5, 4, 4]


def test_clients_without_samples() -> None:
    """Clients without samples have no metrics, and do not change those of others."""
    none = np.zeros((0, FEATURES), np.float32), np.zeros(0, np.int64)
    measurements, _ = make_spied_evaluator({0: DATA[0], 1: ClientData(*none, *none), 2: DATA[2]})
    expected, _ = make_spied_evaluator()
    arrays = make_random_arrays(0)
    measurements.prepare(arrays, "test", [0, 1, 2])
    assert measurements.evaluate(arrays, "test", 1).num_examples == 0
    assert np.isnan(measurements.evaluate(arrays, "test", 1).loss)
    for client in (0, 2):
        found, separate = (one.evaluate(arrays, "test", client) for one in (measurements, expected))
        assert found.loss == pytest.approx(separate.loss, rel=1e-6)


def test_put_gives_all_arrays() -> None:
    """Parameters and buffers in the order of the state, copied; others are refused."""
    torch.manual_seed(0)
    source, model = CNN((1, 16, 16), CLASSES), CNN((1, 16, 16), CLASSES)
    source(torch.rand(4, 1, 16, 16))
    arrays = copy_arrays(source)
    load_arrays(arrays, model)
    for tensor, expected in zip(copy_arrays(model), arrays, strict=True):
        np.testing.assert_array_equal(tensor, expected)
    model(torch.rand(4, 1, 16, 16))
    np.testing.assert_array_equal(arrays[0], copy_arrays(source)[0])
    with pytest.raises(ValueError, match="zip"):
        load_arrays(arrays[:-1], model)
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_arrays([np.zeros((1, 1), np.float32), *arrays[1:]], model)
