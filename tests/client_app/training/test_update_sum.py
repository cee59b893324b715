"""The weighted sum of updates, against NumPy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from fedquorum.server.exact_sum import (
    BLOCK,
    UNSUMMABLE_REASON,
    ExactAccumulator,
    ExponentBins,
    NumPyBackend,
    SumBins,
)
from fedquorum.server.fixed_bins import OUTSIDE_PAIR_REASON, choose_fixed_bins
from numpy.typing import NDArray

from client_app.training.update_sum import PyTorch, UpdateSum

CPU = torch.device("cpu")


def make_bins(
    start: Mapping[str, NDArray[Any]], terms: int, factor: float, size: float = 1.0, *, fixed: bool
) -> SumBins:
    """Return the bins of a sum, fixed for updates of about this size or dynamic."""
    if fixed:
        return choose_fixed_bins(start, terms, factor, dict.fromkeys(start, size))
    return ExponentBins.for_num_terms(terms)


def test_sum_of_weighted_differences() -> None:
    """sum_k a_k (x_k - x) of every array, in float64, over all that were added."""
    rng = np.random.default_rng(0)
    start: dict[str, NDArray[Any]] = {
        "w": rng.standard_normal((2, 3)).astype(np.float32),
        "n": np.array(7),
    }
    models: list[NDArray[Any]] = [rng.standard_normal((5, 2, 3)).astype(np.float32), np.arange(5)]
    factors = [0.5, 0.0, 2.0, 1.5, 0.25]
    total = UpdateSum(start, CPU, ExponentBins.for_num_terms(5))
    for some in (slice(0, 2), slice(2, 5)):
        added = total.add([torch.from_numpy(m[some]) for m in models], factors[some])
        assert added == [None] * len(factors[some])
    sums = total.get_sums()
    for (name, before), model in zip(start.items(), models, strict=True):
        weights = np.reshape(factors, (5, *[1] * before.ndim))
        terms = weights * (model.astype(np.float64) - before)
        found = sums[name].high + sums[name].low
        assert sums[name].high.dtype == sums[name].low.dtype == np.float64
        assert found.shape == before.shape
        np.testing.assert_allclose(found, terms.sum(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (np.nan, "array 'b' holds NaN or Inf"),
        (np.inf, "array 'b' holds NaN or Inf"),
        (-np.inf, "array 'b' holds NaN or Inf"),
        (2e15, "array 'b' holds values up to 2e+15, not 1e+15"),
        (-2e15, "array 'b' holds values up to 2e+15, not 1e+15"),
    ],
)
def test_updates_that_cannot_be_used_are_left_out(bad: float, problem: str) -> None:
    """One invalid number excludes a client's whole update, and no other."""
    start = {"a": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
    models = [torch.ones(3, 2), torch.ones(3, 1)]
    models[1][1, 0] = bad
    total = UpdateSum(start, CPU, ExponentBins.for_num_terms(3))
    assert total.add(models, [1.0, 2.0, 4.0]) == [None, problem, None]
    assert [(one.high + one.low).tolist() for one in total.get_sums().values()] == [
        [5.0, 5.0],
        [5.0],
    ]


def test_a_node_of_which_no_update_can_be_used() -> None:
    """There is no sum of nothing."""
    total, problem = (
        UpdateSum({"a": np.zeros(1)}, CPU, ExponentBins.for_num_terms(2)),
        "array 'a' holds NaN or Inf",
    )
    assert total.add([torch.full((2, 1), torch.nan)], [1.0, 1.0]) == [problem, problem]
    assert total.get_sums() == {}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("size", [1e-30, 0.01, 30.0, 1e9])
def test_the_bits_are_those_of_the_server(size: float, fixed: bool) -> None:
    """A node's sum, in any groups, equals the server's sum of the single models."""
    rng = np.random.default_rng(1)
    start = {
        name: size * rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("a", (3, BLOCK // 2 + 7)), ("b", (5,)), ("c", ()))
    }
    models = [
        (x + size * rng.standard_normal((7, *x.shape))).astype(np.float32) for x in start.values()
    ]
    factors, bins = rng.uniform(0.5, 900, 7).tolist(), make_bins(start, 7, 900.0, size, fixed=fixed)
    single = ExactAccumulator(start, bins)
    for k in rng.permutation(7).tolist():
        single.add_model(factors[k], {n: m[k] for n, m in zip(start, models, strict=True)})
    whole = ExactAccumulator(start, bins)
    for group in ([4, 0], [1, 2, 3, 6], [5]):
        first, second = (UpdateSum(start, CPU, bins) for _ in range(2))
        for split, some in ((first, group[:1]), (second, group[1:])):
            if some:
                added = split.add(
                    [torch.from_numpy(m[some]) for m in models], [factors[k] for k in some]
                )
                assert added == [None] * len(some)
        first.merge(second)
        whole.merge(first.get_sums())
    expected, found = single.divide_by(3.0), whole.divide_by(3.0)
    for name in start:
        assert expected[name].tobytes() == found[name].tobytes()


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e-60, 1e60])
def test_pytorch_adds_the_same_bits_of_the_same_factors(scale: float, fixed: bool) -> None:
    """On a GPU the factors are float64 too, which no float32 holds."""
    rng = np.random.default_rng(3)
    start = {"a": rng.standard_normal((4, 3)).astype(np.float32), "n": np.array([True, False])}
    models = [
        torch.from_numpy(start["a"] + rng.standard_normal((3, 4, 3)).astype(np.float32)),
        torch.tensor([[False, False], [True, True], [True, False]]),
    ]
    factors, bins = [scale / 3, 0.1 * scale, 0.7 * scale], make_bins(start, 3, scale, fixed=fixed)
    found = []
    for library in (None, PyTorch(CPU)):
        total = UpdateSum(start, CPU, bins, library)
        assert total.add(models, factors) == [None] * 3
        found.append(total.get_sums())
    for name, one in found[0].items():
        other = found[1][name]
        assert (one.index, one.high.tobytes()) == (other.index, other.high.tobytes())
        assert one.low.tobytes() == other.low.tobytes()


@pytest.mark.parametrize("size", [1, 7, 40, 10**6])
def test_blocks_of_any_size_give_the_same_bits(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU adds larger blocks than a CPU."""
    rng = np.random.default_rng(4)
    start = {"a": rng.standard_normal((5, 3)).astype(np.float32), "b": np.zeros(40, np.float32)}
    models = [
        torch.from_numpy((x + 10.0 ** rng.integers(-9, 9, (6, *x.shape))).astype(np.float32))
        for x in start.values()
    ]
    factors, bins = rng.uniform(0.5, 900, 6).tolist(), ExponentBins.for_num_terms(6)
    expected = UpdateSum(start, CPU, bins)
    monkeypatch.setattr(PyTorch, "block", size)
    found = UpdateSum(start, CPU, bins, PyTorch(CPU))
    assert expected.add(models, factors) == found.add(models, factors) == [None] * 6
    for name, one in expected.get_sums().items():
        other = found.get_sums()[name]
        assert (one.index, one.high.tobytes()) == (other.index, other.high.tobytes())
        assert one.low.tobytes() == other.low.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [1.0, 50.0, 1 / 3])
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_parts_that_equal_their_terms_leave_the_lower_bin_unchanged(
    size: int, factor: float, dtype: type[np.floating[Any]]
) -> None:
    """The same bits as with a lower part of each term, also if only the last term has one."""

    class TwoParts(NumPyBackend):
        def is_rounded(self, terms: Any, parts: Any) -> bool:
            return False

    rng = np.random.default_rng(6)
    start = {"a": np.zeros(size, dtype)}
    changes = (rng.integers(-64, 64, (3, size)) / 1024).astype(dtype)
    changes[1, -1] = 2.0**-60
    models = torch.from_numpy(changes).T.contiguous().T  # the rows are not contiguous
    found = []
    for library in (NumPyBackend(), TwoParts()):
        total = UpdateSum(start, CPU, ExponentBins.for_num_terms(3), library)
        for k in range(3):
            assert total.add([models[k : k + 1]], [factor]) == [None]
        found.append(total.get_sums()["a"])
    assert found[0].index == found[1].index
    assert found[0].high.tobytes() == found[1].high.tobytes()
    assert found[0].low.tobytes() == found[1].low.tobytes()
    assert found[0].low[-1] != 0


def test_a_term_beyond_fixed_bins_is_left_out_by_its_node() -> None:
    """With its own reason; terms at the limit count."""
    bins = choose_fixed_bins(["w", "b"], 4, 1.0, {"w": 1.0, "b": 2.0**-20})
    limit = bins.for_array("b").max_term
    total = UpdateSum({"w": np.zeros(2), "b": np.zeros(1)}, CPU, bins)
    w = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], dtype=torch.float64)
    b = torch.tensor([[limit], [2 * limit], [-limit]], dtype=torch.float64)
    assert total.add([w, b], [1.0, 1.0, 1.0]) == [None, OUTSIDE_PAIR_REASON, None]
    assert total.add([w, b], [2.0, 0.5, 0.0]) == [OUTSIDE_PAIR_REASON, None, None]
    sums = total.get_sums()
    assert (sums["w"].high + sums["w"].low).tolist() == [6.0, 6.0]
    assert (sums["b"].high + sums["b"].low).tolist() == [limit]


def test_an_update_that_does_not_fit_is_left_out_by_its_node() -> None:
    """The node leaves it out as the server would, and adds the others."""
    total = UpdateSum({"w": np.zeros(3)}, CPU, ExponentBins.for_num_terms(4))
    models = torch.tensor([[1.0, 1.0, 1.0], [1e15, 0.0, 0.0]], dtype=torch.float64)
    assert total.add([models], [1.0, 1e280]) == [None, UNSUMMABLE_REASON]
    assert (total.get_sums()["w"].high + total.get_sums()["w"].low).tolist() == [1.0, 1.0, 1.0]


class Full(NumPyBackend):
    """Memory for several arrays."""

    def __init__(self, arrays: int) -> None:
        self.left = arrays

    def create_empty(self, size: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise MemoryError
        return super().create_empty(size)


def test_a_sum_without_memory_has_no_half_of_an_update() -> None:
    """The memory is taken before the first update, so that no retry adds a client twice."""
    start = {"a": np.zeros(2), "b": np.zeros(2)}
    for arrays in range(6):
        with pytest.raises(MemoryError):
            UpdateSum(start, CPU, ExponentBins.for_num_terms(2), Full(arrays))
    total = UpdateSum(start, CPU, ExponentBins.for_num_terms(2), Full(6))
    assert total.add([torch.ones(2, 2), torch.ones(2, 2)], [1.0, 1.0]) == [None, None]


def test_pytorch_adds_the_same_bits() -> None:
    """PyTorch on a GPU adds with the bits of NumPy on a CPU."""
    rng = np.random.default_rng(2)
    start = {"a": rng.standard_normal((40, 300)), "b": rng.standard_normal(5)}
    models = {name: x + 1e-3 * rng.standard_normal((9, *x.shape)) for name, x in start.items()}
    factors, bins, library = rng.uniform(0.5, 900, 9), ExponentBins.for_num_terms(9), PyTorch(CPU)
    by_numpy = ExactAccumulator(start, bins)
    by_numpy.add_models(factors, models)
    by_torch = ExactAccumulator({n: library.to_array(x) for n, x in start.items()}, bins, library)
    by_torch.add_models(
        library.to_array(factors), {n: library.to_array(m) for n, m in models.items()}
    )
    for name, one in by_numpy.get_sums().items():
        other = by_torch.get_sums()[name]
        assert one.index == other.index
        assert library.to_numpy(other.high).tobytes() == one.high.tobytes()
        assert library.to_numpy(other.low).tobytes() == one.low.tobytes()
    bad = torch.tensor([[1.0, -3.0], [torch.nan, 1.0], [0.0, torch.inf]])
    np.testing.assert_array_equal(library.compute_row_max(bad).numpy(), [3.0, np.nan, np.inf])
