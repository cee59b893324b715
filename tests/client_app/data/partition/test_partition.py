"""Single-class shards."""

import re
import warnings
from collections import Counter

import numpy as np
import pytest
from fedquorum.errors import SettingsError
from numpy.typing import NDArray

from client_app.data.partition import ClientSplit, partition_by_shards

Labels = NDArray[np.int64]


def make_random_labels(seed: int, train: int = 237, test: int = 150) -> tuple[Labels, Labels]:
    """Return labels of 5 classes whose counts are no multiples of anything in particular."""
    rng = np.random.default_rng(seed)
    law = [0.1, 0.15, 0.2, 0.25, 0.3]
    return rng.choice(5, train, p=law), rng.choice(5, test, p=law)


def make_labels(*counts: int) -> Labels:
    """Return shuffled labels with ``counts[c]`` of each class c."""
    ordered = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(0).permutation(ordered)


def partition_shards(
    train: Labels,
    test: Labels,
    clients: int,
    shards: int,
    size: int,
    *,
    kept: int | None = None,
    seed: int = 1,
) -> list[ClientSplit]:
    return partition_by_shards(
        train,
        test,
        num_clients=clients,
        shards_per_client=shards,
        shard_size=size,
        samples_per_shard=kept,
        seed=seed,
    )


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize(("clients", "shards", "size"), [(10, 2, 10), (7, 3, 9), (17, 1, 12)])
def test_shards_have_one_class(seed: int, clients: int, shards: int, size: int) -> None:
    """A client's rows are shards_per_client blocks of shard_size, each of one class."""
    train, test = make_random_labels(seed)
    assert any(count % size for count in Counter(train.tolist()).values())
    shares = partition_shards(train, test, clients, shards, size, seed=seed)
    assert len(shares) == clients
    for client_rows in shares:
        counts = Counter(train[client_rows.train].tolist())
        assert sum(counts.values()) == shards * size
        assert len(counts) <= shards
        assert all(count % size == 0 for count in counts.values())


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_no_row_is_given_twice(seed: int) -> None:
    """Neither a training row nor a test row has two owners."""
    train, test = make_random_labels(seed)
    shares = partition_shards(train, test, 10, 2, 10, seed=seed)
    for rows in (
        [client_rows.train for client_rows in shares],
        [client_rows.test for client_rows in shares],
    ):
        flat = np.concatenate(rows)
        assert len(np.unique(flat)) == len(flat)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_test_part_has_the_classes_of_the_training_part(seed: int) -> None:
    """A client is tested on the classes it trains on, and on no other."""
    train, test = make_random_labels(seed)
    for client_rows in partition_shards(train, test, 10, 2, 10, seed=seed):
        assert set(test[client_rows.test].tolist()) == set(train[client_rows.train].tolist())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_test_part_has_the_proportions_of_the_training_part(seed: int) -> None:
    """Each shard of 10 brings its tenth of a class' test rows, rounded up or down."""
    train, test = make_labels(40, 50, 60), make_labels(22, 25, 33)
    seen: Counter[int] = Counter()
    for client_rows in partition_shards(train, test, 5, 3, 10, seed=seed):
        given = Counter(test[client_rows.test].tolist())
        for c, count in Counter(train[client_rows.train].tolist()).items():
            shards = count // 10
            exact = {0: 22 / 4, 1: 25 / 5, 2: 33 / 6}[c] * shards
            assert abs(given[c] - exact) < shards
        seen += given
    assert seen == {0: 22, 1: 25, 2: 33}  # all shards are dealt, so all test rows are


def test_proportions_hold_where_rows_are_left_out() -> None:
    """A client with as many training rows of two classes has as many test rows of both."""
    train, test = make_labels(19, 20), make_labels(19, 20)  # 1 + 2 shards
    shares = [
        client_rows
        for seed in range(10)
        for client_rows in partition_shards(train, test, 1, 2, 10, seed=seed)
    ]
    mixed = [
        client_rows for client_rows in shares if len(set(train[client_rows.train].tolist())) == 2
    ]
    assert mixed
    for client_rows in mixed:
        zeros, ones = np.bincount(test[client_rows.test], minlength=2)
        assert abs(int(zeros) - int(ones)) <= 1


def test_class_without_test_rows_is_refused() -> None:
    """A client that would have no test rows of one of its classes is refused."""
    with pytest.raises(SettingsError, match=r"data\.shard_size"):
        partition_shards(make_labels(20, 20), make_labels(20, 0), 1, 4, 10)


