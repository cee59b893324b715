"""Sums have the same bits in any order and grouping, relative to their largest term."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.flower.codec import NamedArrays
from fedquorum.server.exact_sum import (
    MAX_TERM,
    MAX_VALUE,
    BinnedSum,
    ExactAccumulator,
    ExponentBins,
    compute_weighted_sum,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import sample_cases

finite = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(st.floats(0, 1), finite), max_size=20), finite)
def test_sum_of_weighted_updates(clients: list[tuple[float, float]], start: float) -> None:
    """sum_k a_k (x_k - x_t) / B in float64, also for float32 models.

    Relative to the largest term, down to terms of 1e-290: smaller ones lose accuracy.
    """
    model = {"w": np.array([start], dtype=np.float32)}
    models = [(c, {"w": np.array([x], dtype=np.float32)}) for c, x in clients]
    got = compute_weighted_sum(model, models, 4.0)
    terms = [c * (float(np.float32(x)) - float(np.float32(start))) for c, x in clients]
    assert got["w"].dtype == np.float64
    largest = max(map(abs, terms), default=0.0)
    tolerance = max(1e-12 * largest, 1e-290)
    assert got["w"][0] == pytest.approx(math.fsum(terms) / 4, rel=1e-12, abs=tolerance)


def test_a_number_without_dimensions_and_an_empty_array() -> None:
    """Arrays retain their shape."""
    model: NamedArrays = {"n": np.array(3), "w": np.zeros((2, 0), np.float32)}
    update = compute_weighted_sum(model, [(2.0, {"n": np.array(5), "w": model["w"]})])
    assert update["n"].shape == ()
    assert update["n"] == 4.0
    assert update["w"].shape == (2, 0)


def round_to_multiple(term: float, unit: Fraction) -> Fraction:
    """Return a term rounded to multiples of a unit, halves to even multiples."""
    return round(Fraction(term) / unit) * unit


def sum_top_bins(terms: Sequence[float]) -> float:
    """Return the sum of the terms' parts in the two highest bins, in exact arithmetic."""
    width, largest = ExponentBins.for_num_terms(len(terms)).width, max(map(abs, terms), default=0.0)
    if largest == 0:
        return 0.0
    bins = range(math.ceil(-1074 / width) + 1, 1100)
    index = next(i for i in bins if largest < Fraction(2) ** (width * (i + 1) - 1))
    high, low = Fraction(2) ** (width * index), Fraction(2) ** (width * (index - 1))
    parts = [round_to_multiple(term, high) for term in terms]
    rest = [
        round_to_multiple(float(Fraction(t) - part), low)
        for t, part in zip(terms, parts, strict=True)
    ]
    return float(Fraction(float(sum(parts))) + Fraction(float(sum(rest))))


@given(st.lists(st.floats(-(2.0**80), 2.0**80, allow_subnormal=False), min_size=1, max_size=40))
def test_the_sum_is_that_of_the_terms_parts_in_two_bins(terms: list[float]) -> None:
    """Bit for bit the exact sum of the parts, in any order."""
    model: NamedArrays = {"w": np.zeros(1)}
    for order in (terms, terms[::-1], sorted(terms), sorted(terms, key=abs)):
        total = ExactAccumulator(model, ExponentBins.for_num_terms(len(terms)))
        for term in order:
            total.add_model(1.0, {"w": np.array([term])})
        assert total.divide_by(1.0)["w"][0] == sum_top_bins(terms)


def test_terms_two_bins_below_the_largest_do_not_count_in_any_order() -> None:
    """Even if they come first, and together exceed a unit of the lower bin."""
    unit = 2.0 ** ExponentBins.for_num_terms(4).width
    terms = [0.4 * unit, 0.4 * unit, 0.4 * unit, unit**2]
    model: NamedArrays = {"w": np.zeros(1)}
    for order in (terms, terms[::-1]):
        update = compute_weighted_sum(model, [(1.0, {"w": np.array([term])}) for term in order])
        assert update["w"][0] == sum_top_bins(terms) == unit**2


