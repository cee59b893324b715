"""Empirical rates: omega against an independent reference, its expectation, and its counts."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from fedquorum.client.availability import Bernoulli, Cooldown
from fedquorum.errors import ParameterError
from fedquorum.rules.participation import EmpiricalCorrection, FedAUCorrection, Participation
from fedquorum.rules.types import FloatArray, Population, RoundPlan
from fedquorum.rules.weighting import AverageAll
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.builders import make_participants, weigh_rounds
from tests.reference import empirical


def compute_omegas(history: NDArray[np.bool_], cap: float = math.inf) -> list[dict[int, float]]:
    """Return omega of every round for a history (rounds, clients), all clients registered."""
    n = history.shape[1]
    given = [make_participants(np.flatnonzero(row).tolist(), n) for row in history]
    _, weights_by_round = weigh_rounds(EmpiricalCorrection(cap), given, n, asked=n)
    for updates, weights in zip(given, weights_by_round, strict=True):
        expected = [weights.omega[k] / n for k in updates.client.tolist()]
        np.testing.assert_array_equal(weights.weight, expected)
    return [dict(weights.omega) for weights in weights_by_round]


@given(
    history=st.lists(st.booleans(), min_size=1, max_size=60),
    cap=st.one_of(st.integers(1, 20), st.just(1.5), st.just(math.inf)),
)
def test_any_history(history: list[bool], cap: float) -> None:
    """For any history of a client its omega equals the reference's, and is in [1, cap]."""
    got = [omega[0] for omega in compute_omegas(np.array(history)[:, None], cap)]
    assert got == [float(omega) for omega in empirical.compute_capped_omegas(history, cap)]
    assert all(1 <= omega <= cap for omega in got)


