"""The data that rules exchange: populations, and numbers by client."""

import numpy as np
import pytest
from fedquorum.rules.types import PerClient, Population

from tests.cases import sample_cases


def test_a_meaningless_population_is_refused() -> None:
    """Priority clients must exist, and there must be one."""
    with pytest.raises(ValueError, match=r"\[7\] are not among the clients"):
        Population((0, 1), frozenset({7}))
    with pytest.raises(ValueError, match="at least one priority client"):
        Population((0, 1), frozenset())
    with pytest.raises(ValueError, match=r"must be in \(0, 1\].*, got 0.5 for client 1"):
        Population((0, 1), frozenset({0}), {1: 0.5})
    with pytest.raises(ValueError, match=r"got 1.5 for client 0"):
        Population((0, 1), frozenset({0}), {0: 1.5})
    with pytest.raises(ValueError, match=r"^held-out clients \[1\] are among the clients$"):
        Population((0, 1), frozenset({0}), held_out=(2, 1))


def test_clients_are_ascending_in_whichever_order_they_join() -> None:
    """The sample therefore depends on the clients, not on the order in which they joined."""
    population = Population.open([2]).with_clients([5, 2]).with_clients([7, 0])
    assert population.clients == (0, 2, 5, 7)
    assert population.non_priority_clients == (0, 5, 7)


def test_joining_clients_get_priority_if_required() -> None:
    """All clients, or the required ones; registered clients do not change."""
    all_priority = Population.open().with_clients([2, 0])
    assert (all_priority.clients, all_priority.priority_clients) == ((0, 2), (0, 2))
    named = Population.open([0, 5]).with_clients([0, 1])
    assert (named.priority_clients, named.non_priority_clients) == ((0,), (1,))
    later = named.with_clients([5, 1])
    assert (later.clients, later.priority_clients) == ((0, 1, 5), (0, 5))
    assert later.with_clients([0, 5]) is later


def test_arrays_are_ascending_by_client_whatever_the_order() -> None:
    """lambda_k of the clients ascending: 1 with priority, 0 without, or the weight given."""
    population = Population((7, 1, 4), frozenset({7, 4}), {4: 0.25})
    assert population.sorted_clients.tolist() == [1, 4, 7]
    assert population.priority_weights.tolist() == [0.0, 0.25, 1.0]


@pytest.mark.parametrize("seed", sample_cases(range(100), 20))
def test_numbers_by_client_behave_like_a_dict(seed: int) -> None:
    """Read one by one, as a whole, for many clients at once, and after any changes."""
    rng = np.random.default_rng(seed)
    expected: dict[int, float] = {}
    numbers = PerClient()
    for _ in range(5):
        clients = rng.choice(30, int(rng.integers(0, 12)), replace=False).tolist()
        changes = {client: float(rng.random()) for client in clients}
        before, expected = dict(numbers), {**expected, **changes}
        numbers, earlier = numbers.merge(changes), numbers
        assert dict(earlier) == before
        assert numbers == expected
        assert list(numbers) == sorted(expected)
        assert [numbers.get(k) for k in range(-1, 31)] == [expected.get(k) for k in range(-1, 31)]
        clients_to_read = rng.permutation(32)
        wanted = [expected.get(k, -1.0) for k in clients_to_read.tolist()]
        assert numbers.get_array(clients_to_read, -1.0).tolist() == wanted
        assert PerClient.from_mapping(expected) == numbers == PerClient.from_mapping(numbers)
