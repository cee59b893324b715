"""Classes divided in proportion to the clients' class shares."""

import numpy as np
import pytest
from fedquorum.errors import SettingsError
from fedquorum.rng import make_generator

from client_app.data.partition import partition_proportionally

TRAIN = np.random.default_rng(1).choice(4, 2000, p=[0.1, 0.2, 0.3, 0.4])
TEST = np.random.default_rng(2).choice(4, 900)
CLIENTS = 12


def test_every_row_is_dealt_once_by_the_class_shares() -> None:
    """Of each class a client has kappa_n,c / sum of kappa_m,c, to the row; sizes differ."""
    shares = partition_proportionally(TRAIN, TEST, num_clients=CLIENTS, alpha=0.5, seed=3)
    kappa = make_generator(3, "proportional-classes").dirichlet(np.full(4, 0.5), CLIENTS)
    for labels, rows in ((TRAIN, [s.train for s in shares]), (TEST, [s.test for s in shares])):
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(labels)))
        for c in range(4):
            wanted = np.sum(labels == c) * kappa[:, c] / kappa[:, c].sum()
            dealt = [np.sum(labels[of_client] == c) for of_client in rows]
            assert np.abs(dealt - wanted).max() < 1
    assert len({len(share.train) for share in shares}) > CLIENTS / 2


def test_the_same_seed_deals_the_same() -> None:
    """Another one deals otherwise."""

    def list_rows(seed: int) -> list[list[int]]:
        shares = partition_proportionally(TRAIN, TEST, num_clients=CLIENTS, alpha=1.0, seed=seed)
        return [share.train.tolist() for share in shares]

    assert list_rows(1) == list_rows(1) != list_rows(2)


def test_a_client_without_rows_is_an_error() -> None:
    """More clients than rows: one line names both settings."""
    with pytest.raises(SettingsError, match=r"data\.num_clients must be small enough") as caught:
        partition_proportionally(TRAIN[:9], TEST[:9], num_clients=10, alpha=0.1, seed=1)
    assert "got 10 and 0.1" in str(caught.value)
