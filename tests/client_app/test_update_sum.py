"""The weighted sum of updates, against NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app.update_sum import UpdateSum

CPU = torch.device("cpu")


def test_sum_of_weighted_differences() -> None:
    """sum_k a_k (x_k - x) of every array, in float64, over all that were added."""
    rng = np.random.default_rng(0)
    start: list[NDArray[Any]] = [rng.standard_normal((2, 3)).astype(np.float32), np.array(7)]
    models: list[NDArray[Any]] = [rng.standard_normal((5, 2, 3)).astype(np.float32), np.arange(5)]
    factors = [0.5, 0.0, 2.0, 1.5, 0.25]
    total = UpdateSum(start, CPU)
    for some in (slice(0, 2), slice(2, 5)):
        added = total.add([torch.from_numpy(m[some]) for m in models], factors[some])
        assert added == [True] * len(factors[some])
    for array, model, before in zip(total.arrays, models, start, strict=True):
        assert array.dtype == np.float64
        weights = np.reshape(factors, (5, *[1] * before.ndim))
        expected = (weights * (model.astype(np.float64) - before)).sum(axis=0)
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_updates_that_are_not_finite_are_left_out(bad: float) -> None:
    """One bad number of a client's keeps all of its update out, and nobody else's."""
    start = [np.zeros(2, np.float32), np.zeros(1, np.float32)]
    models = [torch.ones(3, 2), torch.ones(3, 1)]
    models[1][1, 0] = bad
    total = UpdateSum(start, CPU)
    assert total.add(models, [1.0, 2.0, 4.0]) == [True, False, True]
    assert [array.tolist() for array in total.arrays] == [[5.0, 5.0], [5.0]]
