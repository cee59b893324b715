"""FedAU's omega: the mean interval, against an independent reference and by its properties."""

import math
from dataclasses import replace

import numpy as np
import pytest
from fedquorum.errors import ParameterError
from fedquorum.rules.participation import FedAUCorrection
from fedquorum.rules.types import Population, RoundPlan
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.builders import make_participants, weigh_rounds
from tests.reference import fedau

CUTOFFS = (1, 2, 50, math.inf)


def compute_omegas(history: NDArray[np.bool_], cutoff: float) -> list[dict[int, float]]:
    """Return omega of every round for a history (rounds, clients), all clients registered."""
    n = history.shape[1]
    given = [make_participants(np.flatnonzero(row).tolist(), n) for row in history]
    _, weights_by_round = weigh_rounds(FedAUCorrection(cutoff), given, n, asked=n)
    for updates, weights in zip(given, weights_by_round, strict=True):
        expected = [weights.omega[k] / n for k in updates.client.tolist()]
        np.testing.assert_array_equal(weights.weight, expected)
    return [dict(weights.omega) for weights in weights_by_round]


def assert_as_reference(history: NDArray[np.bool_], cutoff: float) -> None:
    omegas = compute_omegas(history, cutoff)
    for client in range(history.shape[1]):
        expected = fedau.compute_omegas(history[:, client].tolist(), cutoff)
        got = [omega[client] for omega in omegas]
        np.testing.assert_allclose(got, [float(w) for w in expected[: len(got)]], rtol=1e-12)


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_random_histories(cutoff: float) -> None:
    """300 rounds of clients with rates from 0.01 to 1: omega is the mean earlier interval."""
    rng = np.random.default_rng(0)
    rates = np.array([0.01, 0.05, 0.2, 0.5, 0.9, 1.0])
    assert_as_reference(rng.random((300, 6)) < rates, cutoff)


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_bursty_and_never_participating_histories(cutoff: float) -> None:
    """Long runs of presence and absence, a client that never takes part, and a single late one."""
    history = np.zeros((250, 4), dtype=np.bool_)
    history[:, 0] = np.arange(250) // 30 % 2 == 0
    history[:, 1] = np.arange(250) // 7 % 5 == 4
    history[240, 3] = True
    assert_as_reference(history, cutoff)


@pytest.mark.slow
@given(
    history=st.lists(st.booleans(), min_size=1, max_size=60),
    cutoff=st.one_of(st.integers(1, 20), st.just(math.inf)),
)
def test_any_history(history: list[bool], cutoff: float) -> None:
    """For any history of a client its omega equals the reference's, and is in [1, K]."""
    column = np.array(history)[:, None]
    assert_as_reference(column, cutoff)
    assert all(1 <= omega[0] <= cutoff for omega in compute_omegas(column, cutoff))


def test_a_cutoff_of_one_weighs_all_clients_equally() -> None:
    """K = 1 gives omega = 1 for all clients: the average over all."""
    history = np.random.default_rng(1).random((50, 5)) < 0.3
    assert all(set(omega.values()) == {1.0} for omega in compute_omegas(history, 1))


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_always_available_clients_have_omega_one(cutoff: float) -> None:
    """Clients that take part in every round retain omega = 1."""
    assert all(
        set(w.values()) == {1.0} for w in compute_omegas(np.ones((60, 3), dtype=np.bool_), cutoff)
    )


def test_omega_does_not_depend_on_its_round() -> None:
    """omega_t is the same for any participation in round t."""
    past = np.random.default_rng(2).random((40, 4)) < 0.4
    with_all, with_none = (
        compute_omegas(np.vstack([past, np.full((1, 4), last)]), math.inf) for last in (True, False)
    )
    assert with_all[-1] == with_none[-1]


@pytest.mark.slow
def test_omega_estimates_one_over_p() -> None:
    """After 20,000 rounds the mean interval is within 5 standard errors of 1 / p."""
    rates = np.array([0.05, 0.3, 0.8])
    rounds = 20_000
    history = np.random.default_rng(3).random((rounds, 3)) < rates
    last = compute_omegas(history, math.inf)[-1]
    for client, p in enumerate(rates.tolist()):
        error = math.sqrt((1 - p) / p**2 / (rounds * p))
        assert abs(last[client] - 1 / p) < 5 * error


def test_a_late_client_starts_when_it_registers() -> None:
    """N is the number of registered clients; a newcomer's interval starts with its first round."""
    rule = FedAUCorrection()
    state = rule.init(Population.from_size(3))
    plan = RoundPlan((0, 1, 2))
    for _ in range(5):
        state, weights = rule.weigh(state, plan, make_participants([0], known=2), np.ones(1))
        assert weights.weight.tolist() == [1 / 2]
        assert weights.omega.keys() == {0, 1}
    state, weights = rule.weigh(state, plan, make_participants([0, 2], known=3), np.ones(2))
    assert weights.weight.tolist() == [1 / 3, 1 / 3]
    state, _ = rule.weigh(state, plan, make_participants([], known=3), np.ones(0))
    assert state.intervals.tolist() == [6, 0, 1]
    assert state.rounds.tolist() == [1, 7, 1]
    assert state.omega.tolist() == [1.0, 1.0, 1.0]


def test_the_order_in_which_clients_are_listed_changes_nothing() -> None:
    """A population in any order weights each client by its history."""
    rule = FedAUCorrection()
    state = rule.init(Population((2, 0, 1), frozenset({0, 1, 2})))
    plan = RoundPlan((0, 1, 2))
    for present in ([0], [0], [0, 2]):
        state, _ = rule.weigh(state, plan, make_participants(present, 3), np.ones(len(present)))
    _, weights = rule.weigh(state, plan, make_participants([0, 2], 3), np.ones(2))
    assert weights.omega == {0: 1.0, 1: 1.0, 2: 3.0}
    assert weights.weight.tolist() == [1 / 3, 1.0]


def test_rejected_and_declined_clients_count_as_participating() -> None:
    """It has no weight, but its interval ends: omega corrects for absence alone."""
    rule = FedAUCorrection()
    updates = replace(make_participants([0, 1], 4), declined=np.array([3]))
    state, weights = rule.weigh(
        rule.init(Population.from_size(4)), RoundPlan((0, 1, 2, 3)), updates, np.array([1.0, 0.0])
    )
    assert weights.weight.tolist() == [0.25, 0.0]
    assert state.rounds.tolist() == [0, 0, 1, 0]


def test_rounds_in_which_a_client_is_not_eligible_do_not_count() -> None:
    """In a warm-up of priority clients the intervals of the others do not get longer."""
    rule = FedAUCorrection()
    plan = RoundPlan((0,), epsilon=0.0, eligible=frozenset({0}))
    state = rule.init(Population.from_size(2))
    for _ in range(5):
        state, _ = rule.weigh(state, plan, make_participants([0], 2), np.ones(1))
    assert state.intervals.tolist() == [5, 0]
    assert state.rounds.tolist() == [0, 0]


@pytest.mark.parametrize("cutoff", [0, -1, 1.5, math.nan, True])
def test_impossible_cutoffs(cutoff: float) -> None:
    """K is a whole number >= 1, or inf."""
    with pytest.raises(ParameterError, match="cutoff must be a whole number >= 1, or inf, got"):
        FedAUCorrection(cutoff)
