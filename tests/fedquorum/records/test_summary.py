"""Tests of a run's summary and its state in a checkpoint."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import StateError
from fedquorum.records import summary as regret
from fedquorum.records.summary import RunSummary
from fedquorum.rules.regret import Bound
from fedquorum.rules.types import FloatArray
from numpy.typing import NDArray

from tests.fedquorum.records.made import make_round_record, report


def make_summary() -> RunSummary:
    """Return the summary of two rounds."""
    summary = RunSummary(lambda _decisions, _clients: None)
    for number in (1, 2):
        summary.add_round(make_round_record(report(number)), report(number))
    return summary


def test_a_summary_is_restored_from_its_state() -> None:
    """The restored summary equals the original one."""
    restored = RunSummary(lambda _decisions, _clients: None)
    restored.restore(make_summary().to_arrays())
    assert restored.to_json() == make_summary().to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"empty": np.zeros(2)},
        {"admitted": np.zeros(3)},
        {"masses": np.array(1.0)},
        {"thetas": np.array(["x"])},
        {"decision_losses": np.ones(3)},
        {"decision_losses": np.ones(3), "responses": np.ones(3)},
    ],
)
def test_an_invalid_state_is_refused(changes: dict[str, NDArray[Any]]) -> None:
    """A forged checkpoint may contain one."""
    state = make_summary().to_arrays()
    with pytest.raises(StateError):
        make_summary().restore({**state, **changes})
    for name in state:
        with pytest.raises(StateError, match=f"cannot be restored: '{name}'"):
            make_summary().restore({key: array for key, array in state.items() if key != name})


SIZE, SAMPLED, ROUNDS = 3_000, 10, 6


def make_estimates() -> list[FloatArray]:
    """Return a rule's estimates for all clients from a few sampled ones, by round."""
    rng = np.random.default_rng(3)
    estimates = []
    for _ in range(ROUNDS):
        response = rng.random(SAMPLED) * SAMPLED / SIZE
        estimate = np.full(SIZE, response.mean())
        sampled = rng.choice(SIZE, SAMPLED, replace=False)
        estimate[sampled] += (response - response.mean()) * SIZE / SAMPLED
        estimates.append(estimate)
    return estimates


def summarize_estimates(estimates: Sequence[FloatArray] | None = None) -> RunSummary:
    """Return the summary of rounds with mixing decisions, by default over many clients."""
    summary = RunSummary(lambda _decisions, _clients: Bound(1.0, is_proven=True))
    for number, estimate in enumerate(estimates or make_estimates(), 1):
        decided = replace(report(number), decision_loss=-0.1 * number, estimate=estimate)
        summary.add_round(make_round_record(decided), decided)
    return summary


def test_a_checkpoint_grows_with_the_clients_sampled() -> None:
    """Its size does not depend on the number of all clients, and it restores the summary."""
    state = summarize_estimates().to_arrays()
    assert sum(array.nbytes for array in state.values()) < 40 * ROUNDS * (SAMPLED + 10)
    restored = RunSummary(lambda _decisions, _clients: Bound(1.0, is_proven=True))
    restored.restore(state)
    assert restored.to_json() == summarize_estimates().to_json()


def test_clients_never_sampled_share_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regret is that of a table with all columns."""
    expected = summarize_estimates().to_json()["mixing"]
    monkeypatch.setattr(regret, "MAX_TABLE_SIZE", SIZE)
    found = summarize_estimates().to_json()["mixing"]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found["regret"] is not None


def test_each_client_has_a_column_if_all_were_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table has no shared column then."""
    estimates = list(np.random.default_rng(5).random((ROUNDS, 4)))
    expected = summarize_estimates(estimates).to_json()["mixing"]
    monkeypatch.setattr(regret, "MAX_TABLE_SIZE", 1)
    assert summarize_estimates(estimates).to_json()["mixing"] == pytest.approx(expected, rel=1e-9)
    assert expected["regret"] is not None


def test_a_regret_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of the losses and the bound are still recorded."""
    expected = summarize_estimates().to_json()["mixing"]
    monkeypatch.setattr(regret, "MAX_WORK", ROUNDS * SIZE * ROUNDS - 1)
    assert summarize_estimates().to_json()["mixing"] == {**expected, "regret": None}


@pytest.mark.parametrize("client", [-1, SIZE])
def test_estimates_of_unknown_clients_are_refused(client: int) -> None:
    """A forged checkpoint may contain them."""
    state = summarize_estimates().to_arrays()
    clients = state["responses.places"].copy()
    clients[0] = client
    with pytest.raises(StateError, match="must be those of clients"):
        make_summary().restore({**state, "responses.places": clients})
