"""What a run assumes of its nodes: the shares, k and t, and the quorum that fits."""

from typing import Any

import pytest
from fedquorum.errors import ParameterError
from fedquorum.flower.secure.plan import GraphSize
from fedquorum.flower.secure.settings import SecureAggregation


@pytest.mark.parametrize("name", ["colluding", "dropping"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan"), "0.1", True])
def test_a_share_is_below_one(name: str, value: Any) -> None:
    """And a number."""
    with pytest.raises(ParameterError, match=f"{name} must be a number >= 0 and < 1"):
        SecureAggregation(**{name: value})


@pytest.mark.parametrize(
    ("settings", "quorum", "dropping"),
    [
        ({}, 1.0, 0.1),
        ({}, 0.7, 0.3),
        ({"dropping": 0.25}, 1.0, 0.25),
        ({"dropping": 0.3}, 0.8, 0.3),
    ],
)
@pytest.mark.parametrize("num_nodes", [10, 100])
def test_the_quorum_says_how_many_may_drop(
    settings: dict[str, float], quorum: float, dropping: float, num_nodes: int
) -> None:
    """Unless it is given; a run that waits for all expects one in ten."""
    size = SecureAggregation(**settings).choose_size(num_nodes, quorum)
    assert size == GraphSize.for_shares(num_nodes, 0.1, dropping)
    assert size.min_share <= quorum


def test_a_quorum_below_the_threshold_is_refused() -> None:
    """With the smallest one."""
    settings = SecureAggregation(colluding=0.3, dropping=0.0)
    size = settings.choose_size(10, 1.0)
    assert settings.choose_size(10, size.min_share) == size
    text = f"quorum must be at least {size.min_share:.3g} of the selected clients .* got 0.5"
    assert size.min_share > 0.5
    with pytest.raises(ParameterError, match=text):
        settings.choose_size(10, 0.5)


@pytest.mark.parametrize(
    ("num_nodes", "num_asked", "quorum", "expected"),
    [
        (8, 8, 1.0, (7, 5)),
        (4, 8, 1.0, (3, 3)),
        (3, 8, 1.0, (2, 2)),
        (3, 20, 1.0, (2, 3)),  # two of them may collude
        (3, 200, 1.0, (2, 3)),
        (5, 8, 0.625, (4, 3)),
        (3, 5, 0.6, (2, 2)),  # no margin for lost nodes is left
    ],
)
def test_the_threshold_follows_from_the_nodes_that_sent_keys(
    num_nodes: int, num_asked: int, quorum: float, expected: tuple[int, int]
) -> None:
    """It is more than half, and more than the nodes that may collude among all asked."""
    size = SecureAggregation().choose_size_again(num_nodes, num_asked, quorum)
    assert (size.num_neighbors, size.threshold) == expected
    if num_nodes == num_asked:
        assert size == SecureAggregation().choose_size(num_asked, quorum)


def test_two_nodes_are_too_few() -> None:
    """Each could subtract its own vector."""
    with pytest.raises(ParameterError, match="none with fewer than 3 nodes, got 2"):
        SecureAggregation().choose_size(2, 1.0)
