"""The mean weights of clients over long runs with changing availability, by selection."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from fedquorum.registry import build_rules
from fedquorum.rules.rule import RunContext
from fedquorum.rules.selection import AllClients, PriorityOnly, Selection
from fedquorum.rules.types import FloatArray
from fedquorum.rules.weighting import (
    AAggFFDWeighting,
    AFLWeighting,
    AverageAll,
    DataFraction,
    Weighting,
)

from tests.builders import FIVE, GATE, build_corrected_weighting, compute_round_weights

DATA = FIVE.data
RATES = np.array([0.9, 0.5, 0.4, 0.3, 0.5])
ALIGNED = np.array([True, True, True, True, False])


def correct_by_true_rates(base: Weighting[Any]) -> Weighting[Any]:
    """Return a weighting corrected by the true rates."""
    return build_corrected_weighting(base, "known_statistics", probabilities=RATES.tolist())


def draw_bernoulli_presence(rounds: int) -> FloatArray:
    return (np.random.default_rng(7).random((rounds, 5)) < RATES).astype(np.float64)


SELECTIONS: dict[str, tuple[Selection, FloatArray]] = {
    "everyone": (AllClients(), np.ones(5)),
    "priority_only": (PriorityOnly(), np.array([1.0, 1.0, 0.0, 0.0, 0.0])),
    "epsilon_gate": (GATE, ALIGNED.astype(np.float64)),
}
FIXED_BASES: dict[str, tuple[Callable[[], Weighting[Any]], FloatArray]] = {
    "average_all": (AverageAll, np.ones(5)),
    "data_fraction": (DataFraction, DATA),
}


# The bounds of these simulations are 5 standard errors of a mean over thousands of rounds, which is
# close to normal: one client is outside with probability 6e-7, and any client of any case here with
# less than 1e-4. With these rates and numbers of rounds a bound is at most a third of the expected
# weight, and a test takes a few seconds.


@pytest.mark.slow
@pytest.mark.parametrize(("selection", "base"), [*product(SELECTIONS, FIXED_BASES)])
def test_expected_weights_with_given_rates(selection: str, base: str) -> None:
    """Over 2,500 rounds of random presence the mean weight of every client is b_k / B.

    c_k is b_k / (B p_k) with probability p_k, else 0, independently: its standard deviation is
    (b_k / B) sqrt((1 - p_k) / p_k), and the mean is within 5 standard errors of b_k / B. The first
    200 rounds, in which all clients report for the first time, are left out.
    """
    rule, can_count = SELECTIONS[selection]
    make, amounts = FIXED_BASES[base]
    rounds = 2_500
    weight, _ = compute_round_weights(
        correct_by_true_rates(make()), FIVE, draw_bernoulli_presence(rounds + 200), rule
    )
    expected = can_count * amounts / (can_count * amounts).sum()
    error = expected * np.sqrt((1 - RATES) / RATES / rounds)
    assert np.all(np.abs(weight[200:].mean(axis=0) - expected) <= 5 * error)
    assert np.all(weight[:, can_count == 0] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.5, 0.8])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_expected_weights_with_given_rates_under_sampling(selection: str, fraction: float) -> None:
    """The same for rounds with a sample of both groups: p_k q_k replaces p_k, q_k by group.

    The mean sum of the weights is 1 under every fraction.
    """
    _, can_count = SELECTIONS[selection]
    context = RunContext(
        10**6, 5, dict(enumerate(RATES)), FIVE.population.clients, priority=FIVE.population.priority
    )
    gate = {"epsilon": 0.5, "warmup_fraction": 0.0} if selection == "epsilon_gate" else {}
    parts = {
        "selection": {"name": selection, **gate},
        "weighting": {"name": "average_all"},
        "participation": {"name": "known_statistics"},
    }
    rules = build_rules(
        {"name": "composed", "fraction": fraction, **parts}, {"name": "sgd"}, context
    )
    rounds = 2_500
    weight, _ = compute_round_weights(
        rules.weighting, FIVE, draw_bernoulli_presence(rounds + 200), rules.selection
    )
    q = np.array([max(1, round(fraction * 2)) / 2] * 2 + [round(fraction * 3) / 3] * 3)
    expected, rate = can_count / can_count.sum(), RATES * q
    error = expected * np.sqrt((1 - rate) / rate / rounds)
    mean = weight[200:].mean(axis=0)
    assert np.all(np.abs(mean - expected) <= 5 * error)
    assert abs(mean.sum() - 1) <= 5 * error.sum()


def compute_bound(
    expected: FloatArray, relative_deviation: FloatArray, first: int, end: int
) -> FloatArray:
    """Return the tolerance of the mean weight of rounds ``first`` to ``end``, omega estimated.

    Shapes (N,). ``relative_deviation`` d gives the standard error d / sqrt(t) of a client's number
    of rounds out of t, relative to p_k. With c_k = (b_k / B) I_t omega_t, where I_t says whether it
    is present, I_t omega_t - 1 = (I_t - p_k) omega_t + (p_k omega_t - 1). The mean of the first
    part is within 5 d / sqrt(end - first) times the largest p_k omega_t, 1 + d_first. That of the
    second is within the mean of d_t = 5 d / sqrt(t): omega_t is t / (number of rounds so far), and
    the standard deviation of a mean is at most the mean of the standard deviations.
    """
    t = np.arange(first, end)[:, None]
    estimate = 5 * relative_deviation / np.sqrt(t)
    presence = 5 * relative_deviation / math.sqrt(end - first) * (1 + estimate.max(axis=0))
    bound: FloatArray = expected * (presence + estimate.mean(axis=0))
    return bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "base"), [("everyone", "average_all"), ("epsilon_gate", "data_fraction")]
)
def test_expected_weights_with_fedau(selection: str, base: str) -> None:
    """The same with an estimated omega: its mean interval is another source of error."""
    rule, can_count = SELECTIONS[selection]
    make, amounts = FIXED_BASES[base]
    first, rounds = 2_000, 10_000
    weight, _ = compute_round_weights(
        build_corrected_weighting(make(), "fedau"), FIVE, draw_bernoulli_presence(rounds), rule
    )
    expected = can_count * amounts / (can_count * amounts).sum()
    bound = compute_bound(expected, np.sqrt((1 - RATES) / RATES), first, rounds)
    assert np.all(np.abs(weight[first:].mean(axis=0) - expected) <= bound)
    assert np.all(bound <= expected / 3)


def draw_markov_presence(rounds: int) -> FloatArray:
    """Return presence by two-state Markov chains with the same rates, none of them absorbing."""
    rng = np.random.default_rng(8)
    joins = np.minimum(0.2, RATES)
    leaves = joins * (1 / RATES - 1)
    is_present = rng.random(5) < RATES
    rows = []
    for draw in rng.random((rounds, 5)):
        rows.append(is_present)
        is_present = np.where(is_present, draw >= leaves, draw < joins)
    return np.array(rows, dtype=np.float64)


@pytest.mark.slow
def test_expected_weights_of_fedau_in_fedalign_under_markov_presence() -> None:
    """p_k / (1 + A^) for all clients inside the gate, although presence comes in long runs.

    The number of rounds out of T in which a chain is present has variance about
    T p (1 - p) (1 + r) / (1 - r) with r = 1 - a - b, a and b its transition rates: that factor more
    than independent rounds. The expected weights of a rule that divides by the present clients,
    over all 32 sets of them, differ by more than twice the bound.
    """
    first, rounds = 2_500, 12_000
    weight, _ = compute_round_weights(
        build_corrected_weighting(DataFraction(), "fedau"), FIVE, draw_markov_presence(rounds), GATE
    )
    joins = np.minimum(0.2, RATES)
    stay = 1 - joins - joins * (1 / RATES - 1)
    expected = np.where(ALIGNED, DATA, 0.0) / DATA[ALIGNED].sum()
    relative_deviation = np.sqrt((1 - RATES) / RATES * (1 + stay) / (1 - stay))
    bound = compute_bound(expected, relative_deviation, first, rounds)
    assert np.all(np.abs(weight[first:].mean(axis=0) - expected) <= bound)
    assert np.all(bound <= expected / 3)
    sets = np.array([*product((0.0, 1.0), repeat=5)])
    probability = np.where(sets > 0, RATES, 1 - RATES).prod(axis=1)
    present, _ = compute_round_weights(DataFraction(), FIVE, sets, GATE)
    assert np.any(np.abs(probability @ present - expected) > 2 * bound)


@pytest.mark.parametrize("rule", [AAggFFDWeighting(), AFLWeighting(0.01)])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_omega_multiplies_mixing_over_all_that_can_count(
    rule: Weighting[Any], selection: str
) -> None:
    """c_k = omega_k p_k / (sum of p over all that can count), whatever clients are present."""
    selected, can_count = SELECTIONS[selection]
    presence = draw_bernoulli_presence(300)
    weight, mixing = compute_round_weights(correct_by_true_rates(rule), FIVE, presence, selected)
    mass = mixing * can_count
    expected = presence * mass / mass.sum(axis=1, keepdims=True) / RATES
    late_rounds = np.s_[150:]  # by then all clients inside the gate have reported
    has_reported = presence[late_rounds].max(axis=1) > 0
    np.testing.assert_allclose(
        weight[late_rounds][has_reported], expected[late_rounds][has_reported], rtol=1e-12
    )
    # without omega p is divided by the sum over present clients; a gate needs a priority update
    plain, mixing = compute_round_weights(rule, FIVE, presence, selected)
    fractions = presence * mixing * can_count
    counted = presence[:, :2].any(axis=1) & (fractions.sum(axis=1) > 0)
    fractions /= np.maximum(fractions.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    np.testing.assert_allclose(plain[counted], fractions[counted], rtol=1e-9)


@pytest.mark.parametrize("base", [AverageAll(), DataFraction(), AAggFFDWeighting(), AFLWeighting()])
def test_full_participation_needs_no_correction(base: Weighting[Any]) -> None:
    """FedAU's omega is 1, and the fixed denominator equals that of the round."""
    for selection, _ in SELECTIONS.values():
        weight, _ = compute_round_weights(
            build_corrected_weighting(base, "fedau"), FIVE, np.ones((30, 5)), selection
        )
        plain, _ = compute_round_weights(base, FIVE, np.ones((30, 5)), selection)
        np.testing.assert_allclose(weight, plain, rtol=1e-12)