def divide_clients(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Divide ``count`` clients among nodes at random."""
    nodes = rng.integers(1, count + 1)
    node_of = rng.integers(nodes, size=count)
    return [np.flatnonzero(node_of == node).tolist() for node in range(nodes)]


def check_groupings(rng: np.random.Generator) -> None:
    count, size = int(rng.integers(1, 60)), int(rng.integers(1, 6))
    spread = rng.uniform(0, 26)
    middle = rng.uniform(-36 + spread / 2, 16 - spread / 2)
    exponents = rng.uniform(middle - spread / 2, middle + spread / 2, (count, size))
    updates = rng.choice([-1.0, 1.0], (count, size)) * 10.0**exponents
    model: NamedArrays = {"w": np.zeros(size)}
    factors = 10.0 ** rng.uniform(-3, 0, count)
    sums = set()
    for _ in range(5):
        server = ExactAccumulator(model, ExponentBins.for_num_terms(count))
        for node in divide_clients(rng, count):
            if not node or rng.random() < 0.3:
                for k in node:
                    server.add_model(factors[k], {"w": updates[k]})
                continue
            total = ExactAccumulator(model, ExponentBins.for_num_terms(count))
            total.add_models(factors[node], {"w": updates[node]})
            server.merge(total.get_sums())
        sums.add(server.divide_by(3.0)["w"].tobytes())
    assert len(sums) == 1
    terms = factors[:, None] * updates
    exact = np.array([float(sum(map(Fraction, column))) for column in terms.T.tolist()]) / 3
    assert np.abs(np.frombuffer(sums.pop()) - exact).max() <= 4e-13 * np.abs(terms).max()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_terms_of_any_size_in_any_grouping(block: int) -> None:
    """Terms of 1e-36 to 1e16 in five groupings: no bit differs, and the sum is accurate.

    Factors come with the replies and the denominator after them, so nothing can be scaled before.
    """
    for case in sample_cases(range(1000), 100, seed=block):
        check_groupings(np.random.default_rng([block, case]))


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 60, 1000, 10**6])
def test_sums_within_a_bin_are_exact(terms: int) -> None:
    """The sums of n parts of the largest size are exact: below 2^53 multiples of their unit."""
    bins = ExponentBins.for_num_terms(terms)
    assert terms * 2 ** (bins.width - 1) <= 2**53
    for value in (1e-300, 1e-36, 0.3, 0.5, 1.0, 1e16, 1e280):
        index = bins.find_bin(value)
        unit = Fraction(2) ** (bins.width * index)
        assert value < unit * 2**bins.width / 2
        assert index == bins.lowest or value >= unit / 4
    assert bins.find_bin(5e-324) == bins.lowest
    assert math.isfinite(
        bins.compute_rounding_constant(bins.highest) + 2**53 * 2.0 ** (bins.width * bins.highest)
    )
    assert bins.compute_rounding_constant(bins.lowest - 1) >= 2.0**-1022


@pytest.mark.parametrize("size", [1e-280, 1e-36, 1e36, MAX_TERM / 8])
def test_the_smallest_and_the_largest_terms(size: float) -> None:
    """Terms with few bits are added exactly."""
    model: NamedArrays = {"w": np.zeros(2)}
    clients: list[tuple[float, NamedArrays]] = [
        (1.0, {"w": np.array([size, -size])}),
        (1.0, {"w": np.array([2 * size, 4 * size])}),
    ]
    assert compute_weighted_sum(model, clients)["w"].tolist() == [3 * size, 3 * size]


def test_sums_retain_their_relative_accuracy() -> None:
    """Tiny factors and tiny updates with a matching denominator give the weighted update."""
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(5, 100))
    weights = rng.uniform(1, 2, 5)
    right = weights @ updates / weights.sum()
    for scale, factor in ((1.0, 1e-25), (2e-13, 1.0), (1e-30, 1e-30), (1e15, 1e100)):
        clients: list[tuple[float, NamedArrays]] = [
            (factor * w, {"w": scale * update})
            for w, update in zip(weights.tolist(), updates, strict=True)
        ]
        got = compute_weighted_sum({"w": np.zeros(100)}, clients, factor * weights.sum())["w"]
        np.testing.assert_allclose(got, scale * right, rtol=0, atol=1e-12 * scale)


def test_each_array_has_separate_bins() -> None:
    """A large array does not reduce the accuracy of a small one."""
    model: NamedArrays = {"large": np.zeros(1), "small": np.zeros(1)}
    client: NamedArrays = {"large": np.array([1e15]), "small": np.array([1e-15])}
    update = compute_weighted_sum(model, [(1.0, client), (1.0, client)], 2.0)
    assert update["large"][0] == 1e15
    assert update["small"][0] == 1e-15


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 4 * MAX_TERM])
def test_an_overflowing_term_makes_the_sum_not_finite(bad: float) -> None:
    """The round then rejects the step."""
    model: NamedArrays = {"w": np.zeros(2), "v": np.zeros(1)}
    clients: list[tuple[float, NamedArrays]] = [
        (1.0, {"w": np.array([1.0, bad]), "v": np.ones(1)}),
        (1.0, {"w": np.ones(2), "v": np.ones(1)}),
    ]
    update = compute_weighted_sum(model, clients)
    assert not np.isfinite(update["w"]).any()


@pytest.mark.parametrize("start", [0.0, -MAX_VALUE, 1e30])
def test_with_a_safe_factor_every_usable_update_can_be_added(start: float) -> None:
    """The difference of two numbers stays within the bins, even for a diverged model."""
    model: NamedArrays = {"w": np.array([start])}
    total = ExactAccumulator(model, ExponentBins.for_num_terms(1))
    client: NamedArrays = {"w": np.array([MAX_VALUE])}
    assert total.can_add(total.max_safe_factor, client)
    total.add_model(total.max_safe_factor, client)
    step = total.divide_by(1.0)["w"][0]
    assert step == pytest.approx(total.max_safe_factor * (MAX_VALUE - start), rel=1e-12)


def test_a_larger_factor_is_added_if_its_terms_fit() -> None:
    """A client whose update is 0 may have any finite factor."""
    model: NamedArrays = {"w": np.array([1.0, 2.0]), "n": np.zeros(0)}
    total = ExactAccumulator(model, ExponentBins.for_num_terms(1))
    assert total.can_add(1e308, model)
    assert total.can_add(1e300, {**model, "w": np.array([1.0, 2.0 + 1e-12])})
    assert not total.can_add(1e300, {**model, "w": np.array([1.0, 2.1])})
    assert total.can_add(1e270, {**model, "w": np.array([1.0, 1e15])})
    assert not total.can_add(math.inf, model)


def test_sums_of_nodes_equal_the_sum_of_their_terms() -> None:
    """Merging a node's sums gives the same bits as its terms, whatever their bins."""
    model: NamedArrays = {"w": np.zeros(3)}
    sizes = (1e-30, 1.0, 1e-12, 1e20, 1e3, 1e-2)
    clients = [size * np.array([100.0, 1e-7 * (1 + size), -3.3]) for size in sizes]
    bins = ExponentBins.for_num_terms(len(clients))
    separate, in_sums = ExactAccumulator(model, bins), ExactAccumulator(model, bins)
    for update in clients:
        separate.add_model(7.0, {"w": update})
    indices = []
    for pair in (clients[:2], clients[2:4], clients[4:]):
        node = ExactAccumulator(model, bins)
        for update in pair:
            node.add_model(7.0, {"w": update})
        indices.append(node.get_sums()["w"].index)
        in_sums.merge(node.get_sums())
    assert len(set(indices)) > 1
    assert separate.divide_by(9.0)["w"].tobytes() == in_sums.divide_by(9.0)["w"].tobytes()


def test_merging_does_not_change_the_merged_sum() -> None:
    """A node's sum may be a view into its message, which is read-only."""
    total = ExactAccumulator({"w": np.zeros(1)}, ExponentBins.for_num_terms(2))
    sums = {"w": BinnedSum(0, np.ones(1), np.full(1, 2.0**-50))}
    for part in (sums["w"].high, sums["w"].low):
        part.flags.writeable = False
    total.merge(sums)
    total.merge(sums)
    assert total.divide_by(2.0)["w"][0] == 1.0 + 2.0**-50


def test_an_array_whose_terms_are_all_zero_takes_no_memory() -> None:
    """A frozen layer has no sum, and its update is 0."""
    model: NamedArrays = {"frozen": np.ones(2), "w": np.zeros(2)}
    total = ExactAccumulator(model, ExponentBins.for_num_terms(1))
    total.add_model(3.0, {"frozen": np.ones(2), "w": np.ones(2)})
    assert list(total.get_sums()) == ["w"]
    assert total.divide_by(3.0)["frozen"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_integers_and_booleans(dtype: type[np.generic]) -> None:
    """Their differences may be negative: unsigned integers do not wrap around."""
    model: NamedArrays = {"n": np.array([1, 0, 1], dtype=dtype)}
    client: NamedArrays = {"n": np.array([0, 1, 1], dtype=dtype)}
    assert compute_weighted_sum(model, [(1.0, client)])["n"].tolist() == [-1.0, 1.0, 0.0]
