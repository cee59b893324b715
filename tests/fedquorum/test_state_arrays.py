"""States of rules as named arrays."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import StateError
from fedquorum.state_arrays import expand_state, from_arrays, to_arrays
from fedquorum.weighting.aaggff_d import AAggFFDState
from numpy.typing import NDArray


@dataclass(frozen=True)
class Nested:
    """A state with a bit of everything."""

    inner: AAggFFDState
    velocity: dict[str, NDArray[Any]]
    nothing: None
    on: bool


def make_nested_state(factor: float) -> Nested:
    inner = AAggFFDState(
        np.arange(3), np.full(3, 0.1 * factor), np.full(3, factor / 3), int(factor), factor / 7
    )
    return Nested(inner, {"layer.w": np.full((2, 2), factor, dtype=np.float32)}, None, factor > 1)


def test_a_state_comes_back_as_it_was() -> None:
    """Values, types, shapes and dtypes, to the last bit, at any depth."""
    arrays = to_arrays(make_nested_state(3.0), "weighting")
    assert sorted(arrays) == [
        "weighting.inner.client",
        "weighting.inner.gradient",
        "weighting.inner.mixing",
        "weighting.inner.rbar_sum",
        "weighting.inner.rounds",
        "weighting.on",
        "weighting.velocity.layer.w",
    ]
    again = from_arrays(make_nested_state(1.0), "weighting", arrays)
    assert (type(again.inner.rounds), again.inner.rounds, again.on) == (int, 3, True)
    assert again.inner.rbar_sum == 3.0 / 7
    assert again.nothing is None
    restored = to_arrays(again, "weighting")
    assert all(restored[name].tobytes() == array.tobytes() for name, array in arrays.items())


def test_a_restored_array_is_a_copy() -> None:
    """What the rule does with its state does not change what was written down."""
    arrays = to_arrays(np.zeros(2), "weighting")
    from_arrays(np.ones(2), "weighting", arrays)[0] = 5.0
    assert arrays["weighting"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({}, "'w' is missing"),
        ({"w": np.zeros(3)}, r"'w' is float64 of shape \(3,\), expected float64 of \(2,\)"),
        ({"w": np.zeros(2, dtype=np.int64)}, "'w' is int64"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(arrays: dict[str, Any], told: str) -> None:
    """The array that is missing or different is named."""
    with pytest.raises(StateError, match=told):
        from_arrays(np.zeros(2), "w", arrays)


def test_what_cannot_be_written_down_is_refused() -> None:
    """A state of objects is a mistake of the rule, shown at the first checkpoint."""
    with pytest.raises(StateError, match=r"'w\.x' is a set, which cannot be written down"):
        to_arrays({"x": {1, 2}}, "w")


def test_only_what_is_of_the_clients_grows() -> None:
    """One number for all, or arrays of another length, are no client's and stay as they were."""
    state = {"each": np.array([1.0, 2.0]), "all": np.array(5.0), "classes": np.ones(4), "t": 3}
    fresh = {"each": np.zeros(3), "all": np.array(0.0), "classes": np.zeros(4), "t": 0}
    places = np.array([0, 2])
    larger = {name: expand_state(part, fresh[name], 2, places) for name, part in state.items()}
    assert {name: np.asarray(part).tolist() for name, part in larger.items()} == {
        "each": [1.0, 0.0, 2.0],
        "all": 5.0,
        "classes": [1.0] * 4,
        "t": 3,
    }


def test_what_is_as_long_as_there_are_clients_may_be_no_clients() -> None:
    """A newcomer's entry is in the state before its first round, or there is none."""
    classes = np.array([1.0, 2.0])
    assert expand_state(classes, np.zeros(2), 2, np.array([0, 2])) is classes


def test_every_axis_of_clients_grows() -> None:
    """Of a matrix of clients by clients, of classes by clients, and of a mapping's parts."""
    places = np.array([1, 2])
    pairs = expand_state(np.array([[1.0, 2.0], [3.0, 4.0]]), 9.0 * np.eye(3), 2, places)
    assert pairs.tolist() == [[9.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 3.0, 4.0]]
    by_class = expand_state(np.ones((4, 2)), np.zeros((4, 3)), 2, places)
    assert by_class.tolist() == [[0.0, 1.0, 1.0]] * 4
    mapped = expand_state({"0": 5, "p": np.ones(2)}, {"0": 0, "1": 7, "p": np.zeros(3)}, 2, places)
    assert mapped.keys() == {"0", "1", "p"}
    assert (mapped["0"], mapped["1"], mapped["p"].tolist()) == (5, 7, [0.0, 1.0, 1.0])