def test_many_clients() -> None:
    """Rates from 0.01 to 1 over 300 rounds, each client by its history."""
    rates = np.array([0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
    history = np.random.default_rng(0).random((300, 6)) < rates
    omegas = compute_omegas(history, 50)
    for client in range(6):
        expected = empirical.compute_capped_omegas(history[:, client].tolist(), 50)
        assert [omega[client] for omega in omegas] == [float(omega) for omega in expected]


@pytest.mark.parametrize("p", [Fraction(1, 10), Fraction(1, 2), Fraction(9, 10), Fraction(1)])
def test_the_expected_weight_of_a_client(p: Fraction) -> None:
    """E[I omega] = 1 - (1 - p)^(t + 1) exactly, over all histories of the rule's weights."""
    for t in range(7):
        rounds = t + 1
        histories = np.array(np.meshgrid(*[[False, True]] * rounds)).reshape(rounds, -1)
        last = compute_omegas(histories)[-1]  # each column is a client with one of the histories
        total = sum(
            p ** int(presence.sum())
            * (1 - p) ** int(rounds - presence.sum())
            * Fraction(last[k]).limit_denominator(100)
            for k, presence in enumerate(histories.T)
            if presence[-1]
        )
        assert total == 1 - (1 - p) ** rounds == empirical.compute_expected_omega(p, t)


def test_always_available_clients_are_averaged() -> None:
    """omega = 1: the weights of average_all, to the bit."""
    given = [make_participants([0, 1, 2], 3)] * 20
    _, corrected_rounds = weigh_rounds(EmpiricalCorrection(), given, 3, asked=3)
    _, plain = weigh_rounds(AverageAll(), given, 3, asked=3)
    for corrected, weights in zip(corrected_rounds, plain, strict=True):
        assert set(corrected.omega.values()) == {1.0}
        assert corrected.weight.tolist() == weights.weight.tolist()


def test_a_cap_of_one_weighs_all_clients_equally() -> None:
    """The average over all, for any availability."""
    history = np.random.default_rng(1).random((50, 5)) < 0.3
    assert all(set(omega.values()) == {1.0} for omega in compute_omegas(history, 1))


def test_the_first_participation_has_the_weight_of_its_round() -> None:
    """omega is t + 1, and does not depend on the round itself: absent clients have the same."""
    history = np.zeros((6, 2), dtype=np.bool_)
    history[5, 0] = True
    assert [omega[1] for omega in compute_omegas(history)] == [1, 2, 3, 4, 5, 6]
    assert compute_omegas(history)[-1][0] == 6.0


@pytest.mark.parametrize("rule", [EmpiricalCorrection(), FedAUCorrection()], ids=repr)
@pytest.mark.parametrize(("p", "rest"), [(0.2, 3), (0.8, 5)])
def test_clients_that_rest(rule: Participation[object], p: float, rest: int) -> None:
    """100 clients over 400 rounds: the mean weight is right although presence is correlated.

    Rounds 100 to 400, after a start that both estimators need. Over 20 seeds the mean of the
    weights' sum was 0.988 to 0.990 with a standard deviation of at most 0.011; the tolerance covers
    the rest of the start and five standard deviations. Uncorrected it is the rate, 0.125 or 0.16.
    """
    process, rng, size = Cooldown(Bernoulli(p), rest), np.random.default_rng(5), 100
    states: list[int | None] = [None] * size
    history = np.zeros((400, size), dtype=np.bool_)
    for t, k in np.ndindex(400, size):
        state = process.advance(states[k], t + 1, rng)
        states[k], history[t, k] = state, process.is_available(state)
    given = [make_participants(np.flatnonzero(row).tolist(), size) for row in history]
    _, weights_by_round = weigh_rounds(rule, given, size, asked=size)
    counted: FloatArray = np.array([weights.weight.sum() for weights in weights_by_round])
    assert counted[100:].mean() == pytest.approx(1.0, abs=0.07)


def test_a_late_client_starts_when_it_registers() -> None:
    """N is the number of registered clients; earlier rounds do not count for a new client."""
    rule = EmpiricalCorrection()
    state, plan = rule.init(Population.from_size(3)), RoundPlan((0, 1, 2))
    for _ in range(5):
        state, weights = rule.weigh(state, plan, make_participants([0], known=2), np.ones(1))
        assert weights.weight.tolist() == [1 / 2]
        assert weights.omega.keys() == {0, 1}
    state, weights = rule.weigh(state, plan, make_participants([0, 2], known=3), np.ones(2))
    assert weights.weight.tolist() == [1 / 3, 1 / 3]
    assert state.rounds.tolist() == [6, 6, 1]
    assert state.taken.tolist() == [6, 0, 1]


def test_rejected_and_declined_clients_count_as_participating() -> None:
    """It has no weight, but took part; a client without a usable reply did not."""
    rule = EmpiricalCorrection()
    updates = replace(make_participants([0, 1], 4), declined=np.array([3]))
    state, weights = rule.weigh(
        rule.init(Population.from_size(4)), RoundPlan((0, 1, 2, 3)), updates, np.array([1.0, 0.0])
    )
    assert weights.weight.tolist() == [0.25, 0.0]
    assert state.taken.tolist() == [1, 1, 0, 1]
    assert state.rounds.tolist() == [1, 1, 1, 1]


def test_rounds_in_which_a_client_is_not_eligible_do_not_count() -> None:
    """In a warm-up of priority clients the others have no rounds."""
    rule, plan = EmpiricalCorrection(), RoundPlan((0,), epsilon=0.0, eligible=frozenset({0}))
    state = rule.init(Population.from_size(2))
    for _ in range(5):
        state, _ = rule.weigh(state, plan, make_participants([0], 2), np.ones(1))
    assert (state.rounds.tolist(), state.taken.tolist()) == ([5, 0], [5, 0])


@pytest.mark.parametrize("cap", [0, 0.5, -1, math.nan, True])
def test_impossible_caps(cap: float) -> None:
    """A number >= 1, or inf."""
    with pytest.raises(
        ParameterError, match=r"max_weight must be a number >= 1 \(inf allowed\), got"
    ):
        EmpiricalCorrection(cap)