def test_depends_on_the_seed_alone() -> None:
    """The same seed deals the same rows in the same order, another seed others."""
    train, test = make_random_labels(1)
    first, again, other = (
        partition_shards(train, test, 10, 2, 10, seed=seed) for seed in (1, 1, 2)
    )
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.train, b.train)
        np.testing.assert_array_equal(a.test, b.test)
    pairs = list(zip(first, other, strict=True))
    assert any(set(a.train.tolist()) != set(b.train.tolist()) for a, b in pairs)
    assert any(set(a.test.tolist()) != set(b.test.tolist()) for a, b in pairs)


def test_seed_decides_who_gets_which_classes() -> None:
    """Over ten seeds the two shards of a client meet in more than one combination of classes."""
    train, test = make_labels(20, 20, 20), make_labels(6, 6, 6)
    seen = {
        tuple(sorted(set(train[client_rows.train].tolist())))
        for client_rows in (
            partition_shards(train, test, 3, 2, 10, seed=seed)[0] for seed in range(10)
        )
    }
    assert len(seen) > 1


def test_rows_within_a_class_are_shuffled() -> None:
    """Rows that are neighbors in the data are not dealt together."""
    train = make_labels(100)
    client_rows = partition_shards(train, train, 2, 1, 50)[0]
    assert sorted(client_rows.train.tolist()) not in (list(range(50)), list(range(50, 100)))


def test_every_shard_can_be_dealt() -> None:
    """As many clients as the shards allow is enough, and all whole shards are used."""
    shares = partition_shards(make_labels(25, 19, 30), make_labels(9, 9, 9), 3, 2, 10)
    assert sum(len(client_rows.train) for client_rows in shares) == 60


def test_too_few_shards() -> None:
    """Too few single-class shards raise with what there is and what was asked."""
    message = (
        "data.num_clients * data.shards_per_client must be at most 6, the number of single-class "
        "shards of data.shard_size 10 in the data, got 4 * 2 = 8"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        partition_shards(make_labels(25, 19, 30), make_labels(9, 9, 9), 4, 2, 10)


def test_no_shard_at_all() -> None:
    """A shard_size above every class' count raises the same error."""
    with pytest.raises(SettingsError, match=r"at most 0, .*shard_size 31 .*, got 1 \* 1 = 1$"):
        partition_shards(make_labels(25, 19, 30), make_labels(9, 9, 9), 1, 1, 31)


def test_empty_test_part() -> None:
    """A class without test rows raises, with the numbers and the setting."""
    message = (
        "data.shard_size must leave each of the 2 shards of class 0 at least one of its 0 test "
        "rows, got 10"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        partition_shards(make_labels(20), make_labels(0, 20), 2, 1, 10)


def test_more_shards_than_test_rows() -> None:
    """Where a class has more shards than test rows, one would go without, so it raises."""
    with pytest.raises(SettingsError, match=r"the 5 shards of class 0 .* its 4 test rows, got 10$"):
        partition_shards(make_labels(50), make_labels(4), 5, 1, 10)


@pytest.mark.parametrize("kept", [1, 3, 9, 10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_some_rows_of_each_shard(kept: int, seed: int) -> None:
    """A client keeps the first rows of every shard it was dealt: its classes and proportions."""
    train, test = make_random_labels(seed)
    whole, split = (
        partition_shards(train, test, 7, 3, 10, kept=k, seed=seed) for k in (None, kept)
    )
    for full, client_rows in zip(whole, split, strict=True):
        np.testing.assert_array_equal(
            client_rows.train, full.train.reshape(3, 10)[:, :kept].reshape(-1)
        )
        assert client_rows.train.shape == (3 * kept,)
        counts = np.bincount(train[client_rows.train], minlength=5)
        np.testing.assert_array_equal(
            counts * 10, np.bincount(train[full.train], minlength=5) * kept
        )


def test_test_part_is_kept_whole() -> None:
    """Where few training rows of a shard are kept, its test rows still are all there."""
    train, test = make_random_labels(1)
    for full, client_rows in zip(
        partition_shards(train, test, 7, 3, 10),
        partition_shards(train, test, 7, 3, 10, kept=1),
        strict=True,
    ):
        np.testing.assert_array_equal(client_rows.test, full.test)


def test_no_warning_reaches_the_user() -> None:
    """What pyarrow deprecates in the libraries' sorting does not come through as a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        partition_shards(*make_random_labels(1), 10, 2, 10)
    assert caught == []
