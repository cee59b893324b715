"""What the rules exchange: populations and what they refuse."""

import pytest
from fedquorum.types import Population


def test_population_refuses_nonsense() -> None:
    """Priority clients must exist, and there must be one."""
    with pytest.raises(ValueError, match=r"\[7\] are not among the clients"):
        Population((0, 1), frozenset({7}))
    with pytest.raises(ValueError, match="at least one priority client"):
        Population((0, 1), frozenset())
    with pytest.raises(ValueError, match=r"must be in \(0, 1\].*, got 0.5 for client 1"):
        Population((0, 1), frozenset({0}), {1: 0.5})
    with pytest.raises(ValueError, match=r"got 1.5 for client 0"):
        Population((0, 1), frozenset({0}), {0: 1.5})


def test_clients_that_join_get_the_priority_they_are_named_for() -> None:
    """All, or those that are awaited; who is there already stays what it was."""
    everyone = Population.of_joiners().joined_by([2, 0])
    assert (everyone.clients, everyone.priority_clients) == ((0, 2), (0, 2))
    named = Population.of_joiners([0, 5]).joined_by([0, 1])
    assert (named.priority_clients, named.others) == ((0,), (1,))
    later = named.joined_by([5, 1])
    assert (later.clients, later.priority_clients) == ((0, 1, 5), (0, 5))
    assert later.joined_by([0, 5]) is later


def test_arrays_are_ascending_by_client_whatever_the_order() -> None:
    """lambda_k of the clients ascending: 1 with priority, 0 without, or the weight given."""
    population = Population((7, 1, 4), frozenset({7, 4}), {4: 0.25})
    assert population.ascending.tolist() == [1, 4, 7]
    assert population.priority_weights.tolist() == [0.0, 0.25, 1.0]
