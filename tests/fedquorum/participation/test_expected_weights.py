"""What clients count in the mean, over long runs in which they come and go, by selection."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from fedquorum.named import build_rules
from fedquorum.rule import RunContext
from fedquorum.selection import AllClients, PriorityOnly, Selection
from fedquorum.types import FloatArray
from fedquorum.weighting import (
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


def bernoulli(rounds: int) -> FloatArray:
    return (np.random.default_rng(7).random((rounds, 5)) < RATES).astype(np.float64)


COVERED: dict[str, tuple[Selection, FloatArray]] = {
    "everyone": (AllClients(), np.ones(5)),
    "priority_only": (PriorityOnly(), np.array([1.0, 1.0, 0.0, 0.0, 0.0])),
    "epsilon_gate": (GATE, ALIGNED.astype(np.float64)),
}
FIXED_BASES: dict[str, tuple[Callable[[], Weighting[Any]], FloatArray]] = {
    "average_all": (AverageAll, np.ones(5)),
    "data_fraction": (DataFraction, DATA),
}


# The bounds of these simulations are set beforehand. Each is 5 standard errors of a mean over
# thousands of rounds, which is close to normal: a client is outside with probability 6e-7, and any
# client of any case here with less than 1e-4. The rates and the numbers of rounds are such that a
# bound is a third of the expected weight or less, with rounds for a few seconds.


@pytest.mark.parametrize(("selection", "base"), [*product(COVERED, FIXED_BASES)])
def test_expected_weights_with_given_rates(selection: str, base: str) -> None:
    """Over 4,000 rounds of random presence every client counts b_k / B in the mean.

    c_k is b_k / (B p_k) with probability p_k, else 0, independently: its standard deviation is
    (b_k / B) sqrt((1 - p_k) / p_k), and the mean is within 5 standard errors of b_k / B. The first
    200 rounds, in which all are heard for the first time, are left out.
    """
    rule, covered = COVERED[selection]
    make, amounts = FIXED_BASES[base]
    rounds = 4_000
    weight, _ = compute_round_weights(
        correct_by_true_rates(make()), FIVE, bernoulli(rounds + 200), rule
    )
    expected = covered * amounts / (covered * amounts).sum()
    error = expected * np.sqrt((1 - RATES) / RATES / rounds)
    assert np.all(np.abs(weight[200:].mean(axis=0) - expected) <= 5 * error)
    assert np.all(weight[:, covered == 0] == 0)


@pytest.mark.parametrize("fraction", [0.5, 0.8])
@pytest.mark.parametrize("selection", COVERED)
def test_expected_weights_with_given_rates_under_sampling(selection: str, fraction: float) -> None:
    """The same where rounds ask a sample of both groups: p_k q_k in place of p_k, q_k by group.

    The mean sum of the weights is 1 under every fraction.
    """
    _, covered = COVERED[selection]
    facts = RunContext(
        10**6, 5, dict(enumerate(RATES)), FIVE.population.clients, priority=FIVE.population.priority
    )
    gate = {"epsilon": 0.5, "warmup_fraction": 0.0} if selection == "epsilon_gate" else {}
    parts = {
        "selection": {"name": selection, **gate},
        "weighting": {"name": "average_all"},
        "participation": {"name": "known_statistics"},
    }
    rules = build_rules({"name": "composed", "fraction": fraction, **parts}, {"name": "sgd"}, facts)
    rounds = 4_000
    weight, _ = compute_round_weights(
        rules.weighting, FIVE, bernoulli(rounds + 200), rules.selection
    )
    q = np.array([max(1, round(fraction * 2)) / 2] * 2 + [round(fraction * 3) / 3] * 3)
    expected, rate = covered / covered.sum(), RATES * q
    error = expected * np.sqrt((1 - rate) / rate / rounds)
    mean = weight[200:].mean(axis=0)
    assert np.all(np.abs(mean - expected) <= 5 * error)
    assert abs(mean.sum() - 1) <= 5 * error.sum()


def estimated_bound(expected: FloatArray, spread: FloatArray, first: int, end: int) -> FloatArray:
    """Return how far the mean weight of rounds ``first`` to ``end`` may be off, omega estimated.

    Shapes (N,). ``spread`` / sqrt(t) is the standard error of how often a client is there in t
    rounds, relative to p_k. With c_k = (b_k / B) I_t omega_t, I_t whether it is there,
    I_t omega_t - 1 = (I_t - p_k) omega_t + (p_k omega_t - 1). The mean of the first part is within
    5 spread / sqrt(end - first) times the largest p_k omega_t, 1 + d_first. That of the second is
    within the mean of d_t = 5 spread / sqrt(t): omega_t is t over how often the client was there
    by then, and the standard deviation of a mean is at most the mean of the standard deviations.
    """
    t = np.arange(first, end)[:, None]
    estimate = 5 * spread / np.sqrt(t)
    presence = 5 * spread / math.sqrt(end - first) * (1 + estimate.max(axis=0))
    bound: FloatArray = expected * (presence + estimate.mean(axis=0))
    return bound


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "base"), [("everyone", "average_all"), ("epsilon_gate", "data_fraction")]
)
def test_expected_weights_with_fedau(selection: str, base: str) -> None:
    """The same with omega estimated: its mean interval is another source of error."""
    rule, covered = COVERED[selection]
    make, amounts = FIXED_BASES[base]
    first, rounds = 2_000, 10_000
    weight, _ = compute_round_weights(
        build_corrected_weighting(make(), "fedau"), FIVE, bernoulli(rounds), rule
    )
    expected = covered * amounts / (covered * amounts).sum()
    bound = estimated_bound(expected, np.sqrt((1 - RATES) / RATES), first, rounds)
    assert np.all(np.abs(weight[first:].mean(axis=0) - expected) <= bound)
    assert np.all(bound <= expected / 3)


def markov(rounds: int) -> FloatArray:
    """Return presence by two-state chains of the same rates, leaving for good in none."""
    rng = np.random.default_rng(8)
    joins = np.minimum(0.2, RATES)
    leaves = joins * (1 / RATES - 1)
    there = rng.random(5) < RATES
    rows = []
    for draw in rng.random((rounds, 5)):
        rows.append(there)
        there = np.where(there, draw >= leaves, draw < joins)
    return np.array(rows, dtype=np.float64)


@pytest.mark.slow
def test_expected_weights_of_fedau_in_fedalign_under_markov_presence() -> None:
    """p_k / (1 + A^) for all in the gate, though presence comes in long runs.

    How often a chain is there in T rounds has variance about T p (1 - p) (1 + r) / (1 - r) with
    r = 1 - a - b, a and b its transition rates: that factor more than independent rounds. A rule
    that divides by who is there is another matter: its expected weights, over all 32 sets of
    clients that can be there, are off by more than twice the bound.
    """
    first, rounds = 3_000, 12_000
    weight, _ = compute_round_weights(
        build_corrected_weighting(DataFraction(), "fedau"), FIVE, markov(rounds), GATE
    )
    joins = np.minimum(0.2, RATES)
    stay = 1 - joins - joins * (1 / RATES - 1)
    expected = np.where(ALIGNED, DATA, 0.0) / DATA[ALIGNED].sum()
    spread = np.sqrt((1 - RATES) / RATES * (1 + stay) / (1 - stay))
    bound = estimated_bound(expected, spread, first, rounds)
    assert np.all(np.abs(weight[first:].mean(axis=0) - expected) <= bound)
    assert np.all(bound <= expected / 3)
    sets = np.array([*product((0.0, 1.0), repeat=5)])
    probability = np.where(sets > 0, RATES, 1 - RATES).prod(axis=1)
    present, _ = compute_round_weights(DataFraction(), FIVE, sets, GATE)
    assert np.any(np.abs(probability @ present - expected) > 2 * bound)


@pytest.mark.parametrize("rule", [AAggFFDWeighting(), AFLWeighting(0.01)])
@pytest.mark.parametrize("selection", COVERED)
def test_omega_multiplies_mixing_over_all_that_can_count(
    rule: Weighting[Any], selection: str
) -> None:
    """c_k = omega_k p_k / (sum of p over all covered), whoever else is there."""
    selected, covered = COVERED[selection]
    presence = bernoulli(300)
    weight, mixing = compute_round_weights(correct_by_true_rates(rule), FIVE, presence, selected)
    mass = mixing * covered
    expected = presence * mass / mass.sum(axis=1, keepdims=True) / RATES
    late = np.s_[150:]  # by when all in the gate have been heard
    heard = presence[late].max(axis=1) > 0
    np.testing.assert_allclose(weight[late][heard], expected[late][heard], rtol=1e-12)
    # without omega p is divided by that of who is there; a gate then needs a priority update
    plain, mixing = compute_round_weights(rule, FIVE, presence, selected)
    shares = presence * mixing * covered
    counted = presence[:, :2].any(axis=1) & (shares.sum(axis=1) > 0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    np.testing.assert_allclose(plain[counted], shares[counted], rtol=1e-9)


@pytest.mark.parametrize("base", [AverageAll(), DataFraction(), AAggFFDWeighting(), AFLWeighting()])
def test_with_everyone_there_nothing_is_corrected(base: Weighting[Any]) -> None:
    """Full participation: FedAU's omega is 1, and the fixed divisor is that of the round."""
    for selection, _ in COVERED.values():
        weight, _ = compute_round_weights(
            build_corrected_weighting(base, "fedau"), FIVE, np.ones((30, 5)), selection
        )
        plain, _ = compute_round_weights(base, FIVE, np.ones((30, 5)), selection)
        np.testing.assert_allclose(weight, plain, rtol=1e-12)
