"""How many replies are enough."""

import math
from collections.abc import Collection
from typing import Any

import pytest
from fedquorum.errors import ParameterError
from fedquorum.quorum import Quorum, ReplyCounter
from hypothesis import given
from hypothesis import strategies as st


def is_met(
    quorum: Quorum, asked: Collection[int], replied: Collection[int], priority: Collection[int]
) -> bool:
    """Say whether these replies are a quorum, one coming after the other."""
    tally = ReplyCounter(quorum, asked, priority)
    before = tally.add(())
    for client in replied:
        now = tally.add([client])
        assert now or not before
        before = now
    return before


@pytest.mark.parametrize(
    ("size", "asked", "needed"),
    [(None, 7, 7), (3, 7, 3), (9, 7, 7), (0.5, 7, 4), (0.5, 8, 4), (0.01, 7, 1), (1, 7, 1)],
)
def test_the_number_of_replies(size: float | None, asked: int, needed: int) -> None:
    """A whole number is of clients, never more than were asked; a share is rounded up."""
    quorum = Quorum(size)
    for replied in range(asked + 1):
        assert is_met(quorum, range(asked), range(replied), ()) == (replied >= needed)


@pytest.mark.parametrize(
    ("size", "asked", "needed"), [(0.55, 100, 55), (0.07, 100, 7), (0.28, 25, 7), (0.14, 50, 7)]
)
def test_a_share_is_the_decimal_that_was_written(size: float, asked: int, needed: int) -> None:
    """0.55 * 100 is 55.00000000000001 in binary, and yet 55 replies are 0.55 of 100."""
    assert Quorum(size).find_required_replies(range(asked), range(asked))[1] == needed
    assert (
        Quorum(size, counts="priority").find_required_replies(range(2 * asked), range(asked))[1]
        == needed
    )


def test_priority_clients_alone() -> None:
    """Volunteers are not waited for, and do not stand in for a priority client."""
    quorum = Quorum(None, counts="priority")
    assert not quorum.waits_for_all
    assert not is_met(quorum, range(10), [0, 3, 4, 5, 6, 7, 8, 9], [0, 1])
    assert is_met(quorum, range(10), [0, 1], [0, 1])
    half = Quorum(0.5, counts="priority")
    assert is_met(half, range(10), [1], [0, 1])
    assert not is_met(half, range(10), [2, 3], [0, 1])
    # A round that asks none of them waits for those that it asks.
    assert not is_met(quorum, [4, 5], [4], [0, 1])
    assert is_met(quorum, [4, 5], [4, 5], [0, 1])


@given(
    st.sets(st.integers(0, 30), min_size=1),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
    st.one_of(st.none(), st.integers(1, 40), st.floats(0.01, 0.99)),
    st.sampled_from(["asked", "priority"]),
)
def test_everybody_is_always_enough(
    asked: set[int], replied: set[int], priority: set[int], size: float | None, of: str
) -> None:
    """Of any quorum; more replies never make it fewer; clients not asked do not count."""
    quorum = Quorum(size, counts=of)
    assert is_met(quorum, asked, asked, priority)
    before = is_met(quorum, asked, replied & asked, priority)
    assert is_met(quorum, asked, replied, priority) == before
    assert not before or is_met(quorum, asked, replied | asked, priority)


@pytest.mark.parametrize("size", [0, -1, 1.5, math.nan, math.inf, True, "half"])
def test_impossible_sizes(size: Any) -> None:
    """They are refused with what is allowed."""
    allowed = r"size must be a share in \(0, 1\), or a whole number of clients >= 1, got"
    with pytest.raises(ParameterError, match=allowed):
        Quorum(size)
    with pytest.raises(ParameterError, match="grace_seconds must be a number >= 0"):
        Quorum(grace_seconds=-1.0)
