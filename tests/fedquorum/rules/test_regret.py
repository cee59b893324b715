"""Regret: the best fixed p with its certificate, and the papers' bounds under adversaries."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from fedquorum.errors import SolverError
from fedquorum.rules import regret as regret_module
from fedquorum.rules.regret import (
    compute_best_fixed_weights,
    compute_regret,
    compute_regret_bound_d,
    compute_regret_bound_s,
    kl_divergence,
)
from fedquorum.rules.types import FloatArray, Population
from fedquorum.rules.weighting import AAggFFSWeighting
from fedquorum.rules.weighting.aaggff_d import compute_linearized_gradient, compute_lipschitz_d
from fedquorum.rules.weighting.aaggff_s import compute_lipschitz_s
from fedquorum.rules.weighting.exponentiated_gradient import compute_exponentiated_gradient
from fedquorum.rules.weighting.responses import compute_decision_loss, estimate_doubly_robust
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import limit_examples

Adversary = Callable[[int, FloatArray, float], FloatArray]
"""Returns the response of round t in [0, C2], given p before the round."""


def draw_random(t: int, p: FloatArray, c2: float) -> FloatArray:
    """Draw independent uniform responses."""
    return c2 * np.random.default_rng([1, t, len(p)]).random(len(p))


def give_to_one(t: int, p: FloatArray, c2: float) -> FloatArray:
    """Give all of it to the same client."""
    return np.asarray(c2 * (np.arange(len(p)) == 0), dtype=np.float64)


def alternate(t: int, p: FloatArray, c2: float) -> FloatArray:
    """Give it to two clients in turn, to the first slightly more often."""
    return np.asarray(c2 * (np.arange(len(p)) == (t % 11) % 2), dtype=np.float64)


def give_to_last(t: int, p: FloatArray, c2: float) -> FloatArray:
    """Give all of it to the client with the smallest p."""
    return np.asarray(c2 * (np.arange(len(p)) == p.argmin()), dtype=np.float64)


def give_to_all_but_first(t: int, p: FloatArray, c2: float) -> FloatArray:
    """Give it to all clients except the one with the largest p."""
    return np.asarray(c2 * (np.arange(len(p)) != p.argmax()), dtype=np.float64)


def switch_rarely(t: int, p: FloatArray, c2: float) -> FloatArray:
    """Give it to one client for a long time, then to another."""
    return np.asarray(c2 * (np.arange(len(p)) == int(math.log2(t + 1)) % len(p)), dtype=np.float64)


ADVERSARIES = (
    draw_random,
    give_to_one,
    alternate,
    give_to_last,
    give_to_all_but_first,
    switch_rarely,
)
adversaries = pytest.mark.parametrize("adversary", ADVERSARIES, ids=lambda a: a.__name__)


# --- the best fixed p -----------------------------------------------------------------------


def minimize_by_iteration(table: FloatArray) -> float:
    """Return the smallest loss by Cover's multiplicative iteration, slow and simple."""
    growth = 1 + table
    mixing = np.full(table.shape[1], 1 / table.shape[1])
    for _ in range(20_000):
        mixing = mixing * (growth / (growth @ mixing)[:, None]).mean(axis=0)
    return -float(np.log(growth @ mixing).sum())


@pytest.mark.parametrize(
    ("rounds", "size", "scale"), [(1, 3, 1.0), (40, 2, 1.0), (60, 8, 5.0), (30, 50, 0.1)]
)
def test_best_fixed_against_another_method(rounds: int, size: int, scale: float) -> None:
    """The loss is that of a method that shares nothing with it, and its gap is below 1e-9."""
    table = scale * np.random.default_rng([rounds, size]).random((rounds, size))
    best = compute_best_fixed_weights(table)
    assert best.gap <= 1e-9 * max(1.0, scale * rounds)
    assert best.loss == pytest.approx(minimize_by_iteration(table), abs=1e-3)
    assert best.loss <= minimize_by_iteration(table) + 1e-9
    assert best.mixing.min() >= 0
    assert best.mixing.sum() == pytest.approx(1)


