"""AAggFF-S and AAggFF-D against an independent reference in high precision, and their promises."""

import itertools
import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import piqp
import pytest
from scipy.optimize import minimize

import strategies
from strategies.parameters import ParameterError
from strategies.responses import bounded_responses, doubly_robust
from strategies.types import Call, FloatArray, Population, Responses, Weights
from strategies.weighting import AAggFFD, AAggFFS, SolverError, Weighting, simplex
from strategies.weighting.aaggff_d import AAggFFDState, linearised_gradient, lipschitz_d
from strategies.weighting.simplex import minimise_quadratic, project, restricted
from tests.reference import aaggff

Losses = dict[int, float]


def population(n: int) -> Population:
    return Population(tuple(range(n)), frozenset(range(n)))


def answered(losses: Losses) -> Responses:
    n = len(losses)
    return Responses(
        client=np.array(list(losses), dtype=np.int64),
        priority_weight=np.ones(n),
        num_examples=np.full(n, 10.0),
        loss=np.array(list(losses.values())),
        accuracy=np.full(n, 0.5),
        known=np.arange(n),
    )


def losses_of(size: int, rounds: int, heard: int, seed: int = 0) -> list[Losses]:
    """Return the losses of samples of clients, some of them always worse off, all falling."""
    rng = np.random.default_rng([seed, size, heard])
    level = rng.lognormal(0.0, 1.0, size)
    return [
        {
            int(k): float(level[k] * np.exp(0.3 * rng.normal() - 0.01 * t))
            for k in np.sort(rng.choice(size, heard, replace=False))
        }
        for t in range(rounds)
    ]


def play(
    rule: Weighting[Any], history: Sequence[Losses], size: int, asked: int | None = None
) -> tuple[FloatArray, list[Weights]]:
    """Return p after every round, shape (T, K), and all that was decided."""
    state, told = rule.init(population(size)), []
    for losses in history:
        call = Call(tuple(range(size if asked is None else asked)))
        state, weights = rule.weigh(state, call, answered(losses), np.ones(len(losses)))
        told.append(weights)
    return np.array([w.mixing for w in told]), told


# --- AAggFF-S ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rounds", "cdf", "c1", "c2"),
    [
        (2, 200, "normal", 0.0, None),
        (7, 200, "normal", 0.0, None),
        (7, 100, "frechet", 0.2, 1.0),
        (20, 100, "logistic", 0.0, None),
        (20, 60, "exponential", 0.0, 1.0),
        (100, 200, "weibull", 0.0, None),
        (100, 60, "gumbel", 0.1, 2.0),
    ],
)
def test_s_follows_the_reference(
    size: int, rounds: int, cdf: str, c1: float, c2: float | None
) -> None:
    """p of every round is the exact minimiser's, to 1e-9."""
    history = losses_of(size, rounds, size)
    got, _ = play(AAggFFS(cdf, c1=c1, c2=c2), history, size)
    expected = aaggff.newton_trajectory(history, size, cdf, c1=c1, c2=c2, extended=size > 20)
    np.testing.assert_allclose(got, expected, atol=1e-9, rtol=0)
    assert (expected[-1] == 0).any(), "a case without an active constraint tests less"


@pytest.mark.parametrize(("size", "heard"), [(7, 4), (20, 13)])
def test_s_takes_the_mean_for_who_does_not_answer(size: int, heard: int) -> None:
    """Missing responses are the mean of those heard; the updates are weighed by p on who is."""
    history = losses_of(size, 60, heard)
    got, told = play(AAggFFS(), history, size)
    np.testing.assert_allclose(
        got, aaggff.newton_trajectory(history, size, "normal"), atol=1e-9, rtol=0
    )
    for losses, mixing, weights in zip(history, got, told, strict=True):
        on_heard = mixing[list(losses)]
        np.testing.assert_allclose(weights.weight, on_heard / on_heard.sum(), rtol=1e-12)


