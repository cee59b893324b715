"""FedAU's weights and the baselines', against references and by their expectations."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from strategies import KnownStatistics
from strategies.memory import UpdateMemory
from strategies.parameters import ParameterError
from strategies.types import Call, FloatArray, Population, Responses
from strategies.weighting import AverageAll, AverageParticipating, FedAU, KnownRates
from tests.reference import fedau

CUTOFFS = (1, 2, 50, math.inf)


def population(n: int) -> Population:
    return Population(tuple(range(n)), frozenset(range(n)))


def took_part(clients: Sequence[int], known: int) -> Responses:
    n = len(clients)
    return Responses(
        client=np.array(clients, dtype=np.int64),
        priority_weight=np.ones(n),
        num_examples=np.full(n, 10.0),
        loss=np.full(n, math.nan),
        accuracy=np.full(n, math.nan),
        known=np.arange(known),
    )


def play(history: NDArray[np.bool_], cutoff: float) -> list[dict[int, float]]:
    """Return omega of every round for a history (rounds, clients), all clients known."""
    rule = FedAU(cutoff)
    n = history.shape[1]
    state, seen = rule.init(population(n)), []
    for row in history:
        present = np.flatnonzero(row)
        state, weights = rule.weigh(
            state, Call(tuple(range(n))), took_part(present.tolist(), n), np.ones(len(present))
        )
        np.testing.assert_array_equal(
            weights.weight, [weights.omega[k] * (1 / n) for k in present.tolist()]
        )
        seen.append(dict(weights.omega))
    return seen


def assert_as_reference(history: NDArray[np.bool_], cutoff: float) -> None:
    seen = play(history, cutoff)
    for client in range(history.shape[1]):
        expected = fedau.omegas(history[:, client].tolist(), cutoff)
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
    assert all(1 <= omega[0] <= cutoff for omega in play(column, cutoff))


def test_a_cutoff_of_one_weighs_all_alike() -> None:
    """K = 1 gives omega = 1 to everyone: the average over all."""
    history = np.random.default_rng(1).random((50, 5)) < 0.3
    assert all(set(omega.values()) == {1.0} for omega in play(history, 1))


@pytest.mark.parametrize("cutoff", CUTOFFS)
def test_who_is_always_there_weighs_one(cutoff: float) -> None:
    """Clients that take part in every round keep omega = 1."""
    assert all(set(w.values()) == {1.0} for w in play(np.ones((60, 3), dtype=np.bool_), cutoff))


def test_a_round_does_not_weigh_itself() -> None:
    """omega_t is the same whoever takes part in round t: no look into the present."""
    past = np.random.default_rng(2).random((40, 4)) < 0.4
    with_all, with_none = (
        play(np.vstack([past, np.full((1, 4), last)]), math.inf) for last in (True, False)
    )
    assert with_all[-1] == with_none[-1]


def test_omega_estimates_one_over_p() -> None:
    """After 20,000 rounds the mean interval is within 5 standard errors of 1 / p."""
    rates = np.array([0.05, 0.3, 0.8])
    rounds = 20_000
    history = np.random.default_rng(3).random((rounds, 3)) < rates
    last = play(history, math.inf)[-1]
    for client, p in enumerate(rates.tolist()):
        error = math.sqrt((1 - p) / p**2 / (rounds * p))
        assert abs(last[client] - 1 / p) < 5 * error


def test_a_late_client_starts_when_it_is_first_known() -> None:
    """N is the number of known clients, and a newcomer's interval begins with its first round."""
    rule = FedAU()
    state = rule.init(population(3))
    call = Call((0, 1, 2))
    for _ in range(5):
        state, weights = rule.weigh(state, call, took_part([0], known=2), np.ones(1))
        assert weights.weight.tolist() == [1 / 2]
        assert weights.omega.keys() == {0, 1}
    state, weights = rule.weigh(state, call, took_part([0, 2], known=3), np.ones(2))
    assert weights.weight.tolist() == [1 / 3, 1 / 3]
    state, _ = rule.weigh(state, call, took_part([], known=3), np.ones(0))
    assert state.intervals.tolist() == [6, 0, 1]
    assert state.rounds.tolist() == [1, 7, 1]
    assert state.omega.tolist() == [1.0, 1.0, 1.0]


def test_the_order_in_which_clients_are_listed_changes_nothing() -> None:
    """A population given in any order weighs each client by its own history."""
    rule = FedAU()
    state = rule.init(Population((2, 0, 1), frozenset({0, 1, 2})))
    call = Call((0, 1, 2))
    for present in ([0], [0], [0, 2]):
        state, _ = rule.weigh(state, call, took_part(present, 3), np.ones(len(present)))
    _, weights = rule.weigh(state, call, took_part([0, 2], 3), np.ones(2))
    assert weights.omega == {0: 1.0, 1: 1.0, 2: 3.0}
    assert weights.weight.tolist() == [1 / 3, 1.0]


def test_who_was_refused_or_silent_was_there() -> None:
    """It has no weight, but its interval ends: omega makes up for being away alone."""
    rule = FedAU()
    answered = replace(took_part([0, 1], 4), silent=np.array([3]))
    state, weights = rule.weigh(
        rule.init(population(4)), Call((0, 1, 2, 3)), answered, np.array([1.0, 0.0])
    )
    assert weights.weight.tolist() == [0.25, 0.0]
    assert state.rounds.tolist() == [0, 0, 1, 0]