def test_best_fixed_of_two_by_hand() -> None:
    """n_A log(1 + p) + n_B log(2 - p) is largest at p = (2 n_A - n_B) / (n_A + n_B)."""
    table = np.array([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 5)
    np.testing.assert_allclose(
        compute_best_fixed_weights(table).mixing, [9 / 12, 3 / 12], atol=1e-7
    )
    table = np.array([[1.0, 0.0]] * 9 + [[0.0, 1.0]] * 3)
    np.testing.assert_allclose(compute_best_fixed_weights(table).mixing, [1, 0], atol=1e-7)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 12))
@limit_examples(50)
def test_the_gap_certifies(seed: int, rounds: int, size: int) -> None:
    """No p has a loss below that of the best less its gap, whatever the responses' scale."""
    rng = np.random.default_rng(seed)
    table = 10.0 ** rng.uniform(-6, 6) * rng.random((rounds, size)) ** 3
    best = compute_best_fixed_weights(table)
    assert best.loss == pytest.approx(-np.log1p(table @ best.mixing).sum(), rel=1e-9, abs=1e-12)
    for other in rng.dirichlet(np.full(size, 0.3), 100):
        assert -np.log1p(table @ other).sum() >= best.loss - best.gap - 1e-9


def test_best_fixed_of_many_clients_and_negative_responses() -> None:
    """Doubly robust responses of 3,000 clients, most of which never report, are solved too."""
    rng = np.random.default_rng(0)
    size, num_selected = 3000, 5
    level = rng.random(size)
    table = np.empty((200, size))
    for row in table:
        sample = rng.choice(size, num_selected, replace=False)
        sampled = num_selected / size * level[sample]
        row[:] = estimate_doubly_robust(
            sampled, sample, size, num_selected / size, float(sampled.mean())
        )
    assert table.min() < 0
    best = compute_best_fixed_weights(table)
    gradient = -(table / (1 + table @ best.mixing)[:, None]).sum(axis=0)
    assert gradient @ best.mixing - gradient.min() <= 1e-9 * max(1, np.abs(gradient).max())


@pytest.mark.parametrize("table", [np.zeros((5, 4)), np.full((5, 4), 0.3), np.zeros((0, 3))])
def test_best_fixed_with_equal_responses(table: FloatArray) -> None:
    """Equal responses, or none, leave the uniform p."""
    assert (
        compute_best_fixed_weights(table).mixing.tolist() == [1 / table.shape[1]] * table.shape[1]
    )


def test_regret_is_the_difference() -> None:
    """The decision losses minus the losses of the best fixed p."""
    table = np.array([[1.0, 0.0]] * 4)
    mixing_before = np.array([compute_decision_loss(np.full(2, 0.5), r) for r in table])
    got, best = compute_regret(mixing_before, table)
    assert got == pytest.approx(4 * math.log(2 / 1.5))
    assert best.loss == pytest.approx(-4 * math.log(2))


