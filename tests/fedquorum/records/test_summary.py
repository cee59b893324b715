"""The diagnostics of a whole run, as a checkpoint keeps them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import StateError
from fedquorum.records import regret
from fedquorum.records.summary import RunSummary
from fedquorum.regret import Bound
from fedquorum.types import FloatArray
from numpy.typing import NDArray

from tests.fedquorum.records.made import make_round_record, report


def summary() -> RunSummary:
    """Return the summary of two rounds."""
    made = RunSummary(lambda _decisions, _clients: None)
    for number in (1, 2):
        made.add_round(make_round_record(report(number)), report(number))
    return made


def test_a_summary_resumes_from_its_state() -> None:
    """As if it had never stopped."""
    again = RunSummary(lambda _decisions, _clients: None)
    again.restore(summary().to_arrays())
    assert again.to_json() == summary().to_json()


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
def test_what_is_no_state_is_refused(changes: dict[str, NDArray[Any]]) -> None:
    """As in a checkpoint that somebody wrote."""
    state = summary().to_arrays()
    with pytest.raises(StateError):
        summary().restore({**state, **changes})
    for name in state:
        with pytest.raises(StateError, match=f"cannot go on: '{name}'"):
            summary().restore({key: array for key, array in state.items() if key != name})


SIZE, SAMPLED, ROUNDS = 3_000, 10, 6


def estimates() -> list[FloatArray]:
    """Return what a rule estimates of all clients from a few, round by round."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(ROUNDS):
        response = rng.random(SAMPLED) * SAMPLED / SIZE
        estimate = np.full(SIZE, response.mean())
        places = rng.choice(SIZE, SAMPLED, replace=False)
        estimate[places] += (response - response.mean()) * SIZE / SAMPLED
        found.append(estimate)
    return found


def of_decisions(given: Sequence[FloatArray] | None = None) -> RunSummary:
    """Return the summary of rounds in which p was decided, by default of many clients."""
    made = RunSummary(lambda _decisions, _clients: Bound(1.0, is_proven=True))
    for number, estimate in enumerate(given or estimates(), 1):
        decided = replace(report(number), decision_loss=-0.1 * number, estimate=estimate)
        made.add_round(make_round_record(decided), decided)
    return made


def test_a_checkpoint_grows_with_the_clients_sampled() -> None:
    """Not with those that there are, and goes on alike."""
    state = of_decisions().to_arrays()
    assert sum(array.nbytes for array in state.values()) < 40 * ROUNDS * (SAMPLED + 10)
    again = RunSummary(lambda _decisions, _clients: Bound(1.0, is_proven=True))
    again.restore(state)
    assert again.to_json() == of_decisions().to_json()


def test_clients_that_were_never_sampled_are_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regret is that of all of them."""
    expected = of_decisions().to_json()["mixing"]
    monkeypatch.setattr(regret, "MAX_TABLE_SIZE", SIZE)
    found = of_decisions().to_json()["mixing"]
    assert found == pytest.approx(expected, rel=1e-9)
    assert found["regret"] is not None


def test_where_all_were_sampled_each_has_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large table, too: no client is like another one."""
    given = list(np.random.default_rng(5).random((ROUNDS, 4)))
    expected = of_decisions(given).to_json()["mixing"]
    monkeypatch.setattr(regret, "MAX_TABLE_SIZE", 1)
    assert of_decisions(given).to_json()["mixing"] == pytest.approx(expected, rel=1e-9)
    assert expected["regret"] is not None


def test_a_regret_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses that were summed and the bound are there nevertheless."""
    expected = of_decisions().to_json()["mixing"]
    monkeypatch.setattr(regret, "MAX_WORK", ROUNDS * SIZE * ROUNDS - 1)
    assert of_decisions().to_json()["mixing"] == {**expected, "regret": None}


@pytest.mark.parametrize("place", [-1, SIZE])
def test_estimates_of_nobody_are_refused(place: int) -> None:
    """As in a checkpoint that somebody wrote."""
    state = of_decisions().to_arrays()
    places = state["responses.places"].copy()
    places[0] = place
    with pytest.raises(StateError, match="must be those of clients"):
        summary().restore({**state, "responses.places": places})
