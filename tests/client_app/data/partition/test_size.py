"""Random rows for every client: equally many, or of Dirichlet's sizes."""

import numpy as np
import pytest
from fedquorum.errors import SettingsError

from client_app.data.partition import ClientSplit, partition_by_quantity, partition_iid


def get_sizes(shares: list[ClientSplit], split: str = "train") -> list[int]:
    return [len(getattr(share, split)) for share in shares]


def assert_dealt_once(shares: list[ClientSplit], train: int, test: int) -> None:
    """Check that every row has exactly one owner."""
    assert sorted(np.concatenate([s.train for s in shares]).tolist()) == list(range(train))
    assert sorted(np.concatenate([s.test for s in shares]).tolist()) == list(range(test))


@pytest.mark.parametrize(("train", "test", "clients"), [(100, 40, 10), (103, 17, 7), (3, 3, 3)])
def test_iid_deals_all_rows_evenly(train: int, test: int, clients: int) -> None:
    """All rows are dealt, and sizes differ by one at most."""
    shares = partition_iid(train, test, num_clients=clients, seed=1)
    assert_dealt_once(shares, train, test)
    for split in ("train", "test"):
        assert max(get_sizes(shares, split)) - min(get_sizes(shares, split)) <= 1


def test_iid_with_a_given_size() -> None:
    """samples_per_client rows for training, different ones; all test rows."""
    shares = partition_iid(100, 20, num_clients=5, samples_per_client=7, seed=1)
    assert get_sizes(shares) == [7] * 5
    assert get_sizes(shares, "test") == [4] * 5
    assert len(set(np.concatenate([s.train for s in shares]).tolist())) == 35


def test_iid_is_random() -> None:
    """Rows are in no order of the data's, by the seed alone."""
    one, again, other = (partition_iid(1000, 100, num_clients=4, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(one[2].train, again[2].train)
    assert not np.array_equal(one[2].train, other[2].train)
    assert 400 < one[0].train.mean() < 600


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5, 1.0, 100.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_quantity_deals_all_rows(alpha: float, seed: int) -> None:
    """All rows are dealt, everybody has at least one to train and one to test."""
    shares = partition_by_quantity(1000, 200, num_clients=20, alpha=alpha, seed=seed)
    assert_dealt_once(shares, 1000, 200)
    assert min(get_sizes(shares)) >= 1
    assert min(get_sizes(shares, "test")) >= 1


@pytest.mark.slow
def test_quantity_follows_dirichlets_law() -> None:
    """Shares of the rows beyond one each have Dir(alpha)'s variance, (N - 1) / (N^2 (N a + 1))."""
    n, alpha, rows = 10, 0.5, 2_010
    sampled = [
        (
            np.array(
                get_sizes(partition_by_quantity(rows, n, num_clients=n, alpha=alpha, seed=seed))
            )
            - 1
        )
        / (rows - n)
        for seed in range(30)
    ]
    assert np.mean(sampled) == pytest.approx(1 / n, abs=1e-9)
    variance = (n - 1) / (n**2 * (n * alpha + 1))
    assert np.var(sampled) == pytest.approx(variance, rel=0.25)


def test_quantity_tests_in_proportion() -> None:
    """A client with much to train on has much to test on."""
    shares = partition_by_quantity(10_000, 1_000, num_clients=8, alpha=0.5, seed=4)
    train, test = np.array(get_sizes(shares)), np.array(get_sizes(shares, "test"))
    assert np.abs(test - train / 10).max() <= 2
    assert train.max() > 3 * train.min()


def test_more_clients_than_rows() -> None:
    """A client without a row is refused, for either part and partition."""
    message = "^data.num_clients must be at most the number of training rows and of test rows, "
    for train, test in ((3, 9), (9, 3)):
        with pytest.raises(SettingsError, match=f"{message}{train} and {test}, got 4$"):
            partition_iid(train, test, num_clients=4, seed=1)
        with pytest.raises(SettingsError, match=f"{message}{train} and {test}, got 4$"):
            partition_by_quantity(train, test, num_clients=4, alpha=1.0, seed=1)


def test_more_samples_than_there_are() -> None:
    """samples_per_client for all clients has to be there."""
    message = r"must be at most the number of training rows, 10, got 3 \* 4$"
    with pytest.raises(SettingsError, match=message):
        partition_iid(10, 10, num_clients=3, samples_per_client=4, seed=1)