def test_s_minimises_the_papers_objective() -> None:
    """No p does better in the sum over the whole history, written as in the paper."""
    size, rounds = 6, 25
    history = losses_of(size, rounds, size, seed=1)
    got, _ = play(AAggFFS(c2=1.0), history, size)
    held = np.vstack([np.full(size, 1 / size), got])
    response = np.array(
        [bounded_responses(np.array(list(f.values())), "normal", 0.0, 1.0) for f in history]
    )
    gradients = np.array(
        [-r / (1 + p @ r) for r, p in zip(response, held[:-1], strict=True)]
    )  # (T, K)

    def objective(p: FloatArray) -> float:
        linear = float((gradients @ p).sum())
        curved = sum(float(g @ (p - q)) ** 2 for g, q in zip(gradients, held[:-1], strict=True))
        return linear + 4 * size / 2 * float(p @ p) + curved / 4 / 2

    reached = objective(held[-1])
    rng = np.random.default_rng(2)
    others = np.vstack([np.eye(size), rng.dirichlet(np.ones(size), 200)])
    for other in others:
        assert all(
            objective(held[-1] + step * (other - held[-1])) >= reached - 1e-10
            for step in (1e-4, 1e-2, 1.0)
        )


def test_s_refuses_sampling() -> None:
    """A fraction below 1 is refused with the reason, and with what to take instead."""
    with pytest.raises(
        ParameterError,
        match=r"fraction must be 1 for AAggFF-S, whose Newton step needs the responses of all "
        r"clients in every round, got 0\.5; with sampling use AAggFF-D",
    ):
        strategies.AAggFFS(population(3), fraction=0.5)
    with pytest.raises(ParameterError, match="fraction must be a number >= 0 and <= 1, got -1"):
        strategies.AAggFFS(population(3), fraction=-1)
    rule = AAggFFS()
    with pytest.raises(ValueError, match="all 3 clients in every round, got a round that asks 2;"):
        rule.weigh(rule.init(population(3)), Call((0, 1)), answered({0: 1.0}), np.ones(1))


def test_s_counts_no_update_on_the_solvers_noise() -> None:
    """Where only clients with p = 0 answer, p is rounding error on them and weighs nothing."""
    rule = AAggFFS()
    state = rule.init(population(3))
    for _ in range(60):
        state, _ = rule.weigh(
            state, Call((0, 1, 2)), answered({0: 9.0, 1: 1e-3, 2: 1e-3}), np.ones(3)
        )
    following, weights = rule.weigh(state, Call((0, 1, 2)), answered({1: 1.0, 2: 2.0}), np.ones(2))
    assert following.mixing[1:].sum() < 1e-9
    assert weights.weight.tolist() == [0.0, 0.0]


def test_s_keeps_sums_and_no_history() -> None:
    """The state has the same size after 1 round and after 50."""
    rule = AAggFFS()
    state, sizes = rule.init(population(5)), set()
    for losses in losses_of(5, 50, 5):
        state, _ = rule.weigh(state, Call(tuple(range(5))), answered(losses), np.ones(5))
        arrays = (state.client, state.linear, state.quadratic, state.mixing)
        sizes.add(tuple(a.shape for a in arrays))
    assert sizes == {((5,), (5,), (5, 5), (5,))}


def test_nothing_weighs_where_those_heard_hold_no_mass() -> None:
    """Only clients with p = 0 answer: no update counts, instead of a division by 0."""
    counts = np.array([True, True, False])
    assert restricted(np.array([0.0, 0.0, 1.0]), np.ones(3), counts).tolist() == [0, 0, 0]
    assert restricted(np.array([1e-16, 0, 1]), np.ones(3), counts, 1e-9).tolist() == [0, 0, 0]
    assert restricted(np.array([0.125, 0.375, 0.5]), np.ones(3), counts).tolist() == [0.25, 0.75, 0]


# --- the quadratic program ---------------------------------------------------------------------


def convex(size: int, rank: int, rng: np.random.Generator) -> FloatArray:
    factor = rng.normal(size=(size, rank))
    return np.asarray(factor @ factor.T / rank)


