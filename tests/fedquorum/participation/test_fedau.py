"""FedAU's omega: the mean interval, against an independent reference and by what it promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.participation import FedAUCorrection
from fedquorum.types import Population, RoundPlan
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.builders import make_participants, weigh_rounds
from tests.reference import fedau

CUTOFFS = (1, 2, 50, math.inf)


def omegas(history: NDArray[np.bool_], cutoff: float) -> list[dict[int, float]]:
    """Return omega of every round for a history (rounds, clients), all clients known."""
    n = history.shape[1]
    given = [make_participants(np.flatnonzero(row).tolist(), n) for row in history]
    _, told = weigh_rounds(FedAUCorrection(cutoff), given, n, asked=n)
    for responses, weights in zip(given, told, strict=True):
        expected = [weights.omega[k] / n for k in responses.client.tolist()]
        np.testing.assert_array_equal(weights.weight, expected)
    return [dict(weights.omega) for weights in told]


def assert_as_reference(history: NDArray[np.bool_], cutoff: float) -> None:
    seen = omegas(history, cutoff)
    for client in range(history.shape[1]):
        expected = fedau.compute_omegas(history[:, client].tolist(), cutoff)
        got = [omega[client] for omega in seen]
        np.testing.assert_allclose(got, [float(w) for w in expected[: len(got)]], rtol=1e-12)


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_random_histories(cutoff: float) -> None:
    """300 rounds of clients with rates from 0.01 to 1: omega is the mean interval before."""
    rng = np.random.default_rng(0)
    rates = np.array([0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
    assert_as_reference(rng.random((300, 6)) < rates, cutoff)


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_bursty_and_never_participating_histories(cutoff: float) -> None:
    """Long runs of presence and absence, one who never comes and one who comes once, late."""
    history = np.zeros((250, 4), dtype=np.bool_)
    history[:, 0] = np.arange(250) // 30 % 2 == 0
    history[:, 1] = np.arange(250) // 7 % 5 == 4
    history[240, 3] = True
    assert_as_reference(history, cutoff)


@given(
    history=st.lists(st.booleans(), min_size=1, max_size=60),
    cutoff=st.one_of(st.integers(1, 20), st.just(math.inf)),
)
def test_any_history(history: list[bool], cutoff: float) -> None:
    """Whatever a client does, its omega is the reference's, and in [1, K]."""
    column = np.array(history)[:, None]
    assert_as_reference(column, cutoff)
    assert all(1 <= omega[0] <= cutoff for omega in omegas(column, cutoff))


def test_a_cutoff_of_one_weighs_all_clients_equally() -> None:
    """K = 1 gives omega = 1 to everyone: the average over all."""
    history = np.random.default_rng(1).random((50, 5)) < 0.3
    assert all(set(omega.values()) == {1.0} for omega in omegas(history, 1))


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_who_is_always_there_weighs_one(cutoff: float) -> None:
    """Clients that take part in every round keep omega = 1."""
    assert all(set(w.values()) == {1.0} for w in omegas(np.ones((60, 3), dtype=np.bool_), cutoff))


def test_a_round_does_not_weigh_itself() -> None:
    """omega_t is the same whoever takes part in round t: no look into the present."""
    past = np.random.default_rng(2).random((40, 4)) < 0.4
    with_all, with_none = (
        omegas(np.vstack([past, np.full((1, 4), last)]), math.inf) for last in (True, False)
    )
    assert with_all[-1] == with_none[-1]


@pytest.mark.slow
def test_omega_estimates_one_over_p() -> None:
    """After 20,000 rounds the mean interval is within 5 standard errors of 1 / p."""
    rates = np.array([0.05, 0.3, 0.8])
    rounds = 20_000
    history = np.random.default_rng(3).random((rounds, 3)) < rates
    last = omegas(history, math.inf)[-1]
    for client, p in enumerate(rates.tolist()):
        error = math.sqrt((1 - p) / p**2 / (rounds * p))
        assert abs(last[client] - 1 / p) < 5 * error


def test_a_late_client_starts_when_it_registers() -> None:
    """N is the number of known clients, and a newcomer's interval begins with its first round."""
    rule = FedAUCorrection()
    state = rule.init(Population.from_size(3))
    call = RoundPlan((0, 1, 2))
    for _ in range(5):
        state, weights = rule.weigh(state, call, make_participants([0], known=2), np.ones(1))
        assert weights.weight.tolist() == [1 / 2]
        assert weights.omega.keys() == {0, 1}
    state, weights = rule.weigh(state, call, make_participants([0, 2], known=3), np.ones(2))
    assert weights.weight.tolist() == [1 / 3, 1 / 3]
    state, _ = rule.weigh(state, call, make_participants([], known=3), np.ones(0))
    assert state.intervals.tolist() == [6, 0, 1]
    assert state.rounds.tolist() == [1, 7, 1]
    assert state.omega.tolist() == [1.0, 1.0, 1.0]


def test_the_order_in_which_clients_are_listed_changes_nothing() -> None:
    """A population given in any order weighs each client by its own history."""
    rule = FedAUCorrection()
    state = rule.init(Population((2, 0, 1), frozenset({0, 1, 2})))
    call = RoundPlan((0, 1, 2))
    for present in ([0], [0], [0, 2]):
        state, _ = rule.weigh(state, call, make_participants(present, 3), np.ones(len(present)))
    _, weights = rule.weigh(state, call, make_participants([0, 2], 3), np.ones(2))
    assert weights.omega == {0: 1.0, 1: 1.0, 2: 3.0}
    assert weights.weight.tolist() == [1 / 3, 1.0]


def test_rejected_and_declined_clients_count_as_participating() -> None:
    """It has no weight, but its interval ends: omega makes up for being away alone."""
    rule = FedAUCorrection()
    answered = replace(make_participants([0, 1], 4), declined=np.array([3]))
    state, weights = rule.weigh(
        rule.init(Population.from_size(4)), RoundPlan((0, 1, 2, 3)), answered, np.array([1.0, 0.0])
    )
    assert weights.weight.tolist() == [0.25, 0.0]
    assert state.rounds.tolist() == [0, 0, 1, 0]


def test_rounds_in_which_a_client_is_not_eligible_do_not_count() -> None:
    """In a warm-up of priority clients the intervals of the others do not grow."""
    rule = FedAUCorrection()
    call = RoundPlan((0,), epsilon=0.0, eligible=frozenset({0}))
    state = rule.init(Population.from_size(2))
    for _ in range(5):
        state, _ = rule.weigh(state, call, make_participants([0], 2), np.ones(1))
    assert state.intervals.tolist() == [5, 0]
    assert state.rounds.tolist() == [0, 0]


@pytest.mark.parametrize("cutoff", [0, -1, 1.5, math.nan, True])
def test_impossible_cutoffs(cutoff: float) -> None:
    """K is a whole number >= 1, or inf."""
    with pytest.raises(ParameterError, match="cutoff must be a whole number >= 1, or inf, got"):
        FedAUCorrection(cutoff)
