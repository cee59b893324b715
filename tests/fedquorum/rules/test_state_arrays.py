"""Conversion of rules' states to named arrays and back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import StateError
from fedquorum.rules.state_arrays import expand_state, from_arrays, to_arrays
from fedquorum.rules.weighting.aaggff_d import AAggFFDState
from numpy.typing import NDArray


@dataclass(frozen=True)
class Nested:
    """A state with a field of every kind."""

    inner: AAggFFDState
    velocity: dict[str, NDArray[Any]]
    nothing: None
    on: bool


def make_nested_state(factor: float) -> Nested:
    inner = AAggFFDState(
        np.arange(3), np.full(3, 0.1 * factor), np.full(3, factor / 3), int(factor), factor / 7
    )
    return Nested(inner, {"layer.w": np.full((2, 2), factor, dtype=np.float32)}, None, factor > 1)


def test_a_state_is_restored_unchanged() -> None:
    """Values, types, shapes and dtypes, to the bit, at any depth."""
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
    restored_state = from_arrays(make_nested_state(1.0), "weighting", arrays)
    assert (type(restored_state.inner.rounds), restored_state.inner.rounds, restored_state.on) == (
        int,
        3,
        True,
    )
    assert restored_state.inner.rbar_sum == 3.0 / 7
    assert restored_state.nothing is None
    restored = to_arrays(restored_state, "weighting")
    assert all(restored[name].tobytes() == array.tobytes() for name, array in arrays.items())


def test_a_restored_array_is_a_copy() -> None:
    """A rule that changes its state does not change the saved arrays."""
    arrays = to_arrays(np.zeros(2), "weighting")
    from_arrays(np.ones(2), "weighting", arrays)[0] = 5.0
    assert arrays["weighting"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "'w' is missing"),
        ({"w": np.zeros(3)}, r"'w' is float64 of shape \(3,\), expected float64 of \(2,\)"),
        ({"w": np.zeros(2, dtype=np.int64)}, "'w' is int64"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(arrays: dict[str, Any], message: str) -> None:
    """The error names the array that is missing or different."""
    with pytest.raises(StateError, match=message):
        from_arrays(np.zeros(2), "w", arrays)


def test_a_state_with_other_objects_is_refused() -> None:
    """It is a mistake in the rule, which the first checkpoint reveals."""
    with pytest.raises(StateError, match=r"'w\.x' is a set, which cannot be written down"):
        to_arrays({"x": {1, 2}}, "w")


def test_only_arrays_by_client_are_expanded() -> None:
    """A number for all clients, or an array of another length, does not change."""
    state = {"each": np.array([1.0, 2.0]), "all": np.array(5.0), "classes": np.ones(4), "t": 3}
    fresh = {"each": np.zeros(3), "all": np.array(0.0), "classes": np.zeros(4), "t": 0}
    indices = np.array([0, 2])
    larger = {name: expand_state(part, fresh[name], 2, indices) for name, part in state.items()}
    assert {name: np.asarray(part).tolist() for name, part in larger.items()} == {
        "each": [1.0, 0.0, 2.0],
        "all": 5.0,
        "classes": [1.0] * 4,
        "t": 3,
    }


def test_an_array_with_the_length_of_the_population_may_not_be_by_client() -> None:
    """It is not by client if the initial state of a larger population has the same length."""
    classes = np.array([1.0, 2.0])
    assert expand_state(classes, np.zeros(2), 2, np.array([0, 2])) is classes


def test_every_axis_of_clients_is_expanded() -> None:
    """In a matrix of clients by clients, of classes by clients, and in a mapping."""
    indices = np.array([1, 2])
    pairs = expand_state(np.array([[1.0, 2.0], [3.0, 4.0]]), 9.0 * np.eye(3), 2, indices)
    assert pairs.tolist() == [[9.0, 0.0, 0.0], [0.0, 1.0, 2.0], [0.0, 3.0, 4.0]]
    by_class = expand_state(np.ones((4, 2)), np.zeros((4, 3)), 2, indices)
    assert by_class.tolist() == [[0.0, 1.0, 1.0]] * 4
    mapped = expand_state({"0": 5, "p": np.ones(2)}, {"0": 0, "1": 7, "p": np.zeros(3)}, 2, indices)
    assert mapped.keys() == {"0", "1", "p"}
    assert (mapped["0"], mapped["1"], mapped["p"].tolist()) == (5, 7, [0.0, 1.0, 1.0])