@pytest.mark.parametrize("boxed", [False, True])
@pytest.mark.parametrize(("size", "rank"), [(1, 1), (2, 2), (5, 2), (30, 40), (60, 5)])
def test_quadratic_programs(size: int, rank: int, boxed: bool) -> None:
    """No feasible direction descends, singular or not, on the simplex and in a box around w."""
    rng = np.random.default_rng([size, rank])
    for _ in range(5):
        quadratic, linear = convex(size, rank, rng), rng.normal(size=size)
        centre = rng.dirichlet(np.ones(size))
        low, high = np.maximum(centre - 0.1, 0), np.minimum(centre + 0.1, 1)
        got = minimise_quadratic(
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
                other = centre + 0.1 * (other - centre)
            assert objective(got) <= objective(got + 0.01 * (other - got)) + 1e-10


def test_quadratic_program_against_scipy() -> None:
    """The same minimum as a general solver's, which is less accurate."""
    rng = np.random.default_rng(7)
    quadratic, linear = convex(8, 10, rng), rng.normal(size=8)
    got = minimise_quadratic(quadratic, linear)
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
    assert minimise_quadratic(np.eye(2), np.ones(2), low=point, high=point).tolist() == [0.2, 0.8]


def test_a_failed_solver_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another status than solved raises, and so does an answer that is not optimal."""

    def status(*_: object) -> tuple[FloatArray, piqp.Status]:
        return np.array([0.5, 0.5]), piqp.PIQP_MAX_ITER_REACHED

    monkeypatch.setattr(simplex, "_solve", status)
    with pytest.raises(SolverError, match=r"2 clients was not solved: .*MAX_ITER"):
        minimise_quadratic(np.eye(2), np.zeros(2))

    def wrong(*_: object) -> tuple[FloatArray, piqp.Status]:
        return np.array([0.6, 0.4]), piqp.PIQP_SOLVED

    monkeypatch.setattr(simplex, "_solve", wrong)
    with pytest.raises(SolverError, match=r"solved to a gap of 0\.12, not to 1e-10"):
        minimise_quadratic(np.eye(2), np.zeros(2))


def test_infeasible_and_meaningless_programs_raise() -> None:
    """A box without a point on the simplex, or NaN, is no answer."""
    with pytest.raises(SolverError, match="not solved"):
        minimise_quadratic(np.eye(2), np.zeros(2), low=np.zeros(2), high=np.full(2, 0.2))
    with pytest.raises(SolverError, match="not solved"):
        minimise_quadratic(np.eye(2), np.array([math.nan, 0.0]))


@pytest.mark.parametrize("mass", [1.0, 0.3])
def test_projection_is_the_nearest_point(mass: float) -> None:
    """<point - x, y - x> <= 0 for every y of the simplex, which is what nearest means."""
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


# --- AAggFF-D ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A run of AAggFF-D: how many of the clients are asked and heard, and the transform."""

    size: int
    asked: int
    heard: int
    rounds: int
    cdf: str
    c1: float = 0.0
    c2: float | None = None


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        Case(2, 1, 1, 200, "normal"),
        Case(2, 2, 2, 100, "normal"),
        Case(7, 3, 3, 200, "gumbel"),
        Case(7, 5, 3, 100, "frechet", 0.1, 0.5),
        Case(20, 20, 20, 100, "exponential"),
        Case(20, 4, 4, 200, "logistic", 0.0, 0.1),
        Case(100, 10, 10, 200, "weibull"),
    ],
    ids=str,
)
def test_d_follows_the_reference(case: Case, running: bool) -> None:
    """p of every round and the decision losses, full and sampled, with and without silent ones."""
    history = losses_of(case.size, case.rounds, case.heard)
    rule = AAggFFD(
        case.cdf,
        c1=case.c1,
        c2=case.c2,
        rbar="running" if running else "sample",
        fraction=case.asked / case.size,
    )
    got, told = play(rule, history, case.size, case.asked)
    expected, losses = aaggff.follow_the_leader_trajectory(
        history, case.size, case.asked, case.cdf, c1=case.c1, c2=case.c2, running=running
    )
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose([w.decision_loss or 0.0 for w in told], losses, atol=1e-14)
    for heard_losses, mixing, weights in zip(history, got, told, strict=True):
        on_heard = mixing[list(heard_losses)]
        np.testing.assert_allclose(weights.weight, on_heard / on_heard.sum(), rtol=1e-12)


