"""AAggFF-D against an independent reference in high precision, and its promises."""

import itertools
import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from fedquorum.rules.types import Population, RoundPlan
from fedquorum.rules.weighting import AAggFFDWeighting
from fedquorum.rules.weighting.aaggff_d import (
    AAggFFDState,
    compute_linearized_gradient,
    compute_lipschitz_d,
    compute_sampled_fraction,
)
from fedquorum.rules.weighting.responses import compute_bounded_responses, estimate_doubly_robust

from tests.builders import compute_mixing_path, draw_losses, make_updates_from_losses
from tests.reference import aaggff


@dataclass(frozen=True)
class Case:
    """A run of AAggFF-D: the numbers of selected and reporting clients, and the transform."""

    size: int
    num_selected: int
    num_reporting: int
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
    """p of every round and the decision losses, with and without sampling and missing reports."""
    history = draw_losses(case.size, case.rounds, case.num_reporting)
    rule = AAggFFDWeighting(
        case.cdf,
        c1=case.c1,
        c2=case.c2,
        baseline_response="running" if running else "sample",
    )
    got, weights_by_round = compute_mixing_path(rule, history, case.size, case.num_selected)
    expected, losses = aaggff.follow_the_leader_trajectory(
        history, case.size, case.num_selected, case.cdf, c1=case.c1, c2=case.c2, running=running
    )
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(
        [w.decision_loss or 0.0 for w in weights_by_round], losses, atol=1e-14
    )
    for reported_losses, mixing, weights in zip(history, got, weights_by_round, strict=True):
        reported_mixing = mixing[list(reported_losses)]
        np.testing.assert_allclose(
            weights.weight, reported_mixing / reported_mixing.sum(), rtol=1e-12
        )


@pytest.mark.parametrize("rbar", ["sample", "running"])
def test_d_with_everyone_is_its_full_information_form(rbar: str) -> None:
    """C = 1: p ~ exp(sqrt(log K) sum r / (1 + rbar) / (L sqrt(m + 1))), r the true responses."""
    size = 9
    history = draw_losses(size, 40, size)
    got, weights_by_round = compute_mixing_path(
        AAggFFDWeighting("weibull", baseline_response=rbar), history, size
    )
    total, means = np.zeros(size), list[float]()
    for t, losses in enumerate(history):
        response = compute_bounded_responses(np.array(list(losses.values())), "weibull", 0.0, 1.0)
        np.testing.assert_array_equal(weights_by_round[t].response, response)
        start = [1 - math.exp(-1)]
        baseline = response.mean() if rbar == "sample" else np.mean(means or start)
        means.append(float(response.mean()))
        total += response / (1 + baseline)
        power = np.exp(math.sqrt(math.log(size)) * total / (3 * math.sqrt(t + 2)))
        np.testing.assert_allclose(got[t], power / power.sum(), rtol=1e-12)


def test_d_gradient_is_unbiased_at_a_fixed_rbar() -> None:
    """Over all samples the linearized gradient's mean is that of the full responses."""
    response, size, m, rbar = np.array([0.9, 0.1, 0.4, 0.35, 0.6]), 5, 2, 0.3
    mixing = np.random.default_rng(0).dirichlet(np.ones(size))
    samples = [np.array(s) for s in itertools.combinations(range(size), m)]
    mean = np.mean(
        [
            compute_linearized_gradient(
                mixing, estimate_doubly_robust(response[s], s, size, m / size, rbar), rbar
            )
            for s in samples
        ],
        axis=0,
    )
    np.testing.assert_allclose(
        mean, compute_linearized_gradient(mixing, response, rbar), rtol=1e-12
    )


def test_d_gradient_is_the_expansion_of_the_exact_one() -> None:
    """At a distance h from rbar 1 its error is of order h^2."""
    rng = np.random.default_rng(1)
    mixing, direction, rbar = rng.dirichlet(np.ones(6)), rng.normal(size=6), 0.4
    errors = []
    for h in (1e-2, 1e-3):
        response = rbar + h * direction
        exact = -response / (1 + mixing @ response)
        errors.append(np.abs(compute_linearized_gradient(mixing, response, rbar) - exact).max())
    assert errors[1] < 0.02 * errors[0]


@pytest.mark.parametrize("rbar", ["sample", "running"])
def test_d_gradients_stay_within_the_lipschitz_constant(rbar: str) -> None:
    """|g_i| <= L for losses that differ by 18 orders of magnitude, at every C."""
    rng = np.random.default_rng(2)
    size = 12
    for num_selected in (1, 4, 12):
        rule = AAggFFDWeighting("exponential", baseline_response=rbar)
        bound = compute_lipschitz_d(0.0, num_selected / size, num_selected / size)
        state = rule.init(Population.from_size(size))
        for _ in range(60):
            clients = np.sort(rng.choice(size, num_selected, replace=False)).tolist()
            losses = dict(zip(clients, 10.0 ** rng.uniform(-12, 6, num_selected), strict=True))
            next_state, _ = rule.weigh(
                state,
                RoundPlan(tuple(clients)),
                make_updates_from_losses(losses),
                np.ones(num_selected),
            )
            assert np.abs(next_state.gradient - state.gradient).max() <= bound
            state = next_state


@pytest.mark.parametrize(("pool", "fraction"), [(None, 2 / 8), (frozenset({0, 1, 2, 3}), 2 / 4)])
def test_d_takes_its_fraction_from_the_plan(pool: frozenset[int] | None, fraction: float) -> None:
    """C is the selected clients / the eligible clients, in the estimate too."""
    plan = RoundPlan((0, 1), eligible=pool)
    assert compute_sampled_fraction(plan, 8) == fraction
    rule = AAggFFDWeighting(c1=0.0, c2=1.0)
    _, weights = rule.weigh(
        rule.init(Population.from_size(8)),
        plan,
        make_updates_from_losses({0: 1.0, 1: 3.0}),
        np.ones(2),
    )
    bounded = compute_bounded_responses(np.array([1.0, 3.0]), "weibull", 0.0, 1.0)
    expected = np.full(8, bounded.mean())
    expected[:2] = (1 - 1 / fraction) * bounded.mean() + bounded / fraction
    assert weights.estimate is not None
    np.testing.assert_allclose(weights.estimate, expected, rtol=1e-12)


def test_d_needs_no_square_array() -> None:
    """A decision for 200,000 clients needs at most a few vectors of that length."""
    size = 200_000
    rule = AAggFFDWeighting()
    state = rule.init(Population.from_size(size))
    selected = np.arange(0, size, 100)
    given = make_updates_from_losses(dict.fromkeys(selected.tolist(), 1.0))
    tracemalloc.start()
    state, weights = rule.weigh(
        state, RoundPlan(tuple(selected.tolist())), given, np.ones(len(selected))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 8 * size
    assert weights.weight.sum() == pytest.approx(1)
    assert state.mixing.shape == (size,)


def test_d_weights_clients_whose_p_underflows() -> None:
    """The reporting clients are normalized in the exponent, so that their weights sum to 1."""
    size = 4
    state = AAggFFDState(
        client=np.arange(size),
        gradient=np.array([-1e6, 0.0, 0.0, 0.0]),
        mixing=np.array([1.0, 0.0, 0.0, 0.0]),
        rounds=10,
        rbar_sum=5.0,
    )
    _, weights = AAggFFDWeighting().weigh(
        state, RoundPlan((1, 2)), make_updates_from_losses({1: 1.0, 2: 1.0}), np.ones(2)
    )
    np.testing.assert_allclose(weights.weight, [0.5, 0.5])
