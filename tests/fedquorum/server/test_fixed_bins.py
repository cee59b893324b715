"""Sums in fixed bins are whole numbers modulo 2^64, and the same float64 sums."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.flower.codec import NamedArrays
from fedquorum.server.exact_sum import (
    MAX_TERM,
    MAX_VALUE,
    ExactAccumulator,
    ExponentBins,
    compute_bin_width,
)
from fedquorum.server.fixed_bins import (
    MAX_SUM,
    FixedBins,
    Integers,
    choose_fixed_bins,
    compute_update_sizes,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import limit_examples
from tests.reference import fixed_bins as reference

SHAPES = {"w": (2, 3), "n": (), "b": (4,), "none": (2, 0)}
MODEL: NamedArrays = {name: np.zeros(shape) for name, shape in SHAPES.items()}


def sum_terms(bins: FixedBins, factors: list[float], models: list[NamedArrays]) -> ExactAccumulator:
    """Return the sum of some clients' terms."""
    total = ExactAccumulator(MODEL, bins)
    for factor, model in zip(factors, models, strict=True):
        assert total.can_add(factor, model)
        total.add_model(factor, model)
    return total


def draw_models(rng: np.random.Generator, count: int) -> list[NamedArrays]:
    """Return models with numbers of 1e-14 to 1e3."""
    return [
        {
            name: np.asarray(
                rng.choice([-1.0, 0.0, 1.0], shape) * 10.0 ** rng.uniform(-14, 3, shape)
            )
            for name, shape in SHAPES.items()
        }
        for _ in range(count)
    ]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 40))
@limit_examples(60)
def test_the_sum_of_integers_is_the_sum_in_floats(seed: int, count: int) -> None:
    """Bit for bit, for any order and grouping of the clients and any masks that cancel.

    A reference in whole numbers and fractions gives the same integers and the same numbers.
    """
    rng = np.random.default_rng(seed)
    factors, models = (10.0 ** rng.uniform(-3, 3, count)).tolist(), draw_models(rng, count)
    terms = [{k: f * x for k, x in m.items()} for f, m in zip(factors, models, strict=True)]
    sizes = {name: 10.0 ** rng.uniform(-1, 3) for name in ("w", "b")}
    bins = choose_fixed_bins(SHAPES, count, max(factors), sizes)
    right = sum_terms(bins, factors, models).divide_by(3.0)
    order = rng.permutation(count)
    total: Integers = np.zeros((2, 11), np.uint64)
    masks = rng.integers(0, 2**64, (count, 2, 11), np.uint64)
    cuts = np.sort(rng.integers(0, count + 1, 3))
    for group in np.split(order, cuts):
        node = sum_terms(bins, [factors[k] for k in group], [models[k] for k in group])
        masked = bins.to_integers(node.get_sums())
        for k in group:
            masked = masked + masks[k] - masks[(k + 1) % count]
        total += masked
    server = ExactAccumulator(MODEL, bins)
    server.merge(bins.from_integers(total, SHAPES))
    got = server.divide_by(3.0)
    assert {name: array.tobytes() for name, array in got.items()} == {
        name: array.tobytes() for name, array in right.items()
    }
    flat = np.concatenate([right[name].reshape(-1) for name in SHAPES]).tolist()
    owner = [name for name, shape in SHAPES.items() for _ in range(math.prod(shape))]
    columns = zip(
        *(np.concatenate([t[name].reshape(-1) for name in SHAPES]).tolist() for t in terms),
        strict=True,
    )
    width = reference.compute_width(count)
    exponents = {
        name: reference.choose_exponent(count, max(factors), sizes.get(name), 2 * MAX_VALUE)
        for name in SHAPES
    }
    for i, column in enumerate(columns):
        exponent = exponents[owner[i]]
        parts = reference.sum_modulo(column, exponent, width)
        assert total[:, i].tolist() == list(parts)
        assert reference.to_number(parts, exponent, width) / 3.0 == flat[i]


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 7, 8, 60, 1000, 10**6, 2**40])
def test_a_sum_of_the_largest_terms_fits(terms: int) -> None:
    """A part is at most 2^51 units of its bin, and n of them are fewer than 2^53."""
    width = compute_bin_width(terms)
    assert width == reference.compute_width(terms)
    for exponent in (-30, 0, 8):
        pair = FixedBins(width, {"w": exponent}).for_array("w")
        high, low = reference.split_term(pair.max_term, exponent, width)
        assert (high, low) == (2 ** (width - 1), 0)
        just_below = math.nextafter(2.0**exponent / 2, 0.0)
        assert abs(reference.split_term(just_below, exponent, width)[1]) <= 2 ** (width - 1)
        assert 2 ** (width - 1) <= 2**51
        assert terms * 2 ** (width - 1) < MAX_SUM
        assert pair.compute_max_sum(0) == MAX_SUM * 2.0**exponent


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 40])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_terms_of_all_clients(count: int, sign: float) -> None:
    """Their sum is exact, and so is that of the largest low parts."""
    bins = choose_fixed_bins(["w"], count, 1.0, {}, 1.0)
    pair = bins.for_array("w")
    half = pair.max_term * 2.0**-bins.width
    total = ExactAccumulator({"w": np.zeros(2)}, bins)
    client = {"w": sign * np.array([pair.max_term, half])}
    for _ in range(count):
        assert total.can_add(1.0, client)
        total.add_model(1.0, client)
    integers = bins.to_integers(total.get_sums()).view(np.int64)
    assert integers[0].tolist() == [sign * count * 2 ** (bins.width - 1), 0]
    assert integers[1].tolist() == [0, sign * count * 2 ** (bins.width - 1)]
    assert total.divide_by(1.0)["w"].tolist() == [
        sign * count * pair.max_term,
        sign * count * half,
    ]


