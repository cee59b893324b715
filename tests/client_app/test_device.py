"""Test the data of one client on its device, and the settings that all must agree on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data import FederatedData, load_data
from conf.compose import compose_settings
from conf.schema.data import CsvSettings, DataSettings, NpzSettings
from tests.client_app.clients import assert_one_line

HEADER = "client,size,kind,label"
COLUMNS = {"numbers": ["size"], "categories": {"kind": ["x", "y", None]}, "classes": ["no", "yes"]}


def row(client: str, i: int) -> str:
    kind = "xy"[i % 2] if client == "a" else "" if i % 3 else "x"
    size = "" if i == 4 else f"{i * 1.5}"
    return f"{client},{size},{kind},{'yes' if i % 2 and client == 'a' else 'no'}"


def rows(client: str) -> list[str]:
    return [row(client, i) for i in range(8)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write a table of two clients, and each one's rows in a file without the client's column."""
    (tmp_path / "all.csv").write_text("\n".join([HEADER, *rows("b"), *rows("a")]))
    for client in "ab":
        lines = [HEADER, *rows(client)]
        text = "\n".join(line.partition(",")[2] for line in lines)
        (tmp_path / f"{client}.csv").write_text(text)
    return tmp_path


def table(path: Path, **others: Any) -> CsvSettings:
    given: dict[str, Any] = {"client_column": None, "num_clients": 2, "columns": COLUMNS, **others}
    return CsvSettings(path=str(path), target="label", **given)


def assert_equal(one: FederatedData, other: FederatedData, client: int) -> None:
    for split in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(
            getattr(one.get_client(client), split),
            getattr(other.get_client(client), split),
            strict=True,
        )


@pytest.mark.parametrize("fill", ["median", "mean"])
def test_a_device_has_what_the_simulation_has(files: Path, fill: str) -> None:
    """The rows of one client alone give the same inputs, classes and split as the whole table."""
    of_all = table(files / "all.csv", client_column="client", num_clients=None, imputation=fill)
    whole = load_data(of_all, 3)
    derived = CsvSettings(
        path=str(files / "all.csv"), client_column="client", target="label", imputation=fill
    )
    for k, name in enumerate("ab"):
        data = load_data(table(files / f"{name}.csv", imputation=fill), 3)
        assert (data.num_clients, data.input_shape, data.num_classes) == (2, (4,), 2)
        assert data.priority == (0, 1)
        assert_equal(data, whole, k)
        assert_equal(data, load_data(derived, 3), k)
        np.testing.assert_array_equal(data.get_labels(k), data.get_client(k).y_train)


def test_a_server_needs_no_file(tmp_path: Path) -> None:
    """Number of clients, priority and shapes follow from the settings alone."""
    data = load_data(table(tmp_path / "none.csv", priority=[1]), 1)
    assert (data.num_clients, data.priority, data.input_shape) == (2, (1,), (4,))
    with pytest.raises(DataError, match=r"there is no such file$"):
        data.get_client(1)
    settings = NpzSettings(
        path=str(tmp_path / "none.npz"),
        partition="device",
        num_clients=5,
        priority="all",
        input_shape=[1, 6, 5],
        num_classes=3,
    )
    data = load_data(settings, 1)
    assert (data.num_clients, data.input_shape, data.num_classes) == (5, (1, 6, 5), 3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("x,", "z,", r"data\.columns must lead to one of the agreed values x, y, null in each row"),
        (
            ",yes",
            ",maybe",
            r"data\.target must .* values no, yes .*'maybe' of label in line",
        ),
        ("size", "length", r"data\.columns must be one of the columns of .* got 'size'$"),
        (
            "1.5",
            "one",
            r"data\.path must have columns of numbers without other cells, .* line 3 has 'one'",
        ),
        (",yes", ",", r"data\.target must .* got a missing one of label in line"),
    ],
)
def test_data_outside_the_agreed_schema(files: Path, old: str, new: str, message: str) -> None:
    """A category, class or column that the others do not know is refused, with the line."""
    path = files / "a.csv"
    path.write_text(path.read_text().replace(old, new))
    assert_one_line(lambda: load_data(table(path), 1).get_client(0), f"^{message}")


def test_numbers_as_categories(tmp_path: Path) -> None:
    """Agreed categories and classes may be whole numbers; one device writes 1, another 1.0."""
    columns = {"categories": {"kind": [1, 2]}, "classes": [0, 1]}
    splits = []
    for name, one in (("a", "1"), ("b", "1.0")):
        lines = [f"{one},0", f"2,{one}", f"{one},0", f"2,{one}"]
        (tmp_path / f"{name}.csv").write_text("\n".join(["kind,label", *lines]))
        data = load_data(table(tmp_path / f"{name}.csv", columns=columns), 1)
        splits.append(data.get_client(0))
    np.testing.assert_array_equal(splits[0].x_train, splits[1].x_train)
    np.testing.assert_array_equal(splits[0].y_train, splits[1].y_train)


