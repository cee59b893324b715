"""A strategy's state between rounds, as named arrays and back."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fedquorum.contrib import PowerOfChoice
from fedquorum.errors import StateError
from fedquorum.rules.composition import RuleSet
from fedquorum.rules.decisions import ClientEvaluation
from fedquorum.rules.round import RoundState
from fedquorum.rules.server_optimizer import Adam
from fedquorum.rules.state_arrays import StateArrays
from fedquorum.rules.types import ClientReports, Objective, Population
from fedquorum.rules.weighting import AverageAll
from fedquorum.server.state import ServerState
from fedquorum.server.virtual_clock import Clock, PendingReply
from numpy.typing import NDArray

POPULATION = Population((0, 1, 2, 3), frozenset({0, 2}), {2: 0.25})
MODEL = {"w": np.arange(3.0)}
RULES = RuleSet(PowerOfChoice(), AverageAll(), Adam())


def make_evaluation(client: int, weight: float) -> ClientEvaluation:
    """Return a client's last evaluation of the objective."""
    nan = math.nan
    return ClientEvaluation(client, weight, 10.0, 0.5, 0.75, nan, nan, nan)


FULL = ServerState(
    RoundState(
        None,
        np.array([1.0, 0.0, 0.25, 1.0]),
        ClientReports({0: 5.0, 3: 7.0}, losses={3: 2.0}, evaluated_losses={0: 1.0, 2: 0.5}),
    ),
    RULES.server_optimizer.init(MODEL),
    Objective(1.5, 0.25, (2,), (0, 3)),
    {0: make_evaluation(0, 1.0), 2: make_evaluation(2, 0.25)},
    Clock(12.5, (PendingReply(3, 1, 10.0, 4.0), PendingReply(4, 2, 11.0, 2.5))),
    0.125,
    update_sizes={"w": 0.75},
)
"""A state with every optional part, including some that these rules do not use."""


def to_arrays(state: ServerState) -> StateArrays:
    """Return a state as arrays, with three registered clients."""
    return state.to_arrays(RULES, None, np.arange(3))


def restore(arrays: StateArrays) -> ServerState:
    """Return the state that arrays describe."""
    return ServerState.from_arrays(arrays, RULES, POPULATION, MODEL)


@pytest.mark.parametrize("state", [ServerState.initial(RULES, POPULATION), FULL])
def test_a_state_is_restored_unchanged(state: ServerState) -> None:
    """Everything for the next round: pending replies, evaluations, and reports."""
    arrays = to_arrays(state)
    restored = restore(arrays)
    for name in ("objective", "last_evaluations", "clock", "clipping_norm", "update_sizes"):
        assert getattr(restored, name) == getattr(state, name)
    assert restored.round_state.reports == state.round_state.reports
    assert (restored.optimizer is None) == (state.optimizer is None)
    saved = to_arrays(restored)
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(saved[name], array, strict=True)


def test_unused_parts_of_the_state_have_no_arrays() -> None:
    """Such as a virtual clock, a clipping norm or evaluations."""
    assert to_arrays(ServerState.initial(RULES, POPULATION)).keys() == {
        *("reports.client", "reports.loss", "ahead.client", "ahead.loss"),
        *("examples.client", "examples.data", "known"),
    }
    without_late_replies = replace(FULL, clock=Clock(3.0))
    assert restore(to_arrays(without_late_replies)).clock == Clock(3.0)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("clock.now", np.zeros(1)),
        ("clock.replies", np.zeros((2, 3))),
        ("measured.values", np.zeros((2, 2))),
        ("covered", np.zeros(3)),
        ("measure", np.zeros(3)),
        ("reports.loss", np.zeros(2)),
    ],
)
def test_a_state_of_other_rules_is_refused(name: str, array: NDArray[Any]) -> None:
    """The error names the array that does not fit."""
    with pytest.raises(StateError, match=f"^'{name}' is float64 of shape "):
        restore({**to_arrays(FULL), name: array})
