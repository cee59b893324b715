"""The probability simplex: quadratic programs, projection and restriction."""

import math

import numpy as np
import piqp
import pytest
from fedquorum.errors import SolverError
from fedquorum.rules import simplex
from fedquorum.rules.simplex import minimize_quadratic, project, renormalize
from fedquorum.rules.types import FloatArray


def test_all_weights_are_zero_if_reporting_clients_hold_no_mass() -> None:
    """If only clients with p = 0 report, no update counts, instead of a division by 0."""
    counts = np.array([True, True, False])
    assert renormalize(np.array([0.0, 0.0, 1.0]), np.ones(3), counts).tolist() == [0, 0, 0]
    assert renormalize(np.array([1e-16, 0, 1]), np.ones(3), counts, 1e-9).tolist() == [0, 0, 0]
    assert renormalize(np.array([0.125, 0.375, 0.5]), np.ones(3), counts).tolist() == [
        0.25,
        0.75,
        0,
    ]


def make_convex(size: int, rank: int, rng: np.random.Generator) -> FloatArray:
    factor = rng.normal(size=(size, rank))
    return np.asarray(factor @ factor.T / rank)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize(("size", "rank"), [(1, 1), (2, 2), (5, 2), (30, 40), (60, 5)])
def test_quadratic_programs(size: int, rank: int, boxed: bool) -> None:
    """No feasible direction descends, singular or not, on the simplex and in a box around w."""
    rng = np.random.default_rng([size, rank])
    for _ in range(5):
        quadratic, linear = make_convex(size, rank, rng), rng.normal(size=size)
        center = rng.dirichlet(np.ones(size))
        low, high = np.maximum(center - 0.1, 0), np.minimum(center + 0.1, 1)
        got = minimize_quadratic(
            quadratic, linear, low=low if boxed else None, high=high if boxed else None
        )
        assert got.sum() == pytest.approx(1, abs=1e-14)
        if boxed:
            assert np.all((got >= low - 1e-12) & (got <= high + 1e-12))
        assert got.min() >= 0

        def objective(p: FloatArray, h: FloatArray = quadratic, b: FloatArray = linear) -> float:
            return float(b @ p + p @ h @ p / 2)

        for _ in range(20):
            other = rng.dirichlet(np.ones(size))
            if boxed:
                other = center + 0.1 * (other - center)
            assert objective(got) <= objective(got + 0.01 * (other - got)) + 1e-10


def test_quadratic_program_against_scipy() -> None:
    """The minimum equals that of a general solver, which is less accurate."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(7)
    quadratic, linear = make_convex(8, 10, rng), rng.normal(size=8)
    got = minimize_quadratic(quadratic, linear)
    other = minimize(
        lambda p: linear @ p + p @ quadratic @ p / 2,
        np.full(8, 1 / 8),
        jac=lambda p: linear + quadratic @ p,
        bounds=[(0, 1)] * 8,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(got, other.x, atol=1e-5)


def test_a_box_of_one_point_is_its_point() -> None:
    """low = high needs no solver."""
    point = np.array([0.2, 0.8])
    assert minimize_quadratic(np.eye(2), np.ones(2), low=point, high=point).tolist() == [0.2, 0.8]


def test_a_failed_solution_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure status raises an error, and so does a solution that is not optimal."""

    def fail_numerically(*_: object) -> tuple[FloatArray, piqp.Status]:
        return np.array([0.5, 0.5]), piqp.PIQP_NUMERICS

    monkeypatch.setattr(simplex, "_solve", fail_numerically)
    with pytest.raises(SolverError, match=r"2 clients was not solved: .*NUMERICS"):
        minimize_quadratic(np.eye(2), np.zeros(2))

    def return_suboptimal(*_: object) -> tuple[FloatArray, piqp.Status]:
        return np.array([0.6, 0.4]), piqp.PIQP_SOLVED

    monkeypatch.setattr(simplex, "_solve", return_suboptimal)
    with pytest.raises(SolverError, match=r"solved to a gap of 0\.12, not to 1e-10"):
        minimize_quadratic(np.eye(2), np.zeros(2))


@pytest.mark.parametrize("spread", [1e-12, 1e-9, 1e-7, 1e-5, 1e-3])
def test_directions_that_hardly_differ(spread: float) -> None:
    """Honest updates may be nearly parallel, and one client may have nearly all of the data."""
    rng = np.random.default_rng(7)
    for size in (2, 9, 60, 400):
        directions = rng.normal(size=30) + spread * rng.normal(size=(size, 30))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        data = rng.integers(1, 100, size).astype(float)
        data[0] = 1e9
        data /= data.sum()
        for deviation in (1e-4, 0.1, 0.5, 1.0):
            low, high = np.maximum(data - deviation, 0.0), np.minimum(data + deviation, 1.0)
            found = minimize_quadratic(
                directions @ directions.T, np.zeros(size), low=low, high=high
            )
            assert found.sum() == pytest.approx(1, abs=1e-12)
            assert np.all((found >= low - 1e-9) & (found <= high + 1e-9))


def test_infeasible_and_meaningless_programs_raise() -> None:
    """A box without a point on the simplex, or NaN in the program, raises an error."""
    with pytest.raises(SolverError, match="not solved"):
        minimize_quadratic(np.eye(2), np.zeros(2), low=np.zeros(2), high=np.full(2, 0.2))
    with pytest.raises(SolverError, match="not solved"):
        minimize_quadratic(np.eye(2), np.array([math.nan, 0.0]))


@pytest.mark.parametrize("mass", [1.0, 0.3])
def test_projection_is_the_nearest_point(mass: float) -> None:
    """<point - x, y - x> <= 0 for every y of the simplex, the condition for the nearest x."""
    rng = np.random.default_rng(3)
    for size in (1, 2, 9, 50):
        point = rng.normal(size=size) * rng.choice([1e-9, 1.0, 1e6])
        got = project(point, mass)
        assert got.min() >= 0
        assert got.sum() == pytest.approx(mass, rel=1e-12)
        corners = mass * np.eye(size)
        assert ((corners - got) @ (point - got)).max() <= 1e-9 * max(1, np.abs(point).max())
    assert project(np.ones(3), 0.0).tolist() == [0, 0, 0]
    assert project(np.zeros(0)).shape == (0,)
