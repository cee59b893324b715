"""Sums that are the same bits in any order and grouping."""

import math
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.flower.codec import NamedArrays
from fedquorum.summation import (
    SPACING,
    Grid,
    UpdateSums,
    UpdateTotal,
    combined_update,
    fits,
    split,
)
from hypothesis import given
from hypothesis import strategies as st

finite = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(st.floats(0, 1), finite), max_size=20), finite)
def test_sum_of_weighted_updates(clients: list[tuple[float, float]], start: float) -> None:
    """sum_k a_k (x_k - x_t) / B in float64, also for float32 models, to the grid's spacing."""
    model = {"w": np.array([start], dtype=np.float32)}
    models = [(c, {"w": np.array([x], dtype=np.float32)}) for c, x in clients]
    got = combined_update(model, models, 4.0)
    expected = sum(c * (float(np.float32(x)) - float(np.float32(start))) for c, x in clients) / 4
    assert got["w"].dtype == np.float64
    bound = len(clients) * SPACING / 2 / 4
    np.testing.assert_allclose(got["w"][0], expected, rtol=1e-12, atol=bound)


def test_a_number_without_dimensions_and_an_empty_array() -> None:
    """Arrays of any shape come back in it."""
    model: NamedArrays = {"n": np.array(3), "w": np.zeros((2, 0), np.float32)}
    update = combined_update(model, [(2.0, {"n": np.array(5), "w": model["w"]})])
    assert update["n"].shape == ()
    assert update["n"] == 4.0
    assert update["w"].shape == (2, 0)


@given(
    st.lists(st.floats(-(2.0**30), 2.0**30, allow_subnormal=False), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_sum_is_that_of_the_rounded_terms(terms: list[float], random: object) -> None:
    """Bit for bit the exact sum of terms rounded to the grid, in any order and in any groups."""
    exact = sum(Fraction(round(Fraction(t) / Fraction(SPACING))) for t in terms)
    expected = float(exact * Fraction(SPACING))
    model: NamedArrays = {"w": np.zeros(1)}
    for order in (terms, terms[::-1], sorted(terms)):
        total = UpdateTotal(model, Grid.of(len(terms)))
        for term in order:
            total.add_model(1.0, {"w": np.array([term])})
        assert total.over(1.0)["w"][0] == expected


@pytest.mark.parametrize("terms", [1, 2, 60, 1000, 10**6])
def test_what_a_grid_promises(terms: int) -> None:
    """The sums of n parts of the largest size are exact: their last bit is one spacing."""
    grid = Grid.of(terms)
    assert terms * grid.limit / grid.coarse <= 2**51
    assert terms * (grid.coarse / 2) / grid.spacing <= 2**51
    assert not grid.is_fine(grid.coarse / 2)
    value = np.array([grid.limit, -grid.limit, 1.0 + SPACING / 4, 0.3])
    fine, coarse = split(value.copy(), grid, grid.limit)
    assert coarse is not None
    for part, spacing in ((fine, grid.spacing), (coarse, grid.coarse)):
        assert (part == spacing * np.rint(part / spacing)).all()
    assert np.abs(fine + coarse - value).max() <= SPACING / 2


def test_terms_that_do_not_fit_take_a_wider_grid() -> None:
    """Of single updates none is too large: the grid widens until all of them fit."""
    model: NamedArrays = {"w": np.zeros(2)}
    clients: list[tuple[float, NamedArrays]] = [
        (1e12, {"w": np.array([1e15, 1.0])}),
        (1.0, {"w": np.array([1.0, 1.0])}),
    ]
    assert Grid.of(2).limit < 1e27
    found = combined_update(model, clients, 1e12)["w"]
    np.testing.assert_allclose(found, [1e15, 1.0], rtol=1e-12)
    assert found.tobytes() == combined_update(model, clients[::-1], 1e12)["w"].tobytes()


def test_what_overflows_is_infinite() -> None:
    """A product beyond float64 makes a step that is not finite, which the round refuses."""
    with np.errstate(over="ignore", invalid="ignore"):
        update = combined_update({"w": np.zeros(1)}, [(1e300, {"w": np.array([1e15])})])
    assert not math.isfinite(update["w"][0])


def test_nodes_may_have_added_up_their_part() -> None:
    """A node's fine and coarse sums are taken like the single terms in them."""
    model: NamedArrays = {"w": np.zeros(3)}
    grid = Grid.of(4)
    clients = [np.array([100.0 * k, 1e-7 * k, -3.3]) for k in range(4)]
    alone, in_sums = UpdateTotal(model, grid), UpdateTotal(model, grid)
    for update in clients:
        alone.add_model(7.0, {"w": update})
    for pair in (clients[:2], clients[2:]):
        parts = [split(7.0 * update, grid, 1e4) for update in pair]
        fine = np.sum([part for part, _ in parts], axis=0)
        coarse = np.sum([part for _, part in parts if part is not None], axis=0)
        in_sums.add_sums(UpdateSums({"w": fine}, {"w": coarse}))
    assert alone.over(9.0)["w"].tobytes() == in_sums.over(9.0)["w"].tobytes()


def test_fits() -> None:
    """Every number of the update must lie within the bound; NaN does not."""
    model: NamedArrays = {"a": np.zeros(2, np.float32), "b": np.zeros(0)}
    assert fits(model, {"a": np.array([1.0, -2.0], np.float32), "b": np.zeros(0)}, 2.0)
    assert not fits(model, {"a": np.array([1.0, -2.1], np.float32)}, 2.0)
    assert not fits(model, {"a": np.array([np.nan, 0.0], np.float32)}, 2.0)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64])
def test_whole_numbers_and_truth_values_fit(dtype: type[np.generic]) -> None:
    """By their difference as numbers: truth values have none, and unsigned ones not below 0."""
    model: NamedArrays = {"n": np.array([1, 0, 1], dtype=dtype)}
    client: NamedArrays = {"n": np.array([0, 1, 1], dtype=dtype)}
    assert fits(model, client, 1.0)
    assert not fits(model, client, 0.5)
