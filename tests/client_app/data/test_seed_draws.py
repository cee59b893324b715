"""Tests of what a seed draws anew, on tables and arrays of each kind of division."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data import load_data
from client_app.data.partitioned import PartitionedData
from client_app.data.seed_draws import SeedDraws, assume_seed_draws, find_seed_draws
from client_app.data.sources.base import LabeledArrays
from conf.schema.data import CsvSettings, NpzSettings, PartitionedSettings, SynthSettings

CLIENTS, ROWS = 4, 50


@pytest.fixture
def table(tmp_path: Path) -> CsvSettings:
    """Return a table of four clients with 50 rows each, a fifth of them for validation."""
    rng = np.random.default_rng(0)
    rows = [
        f"{k},{rng.normal():.4f},{rng.integers(2)},{day}"
        for k in range(CLIENTS)
        for day in range(ROWS)
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["site,x,ill,day", *rows]))
    return CsvSettings(path=str(path), client_column="site", target="ill", validation_fraction=0.2)


def find_table_draws(settings: CsvSettings) -> SeedDraws:
    """Return what differs between the first two seeds of a table."""
    return find_seed_draws(load_data(settings, 1), load_data(settings, 2))


def find_array_draws(*, pooled: bool = False, **settings: Any) -> SeedDraws:
    """Return what differs between two seeds that divide arrays of 100 and 40 rows."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(140, 3)).astype(np.float32), np.arange(140) % 2
    arrays = LabeledArrays(x[:100], y[:100], x[100:], y[100:], 2)
    if pooled:
        arrays = LabeledArrays(x, y, x, y, 2, pooled=True)
    divided = NpzSettings if pooled else PartitionedSettings
    chosen = divided(name="tiny", num_clients=5, validation_fraction=0.2, **settings)
    return find_seed_draws(*(PartitionedData(arrays, chosen, seed) for seed in (1, 2)))


def test_a_table_tests_other_rows_with_each_seed(table: CsvSettings) -> None:
    """Clients keep their rows; of 50, 10 are tested, 8 validate and 32 train."""
    draws = find_table_draws(table)
    assert draws == SeedDraws(False, True, True, False, 10 / 32)
    assert draws.correction == 0.3125


def test_the_latest_rows_are_the_same_with_each_seed(table: CsvSettings) -> None:
    """A seed draws neither the rows tested nor, by time, those trained on."""
    draws = find_table_draws(replace(table, order_column="day"))
    assert draws == SeedDraws(False, False, False, False, 10 / 32)
    assert draws.correction == 0


def test_a_test_set_of_its_own_stays(table: CsvSettings) -> None:
    """Seeds divide the other rows into those for training and for validation."""
    draws = find_table_draws(replace(table, test_path=table.path))
    assert (draws.test_rows, draws.train_rows, draws.correction) == (False, True, 0)


def test_clients_are_divided_anew() -> None:
    """With a test set of its own every seed tests all of its rows, otherwise others."""
    fixed = find_array_draws(partition="iid")
    assert fixed == SeedDraws(False, False, True, True, 40 / 80)
    anew = find_array_draws(pooled=True, partition="iid", test_fraction=0.2)
    assert (anew.test_rows, anew.division) == (True, True)
    assert anew.correction == pytest.approx(28 / 90, abs=0.02)


def test_generated_data_is_new() -> None:
    """Seeds of generated data are independent, so nothing is corrected."""
    settings = SynthSettings(num_clients=4, num_priority=2, samples_per_client=20)
    draws = find_seed_draws(load_data(settings, 1), load_data(settings, 2))
    assert (draws.data, draws.correction) == (True, 0)


def test_rows_on_devices_are_assumed_to_be_divided_anew() -> None:
    """By the settings, a fifth of the rows for testing and a fifth of the others for validation."""
    draws = assume_seed_draws(0.2, 0.2)
    assert draws.is_assumed
    assert draws.correction == pytest.approx(0.3125)