def test_one_row(tmp_path: Path) -> None:
    """It cannot be divided into a training and a test part."""
    (tmp_path / "a.csv").write_text("size,kind,label\n1,x,no\n")
    with pytest.raises(DataError, match=r"two parts need at least 2 rows, got 1$"):
        load_data(table(tmp_path / "a.csv"), 1).get_client(0)


def save(path: Path, classes: int = 3, shape: tuple[int, ...] = (6, 5)) -> NpzSettings:
    rng = np.random.default_rng(classes)
    x = rng.integers(256, size=(9, *shape), dtype=np.uint8)
    y = np.arange(9) % classes
    np.savez(path, allow_pickle=False, x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:])
    return NpzSettings(
        path=str(path),
        partition="device",
        num_clients=5,
        priority="all",
        input_shape=[1, 6, 5],
        num_classes=3,
    )


def test_arrays_of_one_client(tmp_path: Path) -> None:
    """A file of one client's arrays: all rows are its own, even where it lacks a class."""
    settings = save(tmp_path / "mine.npz", classes=2)
    client = load_data(settings, 1).get_client(4)
    assert client.x_train.shape == (6, 1, 6, 5)
    assert client.y_train.tolist() == [0, 1, 0, 1, 0, 1]
    assert client.y_test.tolist() == [0, 1, 0]


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    """More classes or another shape than agreed on are refused before training."""
    with pytest.raises(DataError, match=r"y_train must be classes from 0 to 2, got 0 to 3$"):
        load_data(save(tmp_path / "a.npz", classes=4), 1).get_client(0)
    with pytest.raises(DataError, match=r"of the agreed shape \(1, 6, 5\), got \(1, 7, 5\)$"):
        load_data(save(tmp_path / "b.npz", shape=(7, 5)), 1).get_client(0)


CSV = "data=csv data.path=x data.target=t"
NPZ = "data=npz data.path=x data.partition=device"
NEEDED = "must have a value where each device has only its own client's data, got null"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            f"{CSV} data.client_column=null",
            f"data.num_clients {NEEDED}",
        ),
        (
            f"{CSV} data.client_column=null data.num_clients=2",
            f"data.columns {NEEDED}",
        ),
        (f"{NPZ}", f"data.num_clients {NEEDED}"),
        (
            f"{NPZ} data.num_clients=2",
            f"data.input_shape {NEEDED}",
        ),
        (
            f"{NPZ} data.num_clients=2 data.input_shape=[3]",
            f"data.num_classes {NEEDED}",
        ),
        (
            f"{NPZ} data.num_clients=2 data.input_shape=[3] data.num_classes=2",
            "data.priority must be all, random or a list where each device has only its own client",
        ),
        (
            f"{CSV} data.client_column=c data.columns=[a]",
            "data.columns must be a mapping such as",
        ),
        (
            f"{CSV} data.client_column=c 'data.columns={{number: [a]}}'",
            "data.columns must be a mapping such as",
        ),
        (
            f"{CSV} data.client_column=c 'data.columns={{numbers: [a, a], classes: [0, 1]}}'",
            "data.columns.numbers must be a list of values, each once",
        ),
        (
            f"{CSV} data.client_column=c 'data.columns={{numbers: [t], classes: [0, 1]}}'",
            "data.columns must have at least one input column, each once, other than data.target",
        ),
        (
            f"{CSV} data.client_column=c 'data.columns={{numbers: [a]}}'",
            "data.columns.classes must be at least two values, none where data.regression is true",
        ),
    ],
)
def test_required_device_settings(overrides: str, message: str) -> None:
    """Settings must have what a single device cannot know, with valid values."""
    with pytest.raises(SettingsError) as caught:
        compose_settings("custom", overrides)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_agreed_columns_on_the_command_line(files: Path) -> None:
    """A mapping in the settings is the same as in Python."""
    overrides = (
        f"data=csv data.path={files / 'a.csv'} data.target=label data.client_column=null "
        "data.num_clients=2 'data.columns={numbers: [size], categories: {kind: [x, y, null]}, "
        'classes: ["no", "yes"]}\''
    )
    settings: DataSettings = compose_settings("custom", overrides).settings.data
    assert_equal(load_data(settings, 3), load_data(table(files / "a.csv"), 3), 0)
