"""The clients of a table: parts, scales and categories."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import SettingsError

from client_app.data import load_data
from client_app.data.base import select_split
from client_app.data.moments import Numbers
from client_app.data.partitioned import PartitionedData
from client_app.data.scaling import NumberScale
from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import read_csv_table
from client_app.node.node import Node
from conf.compose import compose_settings
from conf.schema.data import CsvSettings

SIZES = {"a": 40, "b": 25, "c": 2}


def save(folder: Path, seed: int = 0) -> Path:
    """Write a table whose column ``row`` is the number of the row, from 0, as a fraction."""
    rng = np.random.default_rng(seed)
    lines = ["client,row,size,sparse,kind,label"]
    for client, count in SIZES.items():
        for i in range(count):
            size = f"{rng.normal(100, 30):.3f}" if rng.random() < 0.8 or i == 0 else ""
            sparse = "7.5" if client == "a" and i % 10 == 0 else ""
            kind = rng.choice(["x", "y", "z"] if client == "a" else ["x", ""])
            row, label = len(lines) - 1, rng.integers(3)
            lines.append(f"{client},{row}.0,{size},{sparse},{kind},{label}")
    path = folder / "table.csv"
    path.write_text("\n".join(lines))
    return path


def load(path: Path, seed: int = 1, **settings: Any) -> PartitionedData:
    csv_settings = CsvSettings(path=str(path), client_column="client", target="label", **settings)
    data = load_data(csv_settings, seed)
    assert isinstance(data, PartitionedData)
    return data


def read_table(path: Path) -> ClientTable:
    """Return the table as it is read, before its numbers are scaled."""
    return read_csv_table(CsvSettings(path=str(path), client_column="client", target="label"))


def get_rows(data: PartitionedData) -> list[tuple[list[int], list[int]]]:
    """Return the training and the test rows of each client."""
    return [(share.train.tolist(), share.test.tolist()) for share in data._partition]


def read_raw_table(path: Path) -> dict[str, list[str]]:
    """Return the cells of each column, read by other means than the project's."""
    header, *rows = (line.split(",") for line in path.read_text().split("\n"))
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def test_shapes_and_types(tmp_path: Path) -> None:
    """Float32 inputs of equal width for all clients, int64 labels, everybody with priority."""
    path = save(tmp_path)
    data = load(path)
    assert (data.num_clients, data.input_shape, data.num_classes) == (3, (7,), 3)
    assert read_table(path).columns == (
        "row",
        "size",
        "sparse",
        "kind=x",
        "kind=y",
        "kind=z",
        "kind=",
    )
    assert data.priority == (0, 1, 2)
    for client, n in enumerate(SIZES.values()):
        client_data = data.get_client(client)
        assert client_data.x_train.dtype == np.float32
        assert client_data.y_train.dtype == np.int64
        assert len(client_data.y_test) == max(round(0.2 * n), 1)
        for x, y in (
            (client_data.x_train, client_data.y_train),
            (client_data.x_test, client_data.y_test),
        ):
            assert x.shape == (len(y), 7)
            assert x.flags.c_contiguous
            assert np.isfinite(x).all()
        np.testing.assert_array_equal(data.get_labels(client), client_data.y_train)


def test_no_row_is_in_two_parts(tmp_path: Path) -> None:
    """Every row of the file is in the training or in the test part of its client, once."""
    path = save(tmp_path)
    data, cells = load(path), read_raw_table(path)
    seen = []
    for client, (train, test) in enumerate(get_rows(data)):
        assert not set(train) & set(test)
        assert {cells["client"][row] for row in [*train, *test]} == {"abc"[client]}
        client_data = data.get_client(client)
        assert client_data.y_train.tolist() == [int(cells["label"][row]) for row in train]
        assert client_data.y_test.tolist() == [int(cells["label"][row]) for row in test]
        seen += [*train, *test]
    assert sorted(seen) == list(range(sum(SIZES.values())))