def test_a_term_beyond_the_pair_cannot_be_added() -> None:
    """The next float64 number after the largest term, in any array; the sum is not finite then."""
    bins = choose_fixed_bins(["w", "b"], 5, 1.0, {"b": 2.0**-30})
    limit = bins.for_array("b").max_term
    assert limit == 2.0**-10
    model: NamedArrays = {"w": np.zeros(1), "b": np.zeros(2)}
    for factor in (1.0, 0.25):
        total = ExactAccumulator(model, bins)
        fits: NamedArrays = {"w": np.ones(1), "b": np.array([0.0, -limit / factor])}
        beyond: NamedArrays = {**fits, "b": np.array([math.nextafter(limit, 1.0) / factor, 0.0])}
        assert total.can_add(factor, fits)
        assert not total.can_add(factor, beyond)
        total.add_model(factor, beyond)
        assert np.isnan(total.divide_by(1.0)["w"]).all()


def test_both_parts_always_exist() -> None:
    """They do not tell which arrays changed, or by how much."""
    bins = choose_fixed_bins(SHAPES, 3, 1.0, {})
    nothing = ExactAccumulator(MODEL, bins)
    assert not bins.to_integers(nothing.get_sums()).any()
    assert nothing.get_sums().keys() == SHAPES.keys()
    tiny = sum_terms(bins, [1.0], [{k: x + 1e-30 for k, x in MODEL.items()}])
    for sums in (nothing.get_sums(), tiny.get_sums()):
        assert [(one.index, one.high.shape) for one in sums.values()] == [
            (0, shape) for shape in SHAPES.values()
        ]


def test_a_mask_that_stayed_is_no_sum() -> None:
    """A number of 2^53 units or more cannot come from the clients; its sign does not matter."""
    bins = choose_fixed_bins(["w"], 3, 1.0, {})
    shapes = {"w": (1,)}
    for number in (MAX_SUM, 2**63, 2**64 - MAX_SUM):
        for index in (0, 1):
            integers = np.zeros((2, 1), np.uint64)
            integers[index] = number
            with pytest.raises(ArithmeticError, match="2\\^53 or more"):
                bins.from_integers(integers, shapes)
    largest = np.array([[MAX_SUM - 1], [2**64 - MAX_SUM + 1]], np.uint64)
    assert bins.to_integers(bins.from_integers(largest, shapes)).tolist() == largest.tolist()


