"""The diagnostics of a whole run, as a checkpoint keeps them."""

from typing import Any

import numpy as np
import pytest
from fedquorum.errors import StateError
from fedquorum.records.summary import Summary
from numpy.typing import NDArray

from tests.fedquorum.records.made import recorded, report


def summary() -> Summary:
    """Return the summary of two rounds."""
    made = Summary(lambda _decisions, _clients: None)
    for number in (1, 2):
        made.add(recorded(report(number)), report(number))
    return made


def test_it_goes_on_from_its_state() -> None:
    """As if it had never stopped."""
    again = Summary(lambda _decisions, _clients: None)
    again.restore(summary().state())
    assert again.as_dict() == summary().as_dict()


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
    state = summary().state()
    with pytest.raises(StateError):
        summary().restore({**state, **changes})
    for name in state:
        with pytest.raises(StateError, match=f"cannot go on: '{name}'"):
            summary().restore({key: array for key, array in state.items() if key != name})
