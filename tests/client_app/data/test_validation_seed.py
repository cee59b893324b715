"""Rows for validation that one seed draws, so that no other seed tests them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data.partitioned import Divisible, PartitionedData, split_single_client
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.split import RowDivision
from client_app.data.tabular import load_table_arrays
from conf.schema.data import CsvSettings, NpzSettings
from tests.client_app.data.test_seed_draws import write_table

ROWS, SEEDS, DRAWN_BY = 240, range(6), 1

Rows = set[int]


def make_arrays(**others: Any) -> LabeledArrays:
    """Return rows of four classes, of six clients of 20 to 60 rows."""
    x = np.arange(ROWS, dtype=np.float32)[:, None]
    clients = np.repeat(np.arange(6), [20, 30, 40, 40, 50, 60])
    return build_pooled_arrays(x, np.arange(ROWS) % 4, 4, client_train=clients, **others)


def make_settings(**given: Any) -> NpzSettings:
    defaults: dict[str, Any] = {"partition": "natural", "num_clients": None, "num_priority": 1}
    fixed: dict[str, Any] = {"validation_fraction": 0.2, "validation_seed": DRAWN_BY}
    return NpzSettings(path="rows.npz", **{**defaults, **fixed, **given})


def list_splits(data: PartitionedData) -> tuple[Rows, Rows, Rows]:
    """Return the rows of all clients for training, validation and testing."""
    train, validation, test = ({*rows.flat.tolist()} for _, rows in data.list_targets())
    return train, validation, test


def divide(arrays: LabeledArrays, settings: Divisible) -> list[tuple[Rows, Rows, Rows]]:
    """Return the splits of each seed."""
    return [list_splits(PartitionedData(arrays, settings, seed)) for seed in SEEDS]


DIVISIONS: dict[str, dict[str, Any]] = {
    "own clients": {},
    "one class to a client": {"partition": "shards", "num_clients": 6, "shard_size": 12},
    "by classes": {"partition": "dirichlet", "num_clients": 6, "alpha": 0.5},
    "random": {"partition": "iid", "num_clients": 6},
    "of different sizes": {"partition": "quantity", "num_clients": 6, "alpha": 2.0},
}


@pytest.mark.parametrize("division", DIVISIONS)
def test_no_seed_tests_rows_for_validation(division: str) -> None:
    """All seeds validate the same rows, and test others of the same number, drawn anew."""
    arrays, settings = make_arrays(), make_settings(**DIVISIONS[division])
    drawn = list_splits(PartitionedData(arrays, replace(settings, validation_seed=None), DRAWN_BY))
    splits = divide(arrays, settings)
    for train, validation, test in splits:
        assert not test & drawn[1]
        assert not test & (train | validation)
        assert len(test) == pytest.approx(len(drawn[2]), abs=2)
        if division in ("own clients", "random", "of different sizes"):
            assert validation == drawn[1]
            assert len(train) == pytest.approx(len(drawn[0]), abs=2)
    assert len({frozenset(test) for _, _, test in splits}) == len(splits)


def test_validated_rows_go_with_their_clients() -> None:
    """Where clients have rows of their own, each validates the same rows with every seed."""
    one, other = (PartitionedData(make_arrays(), make_settings(), seed) for seed in (3, 4))
    for client in range(6):
        rows = [[set(rows[client]) for _, rows in data.list_targets()] for data in (one, other)]
        assert rows[0][1] == rows[1][1] != set()
        assert set.union(*rows[0]) == set.union(*rows[1])


def test_rows_of_a_group_are_validated_together() -> None:
    """So no seed tests a patient by whose rows the tuning has chosen."""
    groups = np.arange(ROWS) // 5
    arrays = make_arrays(division=RowDivision(groups=groups))
    for train, validation, test in divide(arrays, make_settings()):
        by_split = [{row // 5 for row in split} for split in (train, validation, test)]
        assert sum(map(len, by_split)) == len(set.union(*by_split)) == ROWS // 5


def test_a_test_set_of_other_clients_changes_nothing() -> None:
    """As with MNIST by writer: the rows for testing are taken from those of the clients."""
    x, y = np.zeros((8, 1), dtype=np.float32), np.arange(8) % 4
    arrays = replace(make_arrays(), x_test=x, y_test=y, pooled=False, client_test=np.full(8, 99))
    splits = divide(arrays, make_settings())
    validated = splits[0][1]
    assert all(validation == validated and not test & validated for _, validation, test in splits)
    data = PartitionedData(arrays, make_settings(), 0)
    assert data.has_pooled_rows


@pytest.mark.slow
def test_fixed_test_rows_need_no_such_seed(tmp_path: Path) -> None:
    """With a test set, an order, or marks, a row for validation is never tested anyway."""
    x, y = np.zeros((40, 1), dtype=np.float32), np.arange(40) % 4
    with_test_set = replace(make_arrays(), x_test=x, y_test=y, pooled=False)
    iid = make_settings(partition="iid", num_clients=6)
    by_day = CsvSettings(
        path=str(write_table(tmp_path / "t.csv")),
        client_column="site",
        target="ill",
        order_column="day",
        validation_fraction=0.2,
        validation_seed=DRAWN_BY,
    )
    marked = make_arrays(division=RowDivision(is_test=np.arange(ROWS) % 5 == 0))
    cases: list[tuple[LabeledArrays, Divisible]] = [
        (with_test_set, iid),
        (load_table_arrays(by_day), by_day),
        (marked, make_settings()),
    ]
    for arrays, settings in cases:
        assert divide(arrays, settings) == divide(arrays, replace(settings, validation_seed=None))


def test_a_device_validates_the_rows_that_it_would_in_a_table_of_all() -> None:
    """Its division follows from its own rows, the seeds and its id."""
    whole, settings = make_arrays(), make_settings()
    (_, train), (_, validation), (_, test) = PartitionedData(whole, settings, 5).list_targets()
    rows = np.flatnonzero(whole.client_train == 4)
    device = build_pooled_arrays(whole.x_train[rows], whole.y_train[rows], 4)
    split = split_single_client(device, settings, client=4, seed=5)
    assert rows[split.train].tolist() == train[4].tolist()
    assert rows[split.validation].tolist() == validation[4].tolist()
    assert rows[split.test].tolist() == test[4].tolist()


def test_a_client_of_rows_for_validation_trains_on_one() -> None:
    """A division at random may give a client no others."""
    division = RowDivision(is_validation=np.ones(3, dtype=np.bool_))
    train, validation = division.split_validation(
        np.zeros(3, dtype=np.int64), 0.2, client=0, seed=0
    )
    assert (train.tolist(), validation.tolist()) == ([0], [1, 2])
