"""Test the loading of data from settings, and its cache."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client_app.data import load_data
from client_app.data.base import Split, select_split, to_inputs
from client_app.data.partitioned import PartitionedData
from client_app.data.synth import SynthData
from conf.schema.data import (
    CsvSettings,
    DataSettings,
    NpzSettings,
    PartitionedSettings,
    SynthSettings,
)

SETTINGS = SynthSettings(num_clients=3, num_priority=2, sizes="equal", samples_per_client=10)


def test_same_settings_share_the_data() -> None:
    """Equal settings, though another object, get the data that is there."""
    assert load_data(SETTINGS, 1) is load_data(dataclasses.replace(SETTINGS), 1)


@pytest.mark.parametrize(
    "change",
    [
        {"samples_per_client": 20},
        {"num_clients": 4},
        {"noise": "flip"},
        {"priority": [2, 1]},
        {"alpha": 0.0},
    ],
    ids=str,
)
def test_other_settings_get_other_data(change: dict[str, object]) -> None:
    """A change of any setting gives a data set made with it."""
    before = load_data(SETTINGS, 1)
    settings = dataclasses.replace(SETTINGS, **change)  # type: ignore[arg-type]
    after = load_data(settings, 1)
    assert after is not before
    assert isinstance(after, SynthData)
    assert after._settings == settings


def test_another_seed_gets_other_data() -> None:
    """Another seed loads other data."""
    first, second = load_data(SETTINGS, 1), load_data(SETTINGS, 2)
    assert first is not second
    assert not np.array_equal(first.get_client(0).x_train, second.get_client(0).x_train)


def test_only_the_last_data_is_kept() -> None:
    """Only the last data is cached; earlier data is built again, and equal."""
    before = load_data(SETTINGS, 1)
    load_data(SETTINGS, 2)
    again = load_data(SETTINGS, 1)
    assert again is not before
    np.testing.assert_array_equal(again.get_client(2).x_train, before.get_client(2).x_train)


def test_a_file_is_divided_among_clients(tmp_path: Path) -> None:
    """The settings' source gives the arrays, and their partition deals them."""
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    settings = NpzSettings(path=str(tmp_path / "data.npz"), num_clients=2, shard_size=5)
    data = load_data(settings, 1)
    assert isinstance(data, PartitionedData)
    assert (data.num_clients, data.input_shape, data.num_classes) == (2, (2,), 2)
    given = np.concatenate([data.get_client(k).x_train for k in range(2)])
    np.testing.assert_array_equal(given[np.argsort(given[:, 0])], x)


def every_kind(directory: Path) -> dict[str, DataSettings]:
    x, y = np.arange(80, dtype=np.uint8).reshape(20, 2, 2), np.arange(20) % 2
    np.savez(directory / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    lines = [f"{i % 3},{i * i % 7},{'ab'[i % 2]}" for i in range(30)]
    (directory / "data.csv").write_text("\n".join(["who,number,label", *lines]))
    csv = CsvSettings(path=str(directory / "data.csv"), client_column="who", target="label")
    npz = NpzSettings(path=str(directory / "data.npz"), num_clients=2, shard_size=5)
    return {"synth": SETTINGS, "npz": npz, "csv": csv}


@pytest.mark.parametrize("kind", ["synth", "npz", "csv"])
def test_pools_have_the_clients_rows(kind: str, tmp_path: Path) -> None:
    """The rows of a pool are the inputs and labels of the requested clients, in order."""
    data = load_data(every_kind(tmp_path)[kind], 1)
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        pool = data.get_pooled_split(split, [1, 0])
        assert list(pool.rows) == [1, 0]
        for client, rows in pool.rows.items():
            x, y = select_split(data.get_client(client), split)
            np.testing.assert_array_equal(to_inputs(pool.x[rows]), x, strict=True)
            np.testing.assert_array_equal(pool.y[rows], y, strict=True)
            assert len(rows) > 0
    again = data.get_pooled_split("train", [0])
    shares_memory = np.shares_memory(again.x, data.get_pooled_split("train", [0, 1]).x)
    assert shares_memory is (kind != "synth")


@pytest.mark.parametrize(
    "settings", [DataSettings(name="x"), PartitionedSettings(name="x")], ids=repr
)
def test_settings_of_no_data_set_are_refused(settings: DataSettings) -> None:
    """Settings of no known data set raise and name their type."""
    with pytest.raises(TypeError, match=rf"for {type(settings).__name__}$"):
        load_data(settings, 1)


SLOW = ("torchvision", "flwr_datasets", "datasets")


@pytest.mark.slow
def test_slow_libraries_wait_until_they_are_needed() -> None:
    """SYNTH runs without torchvision and flwr-datasets, which take seconds to import."""
    code = (
        "import sys; from client_app.data import load_data; "
        "from conf.schema.data import SynthSettings; "
        "load_data(SynthSettings(), 1).get_client(0); "
        f"print([m for m in {SLOW} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