@pytest.mark.parametrize(
    ("seed", "fill"), [(1, "median"), (2, "median"), (3, "median"), (1, "mean")]
)
def test_numbers_are_scaled_by_the_training_part(tmp_path: Path, seed: int, fill: str) -> None:
    """(x - mean) / sd, and median or mean for what is missing, all of the own training rows."""
    path = save(tmp_path)
    data, cells = load(path, seed, imputation=fill), read_raw_table(path)
    for client, (train, test) in enumerate(get_rows(data)):
        client_data = data.get_client(client)
        for column, name in enumerate(("row", "size")):
            registered = [float(cells[name][row]) for row in train if cells[name][row]]
            median = (
                sorted(registered)[len(registered) // 2]
                if len(registered) % 2
                else (
                    sum(sorted(registered)[len(registered) // 2 - 1 : len(registered) // 2 + 1]) / 2
                )
            )
            missing = median if fill == "median" else sum(registered) / len(registered)
            filled = [float(cells[name][row] or missing) for row in train]
            mean = sum(filled) / len(filled)
            sd = (sum((v - mean) ** 2 for v in filled) / len(filled)) ** 0.5 or 1.0
            for x, rows in ((client_data.x_train, train), (client_data.x_test, test)):
                expected = [(float(cells[name][row] or missing) - mean) / sd for row in rows]
                np.testing.assert_allclose(x[:, column], expected, rtol=1e-5, atol=1e-5)
        if len(train) > 1:
            np.testing.assert_allclose(client_data.x_train[:, :2].mean(axis=0), 0, atol=1e-6)
            np.testing.assert_allclose(client_data.x_train[:, :2].std(axis=0), 1, atol=1e-6)


def test_test_rows_do_not_matter_for_the_scale(tmp_path: Path) -> None:
    """A test row that becomes an outlier changes nothing but itself."""
    path = save(tmp_path)
    data = load(path)
    before = data.get_client(0)
    row = int(data._partition[0].test[0])
    lines = path.read_text().split("\n")
    cells = lines[1 + row].split(",")
    lines[1 + row] = ",".join([*cells[:2], "1e6", *cells[3:]])
    path.write_text("\n".join(lines))
    after = load(path, num_clients=3).get_client(0)  # other settings, so that it is read anew
    np.testing.assert_array_equal(after.x_train, before.x_train)
    np.testing.assert_array_equal(after.x_test[1:], before.x_test[1:])
    assert after.x_test[0, 1] > 1000


def test_validation_rows_are_taken_from_training(tmp_path: Path) -> None:
    """The test part stays; the scale is that of what is trained on; two rows keep the one."""
    path = save(tmp_path)
    whole, data = load(path), load(path, validation_fraction=0.25)
    labels = read_table(path).labels
    for client, (before, after) in enumerate(zip(whole._partition, data._partition, strict=True)):
        np.testing.assert_array_equal(after.test, before.test)
        assert sorted([*after.train, *after.validation]) == before.train.tolist()
        assert len(after.validation) == (round(0.25 * len(before.train)) if client < 2 else 0)
        split = data.get_pooled_split("validation", [client])
        assert split.rows.counts.tolist() == [len(after.validation)]
        assert split.y[split.rows[client]].tolist() == labels[after.validation].tolist()
        x_train, _ = select_split(data.get_client(client), "train")
        if client < 2:
            np.testing.assert_allclose(x_train[:, :2].std(axis=0), 1, atol=1e-6)
    assert not len(whole.get_pooled_split("validation", [0, 1, 2]).rows.flat)


def test_a_constant_column_is_0(tmp_path: Path) -> None:
    """Its deviation counts as 1, also where the mean of equal numbers is rounded."""
    path = save(tmp_path)
    lines = path.read_text().split("\n")
    constant = [lines[0] + ",same", *(line + ",0.1" for line in lines[1:])]
    path.write_text("\n".join(constant))
    data = load(path)
    column = read_table(path).columns.index("same")
    for client in range(3):
        client_data = data.get_client(client)
        assert not client_data.x_train[:, column].any()
        assert not client_data.x_test[:, column].any()


def test_a_constant_column_keeps_what_differs_in_the_test_part(tmp_path: Path) -> None:
    """There the difference itself is the input."""
    path = save(tmp_path)
    row = int(load(path)._partition[0].test[0])
    lines = path.read_text().split("\n")
    values = [0.1] * (len(lines) - 1)
    values[row] = 2.6
    path.write_text(
        "\n".join(
            [lines[0] + ",same", *(f"{a},{b}" for a, b in zip(lines[1:], values, strict=True))]
        )
    )
    data = load(path, num_clients=3)
    client = data.get_client(0)
    column = read_table(path).columns.index("same")
    np.testing.assert_allclose(client.x_test[:, column], [2.5, *[0] * (len(client.x_test) - 1)])


def test_each_client_is_scaled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that loads the training, test and validation rows of six clients scales six times."""
    scale, counts = NumberScale.apply, []

    def count(self: NumberScale, numbers: Numbers) -> Numbers:
        counts.append(len(numbers))
        return scale(self, numbers)

    monkeypatch.setattr(NumberScale, "apply", count)
    lines = [f"h{i % 6},{i}.5,{i % 2}" for i in range(60)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["client,size,label", *lines]))
    overrides = (
        f"data=csv data.path={path} data.client_column=client data.target=label "
        "data.validation_fraction=0.2 model=logistic_regression"
    )
    node = Node(compose_settings("custom", overrides).settings)
    node.load_clients(range(6))
    node.load_clients(range(0, 6, 2))
    assert counts == [10] * 6


@pytest.mark.parametrize("fill", ["median", "mean"])
def test_a_column_without_numbers_is_0(tmp_path: Path, fill: str) -> None:
    """Clients b and c have none at all; one that only the test part has says nothing either."""
    path = save(tmp_path)
    data = load(path, imputation=fill)
    column = read_table(path).columns.index("sparse")
    for client in (1, 2):
        assert not data.get_client(client).x_train[:, column].any()
    row = int(data._partition[1].test[0])
    lines = path.read_text().split("\n")
    cells = lines[1 + row].split(",")
    lines[1 + row] = ",".join([*cells[:3], "9", *cells[4:]])
    path.write_text("\n".join(lines))
    assert not load(path, num_clients=3, imputation=fill).get_client(1).x_test[:, column].any()


def test_one_hot_columns_are_the_same_for_all(tmp_path: Path) -> None:
    """A client has columns of categories that it never sees, and of missing ones."""
    path = save(tmp_path)
    data, cells = load(path), read_raw_table(path)
    for client, (train, test) in enumerate(get_rows(data)):
        client_data = data.get_client(client)
        for x, rows in ((client_data.x_train, train), (client_data.x_test, test)):
            expected = [
                [cells["kind"][row] == kind for kind in ("x", "y", "z", "")] for row in rows
            ]
            np.testing.assert_array_equal(x[:, 3:], expected)


def test_a_client_may_change_its_data(tmp_path: Path) -> None:
    """What a client does to its arrays stays there: the next time they are as before."""
    data = load(save(tmp_path))
    client = data.get_client(0)
    before = client.x_train.copy()
    client.x_train[:] = 0
    client.y_train[:] = -1
    np.testing.assert_array_equal(data.get_client(0).x_train, before)
    assert data.get_labels(0).min() >= 0


def test_data_depends_on_the_seed(tmp_path: Path) -> None:
    """Another seed draws other test rows of the same clients."""
    path = save(tmp_path)
    first, again, other = (load(path, seed).get_client(0).x_test for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_test_fraction(tmp_path: Path) -> None:
    """As much as the setting says is for testing."""
    data = load(save(tmp_path), test_fraction=0.5)
    assert [len(data.get_client(k).y_test) for k in range(3)] == [20, 12, 1]


def test_priority(tmp_path: Path) -> None:
    """All by default, and as of any data set otherwise."""
    path = save(tmp_path)
    assert load(path, priority=[2, 0]).priority == (0, 2)
    assert len(load(path, priority="random", num_priority=2).priority) == 2
    assert len(load(path, priority="heterogeneous", num_priority=1).priority) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_clients": 4}, "data.num_clients must be null or 3, the .* the data, got 4$"),
        ({"priority": [3]}, r"data.priority must be an id from 0 to 2 or .*, got 3$"),
        ({"priority": "random", "num_priority": 4}, "data.num_priority must be at most .* got 4$"),
        ({"priority_weights": {5: 0.5}}, r"data.priority_weights .* from 0 to 2 or .*, got 5$"),
    ],
)
def test_unknown_clients(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Settings of clients are compared with the data, in one line."""
    with pytest.raises(SettingsError, match=f"^{message}"):
        load(save(tmp_path), **settings)


@pytest.mark.slow
def test_slow_libraries_are_not_needed(tmp_path: Path) -> None:
    """A table needs neither torchvision nor flwr-datasets, which take seconds to import."""
    slow = ("torchvision", "flwr_datasets", "datasets")
    code = (
        "import sys; from client_app.data import load_data; "
        "from conf.schema.data import CsvSettings; "
        f"load_data(CsvSettings(path={str(save(tmp_path))!r}, client_column='client', "
        f"target='label'), 1).get_client(0); print([m for m in {slow} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- real files ------------------------------------------------------------------------------


def real(experiment: str, file: Path) -> tuple[PartitionedData, ClientTable]:
    overrides = f"strategy=fedavg data.path={file}"
    settings = compose_settings(experiment, overrides).settings.data
    data = load_data(settings, 1)
    assert isinstance(data, PartitionedData)
    assert isinstance(settings, CsvSettings)
    return data, read_csv_table(settings)


def test_real_berka(berka_file: Path) -> None:
    """621 loans of 7 regions, 75 of them in default; each test part has both."""
    data, table = real("aaggff/berka", berka_file)
    assert (data.num_clients, data.num_classes, data.input_shape) == (7, 2, (16,))
    assert table.client_names[0] == "Prague"
    assert table.classes == ("0", "1")
    assert [c for c in table.columns if "=" in c] == [
        f"frequency=POPLATEK {word}" for word in ("MESICNE", "PO OBRATU", "TYDNE")
    ]
    clients = [data.get_client(k) for k in range(7)]
    sizes = [len(client.y_train) + len(client.y_test) for client in clients]
    assert sum(sizes) == 621
    assert sum(int(client.y_train.sum() + client.y_test.sum()) for client in clients) == 75
    assert sizes == [84, 90, 84, 117, 60, 129, 57]
    for client in clients:
        assert 1 <= client.y_test.sum() <= 4
        np.testing.assert_allclose(client.x_train[:, :13].mean(axis=0), 0, atol=1e-5)


def test_real_heart(real_file: Callable[[str], Path]) -> None:
    """920 patients of 4 hospitals, the authors' 15 columns and one for a missing restecg."""
    data, table = real("aaggff/heart", real_file("heart_uci.csv"))
    assert (data.num_clients, data.num_classes, data.input_shape) == (4, 2, (16,))
    assert table.client_names == ("cleveland", "hungarian", "switzerland", "va")
    assert table.columns == (
        *("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak"),
        *("cp=1", "cp=2", "cp=3", "cp=4", "restecg=0", "restecg=1", "restecg=2", "restecg="),
    )
    np.testing.assert_array_equal(
        table.categories.sum(axis=0), [46, 174, 204, 496, 551, 179, 188, 2]
    )
    clients = [data.get_client(k) for k in range(4)]
    assert [len(client.y_train) + len(client.y_test) for client in clients] == [303, 294, 123, 200]
    positive = [int(client.y_train.sum() + client.y_test.sum()) for client in clients]
    assert positive == [139, 106, 115, 149]
    chol = table.columns.index("chol")
    assert np.isnan(table.numbers[:, chol]).sum() == 30
    assert (table.numbers[:, chol] == 0).sum() == 172
    assert not clients[2].x_train[:, chol].any()  # Switzerland has nothing but 0
    for client in clients:
        np.testing.assert_allclose(client.x_train[:, :8].mean(axis=0), 0, atol=1e-5)
        assert 0 < client.y_test.sum() < len(client.y_test)