@pytest.mark.parametrize("rbar", ["sample", "running"])
def test_d_with_everyone_is_its_full_information_form(rbar: str) -> None:
    """C = 1: p ~ exp(sqrt(log K) sum r / (1 + rbar) / (L sqrt(m + 1))), r the true responses."""
    size = 9
    history = losses_of(size, 40, size)
    got, told = play(AAggFFD("weibull", rbar=rbar), history, size)
    total, means = np.zeros(size), list[float]()
    for t, losses in enumerate(history):
        response = bounded_responses(np.array(list(losses.values())), "weibull", 0.0, 1.0)
        np.testing.assert_array_equal(told[t].response, response)
        start = [1 - math.exp(-1)]
        at = response.mean() if rbar == "sample" else np.mean(means or start)
        means.append(float(response.mean()))
        total += response / (1 + at)
        power = np.exp(math.sqrt(math.log(size)) * total / (3 * math.sqrt(t + 2)))
        np.testing.assert_allclose(got[t], power / power.sum(), rtol=1e-12)


def test_d_gradient_is_unbiased_at_a_fixed_rbar() -> None:
    """Over all samples the linearised gradient's mean is that of the full responses."""
    response, size, m, rbar = np.array([0.9, 0.1, 0.4, 0.35, 0.6]), 5, 2, 0.3
    mixing = np.random.default_rng(0).dirichlet(np.ones(size))
    samples = [np.array(s) for s in itertools.combinations(range(size), m)]
    mean = np.mean(
        [
            linearised_gradient(mixing, doubly_robust(response[s], s, size, m / size, rbar), rbar)
            for s in samples
        ],
        axis=0,
    )
    np.testing.assert_allclose(mean, linearised_gradient(mixing, response, rbar), rtol=1e-12)


def test_d_gradient_is_the_expansion_of_the_exact_one() -> None:
    """Off rbar 1 by a small h it is right to the order of h^2."""
    rng = np.random.default_rng(1)
    mixing, direction, rbar = rng.dirichlet(np.ones(6)), rng.normal(size=6), 0.4
    errors = []
    for h in (1e-2, 1e-3):
        response = rbar + h * direction
        exact = -response / (1 + mixing @ response)
        errors.append(np.abs(linearised_gradient(mixing, response, rbar) - exact).max())
    assert errors[1] < 0.02 * errors[0]


@pytest.mark.parametrize("rbar", ["sample", "running"])
def test_d_gradients_stay_within_the_lipschitz_constant(rbar: str) -> None:
    """|g_i| <= L for losses that differ by 18 orders of magnitude, at every C."""
    rng = np.random.default_rng(2)
    size = 12
    for asked in (1, 4, 12):
        rule = AAggFFD("exponential", rbar=rbar, fraction=asked / size)
        bound = lipschitz_d(0.0, asked / size, asked / size)
        state = rule.init(population(size))
        for _ in range(60):
            clients = np.sort(rng.choice(size, asked, replace=False)).tolist()
            losses = dict(zip(clients, 10.0 ** rng.uniform(-12, 6, asked), strict=True))
            following, _ = rule.weigh(state, Call(tuple(clients)), answered(losses), np.ones(asked))
            assert np.abs(following.gradient - state.gradient).max() <= bound
            state = following


def test_d_refuses_rounds_that_ask_for_another_share() -> None:
    """C is part of the estimate, so a round that asks for another is a mistake."""
    rule = AAggFFD(fraction=0.1)
    with pytest.raises(ValueError, match=r"each round asks 5 of 50 clients, got .* asks 20: "):
        rule.weigh(
            rule.init(population(50)), Call(tuple(range(20))), answered({0: 1.0}), np.ones(1)
        )