@given(
    st.integers(1, 10**6),
    st.floats(1e-300, 1e300),
    st.one_of(st.none(), st.floats(5e-324, 1e300)),
    st.floats(1e-30, 2e15),
)
def test_the_choice_of_bins(
    terms: int, factor: float, size: float | None, max_update: float
) -> None:
    """As the reference chooses, within the limits of float64."""
    sizes = {} if size is None else {"w": size}
    bins = choose_fixed_bins(["w"], terms, factor, sizes, max_update)
    width = reference.compute_width(terms)
    right = reference.choose_exponent(terms, factor, size, max_update)
    assert bins.width == width
    assert bins.exponents["w"] == min(max(right, width - 1074), 961 - width)
    pair = bins.for_array("w")
    assert pair.max_term <= MAX_TERM
    assert math.isfinite(pair.compute_rounding_constant(0) + pair.compute_max_sum(0))
    assert pair.compute_rounding_constant(-1) >= 2.0**-1022
    part = FixedBins(width, {"w": pair.exponent})
    integers = np.array([[1 - MAX_SUM], [MAX_SUM - 1]], np.int64).view(np.uint64)
    back = part.from_integers(integers, {"w": (1,)})
    assert np.isfinite(back["w"].high).all()
    assert part.to_integers(back).tolist() == integers.tolist()


def test_in_round_1_every_usable_update_fits() -> None:
    """An array without a size in the last sum gets the widest pair, and so does a factor of 0."""
    for factor in (1e-9, 1.0, 600.0, 50.3):
        bins = choose_fixed_bins(["w"], 1000, factor, {"w": 0.0})
        model: NamedArrays = {"w": np.array([-MAX_VALUE])}
        assert ExactAccumulator(model, bins).can_add(factor, {"w": np.array([MAX_VALUE])})
        low_unit = 2.0 ** bins.for_array("w").get_exponent(-1)
        assert low_unit <= 2.0**-34 * factor
    assert choose_fixed_bins(["w"], 9, 0.0, {}) == choose_fixed_bins(["w"], 9, 1.0, {})


def test_the_sizes_of_a_sum() -> None:
    """max |sum| / (the largest factor), whatever the denominator; the next pair reaches 2^20 on."""
    update = {"w": np.array([[0.5, -2.0]]), "zero": np.zeros(2), "none": np.zeros(0)}
    sizes = compute_update_sizes(update, 12.0, 3.0)
    assert sizes == {"w": 8.0, "zero": 0.0, "none": 0.0}
    bins = choose_fixed_bins(update, 4, 3.0, sizes)
    assert bins.for_array("w").max_term == 4.0 * 8.0 * 2.0**20
    assert bins.exponents["zero"] == bins.exponents["none"] > bins.exponents["w"]


def test_fixed_and_dynamic_sums_agree() -> None:
    """Up to the resolution of the low part: 2^-(2 width - 1) of the largest allowed term."""
    rng = np.random.default_rng(5)
    factors, models = rng.uniform(1, 2, 30).tolist(), draw_models(rng, 30)
    dynamic = ExactAccumulator(MODEL, ExponentBins.for_num_terms(30))
    for factor, model in zip(factors, models, strict=True):
        dynamic.add_model(factor, model)
    bins = choose_fixed_bins(SHAPES, 30, max(factors), {})
    fixed = sum_terms(bins, factors, models).divide_by(1.0)
    for name, right in dynamic.divide_by(1.0).items():
        resolution = 30 * Fraction(2) ** (bins.for_array(name).get_exponent(-1) - 1)
        np.testing.assert_allclose(fixed[name], right, rtol=1e-15, atol=float(resolution))