def test_impossible_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other shapes, NaN, responses without a logarithm, and failure to converge are refused."""
    with pytest.raises(ValueError, match=r"must be finite numbers of shape \(T, K\), got \(3,\)"):
        compute_best_fixed_weights(np.zeros(3))
    with pytest.raises(ValueError, match="must be finite"):
        compute_best_fixed_weights(np.array([[math.nan, 1.0]]))
    with pytest.raises(ValueError, match="must be positive for the uniform p"):
        compute_best_fixed_weights(np.array([[-2.0, -1.0]]))
    with pytest.raises(ValueError, match="2 decision losses, but responses of 3 rounds"):
        compute_regret(np.zeros(2), np.zeros((3, 2)))
    monkeypatch.setattr(regret_module, "_minimize", lambda columns, mixing: mixing)
    with pytest.raises(SolverError, match="the best fixed p was found to a gap of"):
        compute_best_fixed_weights(np.array([[1.0, 0.0]]))


def test_kl_divergence() -> None:
    """0 for equal vectors, log 2 for one of two, inf where w is 0, and 0 log 0 is 0."""
    half = np.array([0.5, 0.5])
    assert kl_divergence(half, half) == 0
    assert kl_divergence(np.array([1.0, 0.0]), half) == pytest.approx(math.log(2))
    assert kl_divergence(half, np.array([1.0, 0.0])) == math.inf


# --- the bounds ------------------------------------------------------------------------------


def drive_s(
    size: int, rounds: int, adversary: Adversary, c2: float | None
) -> tuple[FloatArray, FloatArray]:
    """Return AAggFF-S's decision losses (T,) and the adversary's responses (T, K)."""
    rule, high = AAggFFSWeighting(c2=c2), 1 / size if c2 is None else c2
    state = rule.init(Population.from_size(size))
    losses, table = [], []
    for t in range(rounds):
        response = adversary(t, state.mixing, high)
        losses.append(compute_decision_loss(state.mixing, response))
        table.append(response)
        state = rule._step(state, response)
    return np.array(losses), np.array(table)


@adversaries
@pytest.mark.parametrize(("size", "rounds"), [(2, 200), (7, 200), (20, 120), (50, 60)])
@pytest.mark.parametrize("c2", [None, 1.0])
def test_bound_of_s(size: int, rounds: int, adversary: Adversary, c2: float | None) -> None:
    """With random and adversarial responses the regret of AAggFF-S stays below its bound."""
    losses, table = drive_s(size, rounds, adversary, c2)
    got, _ = compute_regret(losses, table)
    bound = compute_regret_bound_s(
        rounds, size, compute_lipschitz_s(0.0, 1 / size if c2 is None else c2)
    )
    assert got <= bound


def test_regret_of_s_grows_slower_than_the_rounds() -> None:
    """Twice the rounds give less than twice the regret, as a logarithm does."""
    short, long = (compute_regret(*drive_s(5, t, alternate, 1.0))[0] for t in (150, 600))
    assert 0 < long < 2 * short


def drive_d(
    size: int, rounds: int, adversary: Adversary, num_selected: int, c2: float
) -> tuple[FloatArray, FloatArray, float]:
    """Return AAggFF-D's losses and responses, and its regret on the linearized losses.

    Written with the rule's parts, because the adversary gives responses and not losses.
    """
    rng = np.random.default_rng([2, size, num_selected])
    fraction = num_selected / size
    lipschitz = compute_lipschitz_d(0.0, c2, fraction)
    mixing, total = np.full(size, 1 / size), np.zeros(size)
    losses, table, linear = [], [], 0.0
    for t in range(rounds):
        sample = np.sort(rng.choice(size, num_selected, replace=False))
        sampled = adversary(t, mixing, c2)[sample]
        rbar = float(sampled.mean())
        response = estimate_doubly_robust(sampled, sample, size, fraction, rbar)
        losses.append(compute_decision_loss(mixing, response))
        table.append(response)
        gradient = compute_linearized_gradient(mixing, response, rbar)
        linear += float(gradient @ mixing)
        total += gradient
        step = math.sqrt(math.log(size) / (t + 2)) / lipschitz
        mixing = compute_exponentiated_gradient(None, -step * total)
    return np.array(losses), np.array(table), linear - float(total.min())


@adversaries
@pytest.mark.parametrize(("size", "num_selected"), [(2, 2), (7, 7), (100, 100), (7, 3), (100, 10)])
def test_bound_of_d(size: int, num_selected: int, adversary: Adversary) -> None:
    """The regret on the linearized losses, and here on the decision losses, is below the bound."""
    rounds = 200
    losses, table, linear = drive_d(size, rounds, adversary, num_selected, num_selected / size)
    bound = compute_regret_bound_d(
        rounds, size, compute_lipschitz_d(0.0, num_selected / size, num_selected / size)
    )
    assert linear <= bound
    assert compute_regret(losses, table)[0] <= bound


@pytest.mark.slow
def test_the_bound_of_d_does_not_hold_for_the_decision_losses() -> None:
    """An adversary that keeps p undecided between one client and all others exceeds it in the end.

    Response 1 for the one has linearized gradient -1, for all others -1/2: AAggFF-D is undecided
    while the best fixed p is not. Its regret is linear in T, and after T = 100,000 rounds above the
    bound, which the linearized losses still meet.
    """
    from scipy.optimize import minimize_scalar

    size, rounds, lipschitz = 10, 100_000, compute_lipschitz_d(0.0, 1.0, 1.0)
    one = np.arange(size) == 0
    responses = {True: one.astype(np.float64), False: (~one).astype(np.float64)}
    mixing, total, linear, loss, given_to_one = np.full(size, 0.1), np.zeros(size), 0.0, 0.0, 0
    for t in range(rounds):
        favors_one = bool(mixing[0] < 0.5)
        given_to_one += favors_one
        response = responses[favors_one]
        loss += compute_decision_loss(mixing, response)
        gradient = compute_linearized_gradient(mixing, response, 0.1 if favors_one else 0.9)
        linear += float(gradient @ mixing)
        total += gradient
        step = math.sqrt(math.log(size) / (t + 2)) / lipschitz
        mixing = compute_exponentiated_gradient(None, -step * total)
    num_others = rounds - given_to_one
    best = minimize_scalar(
        lambda a: -given_to_one * math.log1p(a) - num_others * math.log1p(1 - a),
        bounds=(0, 1),
        method="bounded",
    )
    bound = compute_regret_bound_d(rounds, size, lipschitz)
    assert linear - total.min() <= bound
    assert loss - best.fun > 1.05 * bound


def test_the_range_of_the_curvature_that_the_bound_of_s_needs() -> None:
    """-log(1 - u) >= u + u^2 / (8 L) on [-L, 1) holds for L = 1 and 1/3, and not for 1/4."""

    def holds(lipschitz: float) -> bool:
        u = np.linspace(-lipschitz, 0.99, 2001)
        return bool(np.all(-np.log1p(-u) >= u + u**2 / (8 * lipschitz) - 1e-15))

    assert [holds(x) for x in (2.0, 1.0, 1 / 2, 1 / 3, 0.3)] == [True] * 5
    assert [holds(x) for x in (1 / 4, 1 / 5, 1 / 100)] == [False] * 3


def test_a_start_near_the_end_of_the_logarithm() -> None:
    """Half of 400 clients gain in five rounds and lose in one; with p on them, 1 + <p, r> < 0.

    By symmetry p* has mass a on that half: 5 log(1 + 50 a) + log(4 - 6 a) is largest if
    250 (4 - 6 a) = 6 (1 + 50 a), a = 994 / 1800.
    """
    gain, loss = np.repeat([50.0, 0.0], 200), np.repeat([-3.0, 3.0], 200)
    best = compute_best_fixed_weights(np.vstack([*[gain] * 5, loss]))
    mass = 994 / 1800
    assert best.mixing[:200].sum() == pytest.approx(mass, abs=1e-6)
    expected = -5 * math.log1p(50 * mass) - math.log(4 - 6 * mass)
    assert best.loss == pytest.approx(expected, abs=1e-9)


def stay_uniform(quadratic: FloatArray, linear: FloatArray, *, gap: float) -> FloatArray:
    """Return the uniform p without solving the quadratic program."""
    return np.full(len(linear), 1 / len(linear))


def test_a_step_beyond_the_logarithm_is_scaled_down() -> None:
    """50 log(1 + 10 a) + log(2 - 2 a) is largest at a = 499 / 510; a full step overshoots."""
    table = np.array([[10.0, 0.0]] * 50 + [[-1.0, 1.0]])
    best = compute_best_fixed_weights(table)
    np.testing.assert_allclose(best.mixing, [499 / 510, 11 / 510], rtol=1e-9)
    assert best.gap <= 1e-9


@pytest.mark.parametrize(
    ("part", "broken"), [("_MAX_STEPS", 1), ("minimize_quadratic", stay_uniform)]
)
def test_an_inaccurate_solution_is_refused(
    monkeypatch: pytest.MonkeyPatch, part: str, broken: object
) -> None:
    """After too few steps, or steps without progress, the gap is too large."""
    monkeypatch.setattr(regret_module, part, broken)
    with pytest.raises(SolverError, match="the best fixed p was found to a gap of"):
        compute_best_fixed_weights(np.random.default_rng(2).random((20, 5)))
