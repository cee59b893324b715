"""Which clients get priority."""

import numpy as np
import pytest
from fedquorum.errors import SettingsError

from client_app.data.priority import (
    find_priority_list,
    find_priority_weights,
    sample_priority,
    select_heterogeneous_priority,
    select_priority_clients,
)
from conf.schema.data import NpzSettings

SEEDS = range(1, 31)


@pytest.mark.parametrize("num_priority", [1, 3, 8])
def test_random_priority_is_a_sorted_subset(num_priority: int) -> None:
    """The asked number of different clients comes back in ascending order."""
    for seed in SEEDS:
        chosen = sample_priority(8, num_priority, seed)
        assert list(chosen) == sorted(set(chosen))
        assert len(chosen) == num_priority
        assert set(chosen) <= set(range(8))


def test_random_priority_depends_on_the_seed_alone() -> None:
    """The same seed gives the same clients, and over 30 seeds every client is chosen once."""
    first = [sample_priority(6, 2, seed) for seed in SEEDS]
    assert first == [sample_priority(6, 2, seed) for seed in SEEDS]
    # A client is left out 30 times with probability (2/3)^30 < 1e-5.
    assert {k for chosen in first for k in chosen} == set(range(6))


def test_heterogeneous_priority_is_disjoint_where_only_one_choice_is() -> None:
    """Whichever client comes first, the second is the one that shares no class with it."""
    classes = [frozenset({0, 1}), frozenset({2, 3}), frozenset({0, 2}), frozenset({1, 3})]
    pairs = {select_heterogeneous_priority(classes, 2, seed) for seed in SEEDS}
    assert pairs == {(0, 1), (2, 3)}


def test_heterogeneous_priority_overlaps_least_where_it_must() -> None:
    """Where no choice is disjoint the one with the smallest overlap is taken."""
    classes = [frozenset({0, 1, 2}), frozenset({0, 1, 3}), frozenset({0, 4, 5})]
    for seed in SEEDS:
        assert 2 in select_heterogeneous_priority(classes, 2, seed)


def test_heterogeneous_priority_counts_what_is_shared() -> None:
    """Of two clients that add equally many classes the one that shares none is taken."""
    classes = [frozenset({0, 1, 2}), frozenset({3}), frozenset({0, 3})]
    assert {select_heterogeneous_priority(classes, 2, seed) for seed in SEEDS} == {(0, 1)}


def test_heterogeneous_priority_continues_when_all_classes_are_covered() -> None:
    """More priority clients than disjoint ones are still all different."""
    classes = [frozenset({0, 1}), frozenset({1, 0}), frozenset({2, 3}), frozenset({3, 2})]
    for seed in SEEDS:
        assert len(set(select_heterogeneous_priority(classes, 3, seed))) == 3
    assert select_heterogeneous_priority(classes, 4, 1) == (0, 1, 2, 3)


def test_heterogeneous_priority_varies_with_the_seed() -> None:
    """Among equal candidates the seed decides, and the same seed decides the same."""
    classes = [frozenset({k}) for k in range(6)]
    chosen = [select_heterogeneous_priority(classes, 2, seed) for seed in SEEDS]
    assert chosen == [select_heterogeneous_priority(classes, 2, seed) for seed in SEEDS]
    assert len(set(chosen)) > 5


def test_listed_priority_is_ascending() -> None:
    """A list of clients comes back as whole numbers in ascending order."""
    assert find_priority_list([4, 0, 2], 5, None) == (0, 2, 4)


def test_clients_are_given_by_id_and_by_name() -> None:
    """A mapping and a list of pairs have the same weights; no client has two."""
    names = ("East", "North", "3")
    assert find_priority_list(["North", 0], 3, names) == (0, 1)
    for given in ({"North": 0.5, 2: 1.0}, [["North", 0.5], ["3", 1.0]]):
        assert find_priority_weights(given, 3, names) == {1: 0.5, 2: 1.0}
    assert find_priority_weights(None, 3, names) == {}
    with pytest.raises(SettingsError, match="must have each client once, got North twice"):
        find_priority_list(["North", 1], 3, names)
    with pytest.raises(SettingsError, match="did you mean North"):
        find_priority_weights({"Nort": 0.5}, 3, names)


def test_numbers_have_no_classes_to_compare() -> None:
    """The error says what to type, because heterogeneous is the default of arrays."""
    settings = NpzSettings(path="x.npz", regression=True)
    with pytest.raises(SettingsError, match=r"got heterogeneous: type data\.priority=all$"):
        select_priority_clients(settings, 3, lambda _: np.zeros(1, dtype=np.int64), 1)