def test_d_needs_no_square_array() -> None:
    """A decision for 200,000 clients holds a few vectors of that length at most."""
    size = 200_000
    rule = AAggFFD(fraction=0.01)
    state = rule.init(population(size))
    asked = np.arange(0, size, 100)
    responses = answered(dict.fromkeys(asked.tolist(), 1.0))
    tracemalloc.start()
    state, weights = rule.weigh(state, Call(tuple(asked.tolist())), responses, np.ones(len(asked)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 8 * size
    assert weights.weight.sum() == pytest.approx(1)
    assert state.mixing.shape == (size,)


def test_d_weighs_clients_whose_p_is_too_small_for_a_float() -> None:
    """The heard ones are normalised in the exponent, so that their weights still sum to 1."""
    size = 4
    state = AAggFFDState(
        client=np.arange(size),
        gradient=np.array([-1e6, 0.0, 0.0, 0.0]),
        mixing=np.array([1.0, 0.0, 0.0, 0.0]),
        rounds=10,
        rbar_sum=5.0,
    )
    _, weights = AAggFFD(fraction=0.5).weigh(
        state, Call((1, 2)), answered({1: 1.0, 2: 1.0}), np.ones(2)
    )
    np.testing.assert_allclose(weights.weight, [0.5, 0.5])


# --- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("rule", [AAggFFS(), AAggFFD(), AAggFFD("normal", rbar="running")])
def test_uniform_losses_give_uniform_p(rule: Weighting[Any], loss: float) -> None:
    """Who is treated alike is weighed alike, in every round."""
    history = [dict.fromkeys(range(6), loss)] * 20
    got, told = play(rule, history, 6)
    np.testing.assert_allclose(got, np.full((20, 6), 1 / 6), atol=1e-12)
    np.testing.assert_allclose([w.weight for w in told], np.full((20, 6), 1 / 6), atol=1e-12)


@pytest.mark.parametrize("rule", [AAggFFS(), AAggFFD()])
def test_the_worse_off_weigh_more(rule: Weighting[Any]) -> None:
    """Losses that stay in order put p into their order, and more so over the rounds."""
    history = [{0: 1.0, 1: 1.5, 2: 2.0}] * 30
    got, _ = play(rule, history, 3)
    assert np.all(np.diff(got, axis=1) >= 0)
    assert np.all(np.diff(got[:, 2]) >= -1e-12)


@pytest.mark.parametrize("rule", [AAggFFS(), AAggFFD()])
def test_the_decision_loss_is_of_the_p_held_before(rule: Weighting[Any]) -> None:
    """l_t = -log(1 + <p_t, r_t>), p_t decided without r_t."""
    history = losses_of(5, 10, 5)
    got, told = play(rule, history, 5)
    held = np.vstack([np.full(5, 0.2), got])
    for t, weights in enumerate(told):
        assert weights.response is not None
        assert weights.decision_loss == pytest.approx(
            -math.log1p(held[t] @ weights.response), abs=1e-14
        )


@pytest.mark.parametrize("rule", [AAggFFS(), AAggFFD()])
def test_shares_multiply(rule: Weighting[Any]) -> None:
    """A share in between scales the client's part before p is normalised."""
    state = rule.init(population(3))
    _, weights = rule.weigh(
        state, Call((0, 1, 2)), answered({0: 1.0, 1: 1.0, 2: 1.0}), np.array([1.0, 0.5, 0.0])
    )
    np.testing.assert_allclose(weights.weight, [2 / 3, 1 / 3, 0.0], rtol=1e-12)


@pytest.mark.parametrize("rule", [AAggFFS(), AAggFFD()])
def test_one_client_has_all_the_weight(rule: Weighting[Any]) -> None:
    """K = 1 divides by no log K = 0."""
    got, _ = play(rule, [{0: 1.0}, {0: 3.0}], 1)
    assert got.tolist() == [[1.0], [1.0]]
