"""The number of replies that make a quorum."""

import math
from collections.abc import Collection
from typing import Any

import pytest
from fedquorum.errors import ParameterError
from fedquorum.server.quorum import Quorum, ReplyCounter
from hypothesis import given
from hypothesis import strategies as st


def is_quorum(
    quorum: Quorum, selected: Collection[int], replied: Collection[int], priority: Collection[int]
) -> bool:
    """Say whether these replies, in this order, are a quorum."""
    counter = ReplyCounter(*quorum.find_required_replies(selected, priority))
    before = counter.add(())
    for client in replied:
        now = counter.add([client])
        assert now or not before
        before = now
    return before


@pytest.mark.parametrize(
    ("size", "selected", "required"),
    [(None, 7, 7), (3, 7, 3), (9, 7, 7), (0.5, 7, 4), (0.5, 8, 4), (0.01, 7, 1), (1, 7, 1)],
)
def test_the_number_of_replies(size: float | None, selected: int, required: int) -> None:
    """A whole number counts clients, at most the selected ones; a fraction is rounded up."""
    quorum = Quorum(size)
    for replied in range(selected + 1):
        assert is_quorum(quorum, range(selected), range(replied), ()) == (replied >= required)


@pytest.mark.parametrize(
    ("size", "selected", "required"),
    [(0.55, 100, 55), (0.07, 100, 7), (0.28, 25, 7), (0.14, 50, 7)],
)
def test_a_fraction_is_the_decimal_that_was_written(
    size: float, selected: int, required: int
) -> None:
    """0.55 * 100 is 55.00000000000001 in binary, and yet 55 replies are 0.55 of 100."""
    assert Quorum(size).find_required_replies(range(selected), range(selected))[1] == required
    assert (
        Quorum(size, counts="priority").find_required_replies(range(2 * selected), range(selected))[
            1
        ]
        == required
    )


def test_priority_clients_alone() -> None:
    """A round does not wait for other clients, and they do not replace a priority client."""
    quorum = Quorum(None, counts="priority")
    assert not quorum.waits_for_all
    assert not is_quorum(quorum, range(10), [0, 3, 4, 5, 6, 7, 8, 9], [0, 1])
    assert is_quorum(quorum, range(10), [0, 1], [0, 1])
    half = Quorum(0.5, counts="priority")
    assert is_quorum(half, range(10), [1], [0, 1])
    assert not is_quorum(half, range(10), [2, 3], [0, 1])
    # A round without a selected priority client waits for the selected clients.
    assert not is_quorum(quorum, [4, 5], [4], [0, 1])
    assert is_quorum(quorum, [4, 5], [4, 5], [0, 1])


@given(
    st.sets(st.integers(0, 30), min_size=1),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
    st.one_of(st.none(), st.integers(1, 40), st.floats(0.01, 0.99)),
    st.sampled_from(["asked", "priority"]),
)
def test_replies_of_all_selected_clients_are_always_a_quorum(
    selected: set[int], replied: set[int], priority: set[int], size: float | None, counts: str
) -> None:
    """More replies never break a quorum; replies of other clients do not count."""
    quorum = Quorum(size, counts=counts)
    assert is_quorum(quorum, selected, selected, priority)
    before = is_quorum(quorum, selected, replied & selected, priority)
    assert is_quorum(quorum, selected, replied, priority) == before
    assert not before or is_quorum(quorum, selected, replied | selected, priority)


@pytest.mark.parametrize("size", [0, -1, 1.5, math.nan, math.inf, True, "half"])
def test_impossible_sizes(size: Any) -> None:
    """The message has the allowed values."""
    allowed = r"size must be a share in \(0, 1\), or a whole number of clients >= 1, got"
    with pytest.raises(ParameterError, match=allowed):
        Quorum(size)
    with pytest.raises(ParameterError, match="grace_seconds must be a number >= 0"):
        Quorum(grace_seconds=-1.0)
