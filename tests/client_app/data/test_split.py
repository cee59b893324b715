"""A client's own rows, divided into a training and a test part."""

import numpy as np
import pytest

from client_app.data.base import Labels
from client_app.data.split import (
    RowDivision,
    Rows,
    split_client,
    split_latest,
    split_validation,
)


def split(
    labels: Labels | list[int], fraction: float = 0.2, *, client: int = 0, seed: int = 1
) -> tuple[Rows, Rows]:
    return split_client(np.asarray(labels), fraction, client=client, seed=seed)


def make_random_labels(seed: int) -> Labels:
    """Return labels whose counts are no multiples of anything in particular."""
    rng = np.random.default_rng(seed)
    return rng.choice(6, rng.integers(2, 90), p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5, 0.9])
def test_every_row_is_in_one_split(seed: int, fraction: float) -> None:
    """No row is in both or in none, both have rows, and the test part is of the asked size."""
    labels = make_random_labels(seed)
    train, test = split(labels, fraction, seed=seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert list(train) == sorted(train)
    assert list(test) == sorted(test)
    assert len(test) == min(max(round(fraction * len(labels)), 1), len(labels) - 1)


def test_a_fraction_is_the_decimal_that_was_written() -> None:
    """0.575 of 100 is 57.5, of which the even neighbor is 58; in binary it is a little less."""
    labels = np.zeros(100, dtype=np.int64)
    for split in (split_client, split_validation):
        assert len(split(labels, 0.575, client=0, seed=0)[1]) == 58


@pytest.mark.parametrize("seed", range(40))
def test_classes_are_in_proportion(seed: int) -> None:
    """A class has its share of the test rows, rounded up or down, where it can spare them."""
    labels = make_random_labels(seed)
    _, test = split(labels, 0.2, seed=seed)
    for label in np.unique(labels):
        count = np.count_nonzero(labels == label)
        exact = len(test) * count / len(labels)
        given = np.count_nonzero(labels[test] == label)
        assert given <= np.ceil(exact)
        if len(test) <= len(labels) - 6:  # then no other class has a single row to keep
            assert given >= min(np.floor(exact), count - 1)


def test_shares_by_hand() -> None:
    """Of 5 for 12, 9 and 4 rows: 2.4, 1.8 and 0.8, so 2, 2 and 1."""
    labels = np.repeat([3, 7, 8], [12, 9, 4])
    for seed in range(10):
        _, test = split(labels, seed=seed)
        assert np.bincount(labels[test])[[3, 7, 8]].tolist() == [2, 2, 1]


def test_a_single_row_of_a_class_is_for_training() -> None:
    """A class that is only tested on could not be learned."""
    for seed in range(20):
        labels = np.array([0, 1, 2, 3, 3, 3])
        train, _ = split(labels, 0.3, seed=seed)
        assert set(labels[train]) == {0, 1, 2, 3}


def test_a_single_row_of_a_class_is_tested_where_there_are_no_others() -> None:
    """Both parts have a row all the same; over 40 seeds each of them is chosen."""
    splits = [split([0, 1, 2], seed=seed) for seed in range(40)]
    assert {len(test) for _, test in splits} == {1}
    assert {int(test[0]) for _, test in splits} == {0, 1, 2}
    assert [len(part) for part in split([4, 5])] == [1, 1]


def test_equal_remainders_are_decided_at_random() -> None:
    """Of 10 classes with 2 rows each 4 have a test row, and not always the first ones."""
    labels = np.repeat(np.arange(10), 2)
    seen = np.zeros(10, dtype=int)
    for seed in range(60):
        _, test = split(labels, seed=seed)
        assert len(set(labels[test])) == 4
        seen += np.bincount(labels[test], minlength=10)
    assert seen.min() > 5


def test_depends_on_client_and_seed_alone() -> None:
    """The same client and seed have the same parts, others have others."""
    labels = make_random_labels(3)
    _, test = split(labels, client=2, seed=5)
    np.testing.assert_array_equal(test, split(labels, client=2, seed=5)[1])
    assert not np.array_equal(test, split(labels, client=3, seed=5)[1])
    assert not np.array_equal(test, split(labels, client=2, seed=6)[1])


@pytest.mark.parametrize("labels", [[], [0]])
def test_fewer_than_two_rows(labels: list[int]) -> None:
    """There is nothing to divide."""
    with pytest.raises(ValueError, match=f"at least 2 rows, got {len(labels)}$"):
        split(labels)


def split_rows(
    labels: Labels | list[int], fraction: float = 0.25, groups: list[int] | None = None
) -> tuple[list[int], list[int]]:
    of_groups = None if groups is None else np.asarray(groups)
    splits = split_validation(np.asarray(labels), fraction, client=3, seed=1, groups=of_groups)
    train, validation = (part.tolist() for part in splits)
    return train, validation


def test_validation_rows_have_a_separate_random_stream() -> None:
    """Divided like a test part, but not into the same rows."""
    labels = np.arange(60) % 3
    train, validation = split_rows(labels.tolist())
    assert sorted([*train, *validation]) == list(range(60))
    assert np.bincount(labels[validation]).tolist() == [5, 5, 5]
    assert validation != split(labels, 0.25, client=3)[1].tolist()


def test_nothing_is_validated_without_rows_to_spare() -> None:
    """A fraction of 0, a single row and a single group keep all for training."""
    assert split_rows([0, 1, 1], 0.0) == ([0, 1, 2], [])
    assert split_rows([1]) == ([0], [])
    assert split_rows([0, 1, 1], groups=[7, 7, 7]) == ([0, 1, 2], [])
    assert split_rows([]) == ([], [])


def test_groups_of_rows_are_validated_together() -> None:
    """As in a division into training and test part."""
    train, validation = split_rows([0, 1, 0, 1, 0, 1], 0.3, groups=[5, 5, 8, 8, 9, 9])
    assert len(validation) == 2
    assert validation[1] == validation[0] + 1
    assert validation[0] % 2 == 0
    assert len(train) == 4


@pytest.mark.parametrize(
    ("order", "fraction", "latest"),
    [
        ([3, 1, 2, 5, 4], 0.2, [3]),
        ([3, 1, 2, 5, 4], 0.4, [3, 4]),
        ([1, 1, 1, 1, 1], 0.4, [3, 4]),
        ([2, 2, 1, 2], 0.5, [1, 3]),
        ([9, 1], 0.01, [0]),
        ([9, 1], 0.9, [0]),
    ],
)
def test_latest_rows(order: list[int], fraction: float, latest: list[int]) -> None:
    """A share, but at least one and not all; of equal times the last rows."""
    earlier, last = split_latest(np.array(order), fraction)
    assert last.tolist() == latest
    assert sorted([*earlier, *last]) == list(range(len(order)))


def test_a_single_row_has_no_latest() -> None:
    """Neither part may be empty; for validation all rows are for training."""
    with pytest.raises(ValueError, match="at least 2 rows, got 1"):
        split_latest(np.array([7]), 0.2)
    division = RowDivision(order=np.array([7]))
    train, validation = division.split_validation(np.array([0]), 0.2, client=0, seed=0)
    assert (train.tolist(), validation.tolist()) == ([0], [])


def test_the_division_that_the_data_tells() -> None:
    """Rows for testing first, then the order, then groups; of a selection of rows as well."""
    labels, is_test = np.array([0, 1, 0, 1]), np.array([True, False, False, True])
    order = np.array([4, 3, 2, 1])
    both = RowDivision(order=order, is_test=is_test)
    assert [part.tolist() for part in both.split_test(labels, 0.5, client=0, seed=0)] == [
        [1, 2], [0, 3]
    ]  # fmt: skip
    train, validation = both.select(np.array([1, 2])).split_validation(
        labels[1:3], 0.5, client=0, seed=0
    )
    assert (train.tolist(), validation.tolist()) == ([1], [0])
    groups = RowDivision(groups=np.array([5, 5, 6, 6]))
    for part in groups.split_test(labels, 0.5, client=0, seed=0):
        assert part.tolist() in ([0, 1], [2, 3])
    with pytest.raises(ValueError, match="at least 2 groups of rows, got 1"):
        groups.select(np.array([0, 1])).split_test(labels[:2], 0.5, client=0, seed=0)
