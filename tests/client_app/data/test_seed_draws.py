"""Tests of what seeds draw anew, found by comparing the data of two seeds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.data import load_data
from client_app.data.seed_draws import SeedDraws, assume_seed_draws, find_seed_draws
from conf.schema.data import CsvSettings, DataSettings, NpzSettings, SynthSettings
from tests.client_app.data.test_partitioned import make_partitioned

ROWS = 120


def write_table(path: Path) -> Path:
    """Write a table of three sites, with a day for each row."""
    lines = ["site,day,x,ill"]
    lines += [f"{'ABC'[n % 3]},{n},{n * 7 % 13},{n % 2}" for n in range(ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def find_table_draws(path: Path, **settings: Any) -> SeedDraws:
    """Return what seeds draw of this table."""
    given = CsvSettings(path=str(path), client_column="site", target="ill", **settings)
    return find_seed_draws(load_data(given, 1), load_data(given, 2))


def test_a_table_without_test_rows_is_divided_anew(tmp_path: Path) -> None:
    """The sites keep their rows; each seed divides these into tested and trained ones."""
    table = write_table(tmp_path / "t.csv")
    draws = find_table_draws(table)
    assert draws == SeedDraws(False, True, True, False, 0.25)
    assert draws.correction == 0.25
    # A fifth tests, and a fifth of the other 32 rows of a site, 6, is for validation.
    assert find_table_draws(table, validation_fraction=0.2).correction == pytest.approx(8 / 26)


def test_later_rows_are_the_same_test_rows_for_all_seeds(tmp_path: Path) -> None:
    """With ``data.order_column`` nothing of the division depends on the seed."""
    draws = find_table_draws(write_table(tmp_path / "t.csv"), order_column="day")
    assert (draws.test_rows, draws.train_rows, draws.division) == (False, False, False)
    assert draws.correction == 0.0


def test_a_test_set_that_is_divided_among_clients_anew() -> None:
    """All its rows are tested by some client in every seed."""
    one, other = (make_partitioned(partition="iid", seed=seed) for seed in (1, 2))
    draws = find_seed_draws(one, other)
    assert (draws.test_rows, draws.train_rows, draws.division) == (False, False, True)
    assert draws.correction == 0.0
    assert draws.test_to_train == pytest.approx(40 / 80)


def test_rows_drawn_from_a_test_set() -> None:
    """Clients that draw a part of the rows draw others with another seed."""
    settings: dict[str, Any] = {"partition": "iid", "samples_per_client": 4}
    one, other = (make_partitioned(seed=seed, **settings) for seed in (1, 2))
    draws = find_seed_draws(one, other)
    assert draws.train_rows
    assert draws.division


def test_rows_without_clients_and_test_set(tmp_path: Path) -> None:
    """Both divisions are drawn."""
    path = tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    np.savez(path, x_train=x, y_train=np.arange(ROWS) % 4)
    settings = NpzSettings(path=str(path), partition="iid", num_clients=4)
    draws = find_seed_draws(load_data(settings, 1), load_data(settings, 2))
    assert draws == SeedDraws(False, True, True, True, 0.25)


def test_generated_data_is_new() -> None:
    """So seeds are independent, and need no correction."""
    settings = SynthSettings(num_clients=4, num_priority=2)
    draws = find_seed_draws(load_data(settings, 1), load_data(settings, 2))
    assert draws.data
    assert draws.correction == 0.0
    assert draws.test_to_train > 0


@pytest.mark.parametrize("kind", ["generated", "table"])
def test_a_seed_of_the_data_draws_nothing_anew(kind: str, tmp_path: Path) -> None:
    """``data.seed`` gives every run the same rows, those of a run with this seed."""
    settings: DataSettings = SynthSettings(num_clients=3, num_priority=2, seed=7)
    if kind == "table":
        path = str(write_table(tmp_path / "t.csv"))
        settings = CsvSettings(path=path, client_column="site", target="ill", seed=7)
    one, other = load_data(settings, 1), load_data(settings, 2)
    draws = find_seed_draws(one, other)
    assert not any((draws.data, draws.test_rows, draws.train_rows, draws.division))
    of_run = load_data(replace(settings, seed=None), 7)
    for k in range(3):
        for found, expected in zip(one.get_targets(k), of_run.get_targets(k), strict=True):
            assert np.array_equal(found, expected)


def test_devices_draw_what_their_settings_say() -> None:
    """Nobody else sees their rows."""
    draws = assume_seed_draws(0.2, 0.2, train_rows=True, test_rows=True)
    assert draws.is_assumed
    assert draws.correction == pytest.approx(0.3125)
    fixed = assume_seed_draws(0.2, 0.2, train_rows=False, test_rows=False)
    assert fixed.correction == 0.0
    assert not fixed.train_rows