def test_rounds_in_which_a_client_cannot_be_asked_are_none_of_its_rounds() -> None:
    """In a warm-up of priority clients the intervals of the others do not grow."""
    rule = FedAU()
    call = Call((0,), epsilon=0.0, pool=frozenset({0}))
    state = rule.init(population(2))
    for _ in range(5):
        state, _ = rule.weigh(state, call, took_part([0], 2), np.ones(1))
    assert state.intervals.tolist() == [5, 0]
    assert state.rounds.tolist() == [0, 0]


@pytest.mark.parametrize("cutoff", [0, -1, 1.5, math.nan, True])
def test_impossible_cutoffs(cutoff: float) -> None:
    """K is a whole number >= 1, or inf."""
    with pytest.raises(ParameterError, match="cutoff must be a whole number >= 1, or inf, got"):
        FedAU(cutoff)


# --- the averages ------------------------------------------------------------------------------


def expected_weight(
    rule: AverageAll | AverageParticipating | KnownRates, p: FloatArray
) -> FloatArray:
    """Return N E[c_n 1{n takes part}] over all 2^N outcomes, exactly."""
    n = len(p)
    total = np.zeros(n)
    for outcome in range(2**n):
        present = [k for k in range(n) if outcome >> k & 1]
        probability = math.prod(p[k] if k in present else 1 - p[k] for k in range(n))
        _, weights = rule.weigh(None, Call(()), took_part(present, n), np.ones(len(present)))
        total[present] += probability * n * weights.weight
    return total


def test_known_statistics_is_unbiased() -> None:
    """Every client counts alike in expectation; the averages favour those often there."""
    p = np.array([0.02, 0.1, 0.5, 0.9, 1.0])
    known = KnownRates(dict(enumerate((1 / p).tolist())))
    np.testing.assert_allclose(expected_weight(known, p), np.ones(5), rtol=1e-12)
    np.testing.assert_allclose(expected_weight(AverageAll(), p), p, rtol=1e-12)
    participating = expected_weight(AverageParticipating(), p)
    assert np.all(np.diff(participating) > 0)
    assert participating[0] < 0.05


def test_nobody_there_weighs_nothing() -> None:
    """An empty round has no weights and divides by nothing."""
    for rule in (AverageAll(), AverageParticipating()):
        _, weights = rule.weigh(None, Call(()), took_part([], 0), np.ones(0))
        assert weights.weight.shape == (0,)


def test_known_statistics_needs_every_client() -> None:
    """A client without p_n, or with 0, is refused by name."""
    with pytest.raises(ParameterError, match=r"probabilities\[1\] must be a number"):
        KnownStatistics(population(2), probabilities={0: 0.5})
    with pytest.raises(ParameterError, match=r"probabilities\[0\] must be .*got 0"):
        KnownStatistics(population(2), probabilities={0: 0.0, 1: 1.0})


# --- FedVarp's and MIFA's memory -------------------------------------------------------------


MODEL: dict[str, NDArray[Any]] = {
    "w": np.array([1.0, -1.0], dtype=np.float32),
    "n": np.array(3, dtype=np.int64),
}


def moved(by: float) -> dict[str, NDArray[Any]]:
    return {"w": MODEL["w"] + np.float32(by), "n": np.array(3 + int(by), dtype=np.int64)}


@pytest.mark.parametrize("on_disk", [False, True])
def test_memory_by_hand(tmp_path: Path, on_disk: bool) -> None:
    """step = sum c_n (Delta_n - y_n) + mean y, then y_n <- Delta_n; in files as in memory."""
    memory = UpdateMemory(range(4), MODEL, tmp_path / "y" if on_disk else None)
    first = memory.step(MODEL, [(0, 0.5, moved(2)), (2, 0.5, moved(4))], 4)
    np.testing.assert_allclose(first["w"], [3.0, 3.0])
    assert first["n"] == 3.0
    # mean y = (2 + 4) / 4 = 1.5; client 2 again: 1 * (10 - 4) + 1.5
    second = memory.step(MODEL, [(2, 1.0, moved(10))], 4)
    np.testing.assert_allclose(second["w"], [7.5, 7.5])
    third = memory.step(MODEL, [], 4)
    np.testing.assert_allclose(third["w"], [3.0, 3.0])  # (2 + 10) / 4
    assert memory.nbytes == 4 * (2 * 4 + 8) + (2 * 8 + 8)
    assert (
        len(list((tmp_path / "y").glob("*.npy"))) == 2 if on_disk else not list(tmp_path.iterdir())
    )


def test_mifa_is_the_mean_of_all_last_updates() -> None:
    """With c_n = 1 / N the step is the mean of the new memory, over any history."""
    rng = np.random.default_rng(4)
    n, memory = 5, UpdateMemory(range(5), {"w": np.zeros(3)})
    last = np.zeros((n, 3))
    for _ in range(30):
        present = np.flatnonzero(rng.random(n) < 0.4).tolist()
        model = {"w": rng.normal(size=3)}
        updates = rng.normal(size=(n, 3))
        step = memory.step(model, [(k, 1 / n, {"w": model["w"] + updates[k]}) for k in present], n)
        last[present] = updates[present]
        np.testing.assert_allclose(step["w"], last.mean(axis=0), atol=1e-12)


def test_fedvarp_with_everyone_is_the_average() -> None:
    """Full participation leaves no variance to reduce: the step is the mean update."""
    rng = np.random.default_rng(5)
    memory = UpdateMemory(range(3), {"w": np.zeros(2)})
    for _ in range(4):
        updates = rng.normal(size=(3, 2))
        step = memory.step({"w": np.zeros(2)}, [(k, 1 / 3, {"w": updates[k]}) for k in range(3)], 3)
        np.testing.assert_allclose(step["w"], updates.mean(axis=0), atol=1e-12)
