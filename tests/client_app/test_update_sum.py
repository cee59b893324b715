"""The weighted sum of updates, against NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.summation import SPACING, Grid, UpdateTotal
from numpy.typing import NDArray

from client_app.update_sum import UpdateSum

CPU = torch.device("cpu")


def test_sum_of_weighted_differences() -> None:
    """sum_k a_k (x_k - x) of every array, in float64, over all that were added."""
    rng = np.random.default_rng(0)
    start: list[NDArray[Any]] = [rng.standard_normal((2, 3)).astype(np.float32), np.array(7)]
    models: list[NDArray[Any]] = [rng.standard_normal((5, 2, 3)).astype(np.float32), np.arange(5)]
    factors = [0.5, 0.0, 2.0, 1.5, 0.25]
    total = UpdateSum(start, CPU, Grid.of(5))
    for some in (slice(0, 2), slice(2, 5)):
        added = total.add([torch.from_numpy(m[some]) for m in models], factors[some])
        assert added == [True] * len(factors[some])
    sums = total.named(["w", "n"])
    for (name, array), model, before in zip(sums.fine.items(), models, start, strict=True):
        assert array.dtype == np.float64
        assert name not in sums.coarse
        weights = np.reshape(factors, (5, *[1] * before.ndim))
        expected = (weights * (model.astype(np.float64) - before)).sum(axis=0)
        np.testing.assert_allclose(array, expected, rtol=0, atol=5 * SPACING / 2 + 1e-14)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_updates_that_are_not_finite_are_left_out(bad: float) -> None:
    """One bad number of a client's keeps all of its update out, and nobody else's."""
    start = [np.zeros(2, np.float32), np.zeros(1, np.float32)]
    models = [torch.ones(3, 2), torch.ones(3, 1)]
    models[1][1, 0] = bad
    total = UpdateSum(start, CPU, Grid.of(3))
    assert total.add(models, [1.0, 2.0, 4.0]) == [True, False, True]
    assert [array.tolist() for array in total.named(["a", "b"]).fine.values()] == [
        [5.0, 5.0],
        [5.0],
    ]


@pytest.mark.parametrize("size", [0.01, 30.0, 1e9])
def test_the_bits_are_those_of_the_server(size: float) -> None:
    """A node's sum, in any groups, is what the server makes of the single models."""
    rng = np.random.default_rng(1)
    shapes = [(3, 70000), (5,), ()]
    start = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    models = [(x + size * rng.standard_normal((7, *x.shape))).astype(np.float32) for x in start]
    factors, grid, names = rng.uniform(0.5, 900, 7).tolist(), Grid.of(7), ["a", "b", "c"]
    single = UpdateTotal(dict(zip(names, start, strict=True)), grid)
    for k in rng.permutation(7).tolist():
        single.add_model(factors[k], {n: m[k] for n, m in zip(names, models, strict=True)})
    whole = UpdateTotal(dict(zip(names, start, strict=True)), grid)
    for group in ([4, 0], [1, 2, 3, 6], [5]):
        first, second = (UpdateSum(start, CPU, grid) for _ in range(2))
        for part, some in ((first, group[:1]), (second, group[1:])):
            if some:
                added = part.add(
                    [torch.from_numpy(m[some]) for m in models], [factors[k] for k in some]
                )
                assert added == [True] * len(some)
        first.merge(second)
        sums = first.named(names)
        assert bool(sums.coarse) is (size >= 1)
        whole.add_sums(sums)
    for name in names:
        expected, found = single.over(3.0)[name], whole.over(3.0)[name]
        assert expected.tobytes() == found.tobytes()


def test_what_the_grid_does_not_hold_is_left_out() -> None:
    """A finite update beyond the limit is refused like one that is not finite."""
    grid = Grid.of(2)
    total = UpdateSum([np.zeros(1)], CPU, grid)
    models = torch.tensor([[grid.limit], [grid.limit]], dtype=torch.float64)
    assert total.add([models], [1.0, 1.5]) == [True, False]
