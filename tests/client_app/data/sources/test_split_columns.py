"""Columns and files that divide a client's rows: groups, times, and test files."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data.load import load_data
from client_app.data.partitioned import PartitionedData
from client_app.data.sources.csv_table import read_csv_table
from client_app.data.sources.split_columns import read_order
from client_app.data.tabular import load_table_arrays
from conf.compose import compose_settings
from conf.schema.data import CsvSettings

HEADER = "site,patient,day,age,ill"


def make_rows(site: str, n: int = 20) -> list[str]:
    """Rows of n / 2 patients with two rows each, the days descending."""
    return [
        f"{site},{site[0]}{i // 2},{2026 - i:04}-03-01,{i}.5,{'yes' if i % 3 else 'no'}"
        for i in range(n)
    ]


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def make_settings(path: Path, **settings: Any) -> CsvSettings:
    defaults: dict[str, Any] = {"client_column": "site", "target": "ill"}
    return CsvSettings(path=str(path), **defaults | settings)


def load(settings: CsvSettings, seed: int = 0) -> PartitionedData:
    return PartitionedData(load_table_arrays(settings), settings, seed)


def list_rows(data: PartitionedData, split: str, client: int) -> list[int]:
    """Return the numbers, within the client, of the rows of a split."""
    pool = data.get_pooled_split(split, [client])  # type: ignore[arg-type]
    return sorted(pool.rows[client] % 20)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "table.csv", [*make_rows("North"), *make_rows("South")])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_of_a_group_stay_in_one_split(table: Path, seed: int) -> None:
    """In training, validation or test; the column is no input."""
    settings = make_settings(table, group_column="patient", validation_fraction=0.25)
    data = load(settings, seed)
    assert data.input_shape == (1,)
    for client in (0, 1):
        patients = [
            {row // 2 for row in list_rows(data, split, client)}
            for split in ("train", "validation", "test")
        ]
        assert sum(map(len, patients)) == 10
        assert set.union(*patients) == set(range(10))
        assert len(patients[2]) == 2
    assert data.count_test_units(0) == 2
    assert load(make_settings(table, drop_columns=["patient"])).count_test_units(0) == 4


def test_the_latest_rows_are_for_testing(table: Path) -> None:
    """And of those for training, the latest are for validation; the seed changes nothing."""
    for seed in (0, 1):
        settings = make_settings(
            table, order_column="day", drop_columns=["patient"], validation_fraction=0.25
        )
        data = load(settings, seed)
        assert data.input_shape == (1,)
        for client in (0, 1):
            assert list_rows(data, "test", client) == [0, 1, 2, 3]
            assert list_rows(data, "validation", client) == [4, 5, 6, 7]
            assert list_rows(data, "train", client) == list(range(8, 20))


@pytest.mark.parametrize(
    "settings",
    [
        {"group_column": "patient"},
        {"order_column": "day", "drop_columns": ["patient"], "validation_fraction": 0.25},
    ],
)
def test_a_device_divides_as_the_table_of_all(
    tmp_path: Path, table: Path, settings: dict[str, Any]
) -> None:
    """Groups and times count there as well."""
    columns = {"numbers": ["age"], "classes": ["no", "yes"]}
    own = write(tmp_path / "north.csv", make_rows("North"))
    device = make_settings(own, client_column=None, num_clients=1, columns=columns, **settings)
    alone = load_data(device, 0).get_client(0)
    together = load(make_settings(table, columns=columns, **settings)).get_client(0)
    np.testing.assert_array_equal(alone.x_test, together.x_test)
    np.testing.assert_array_equal(alone.y_train, together.y_train)


def test_test_files(tmp_path: Path) -> None:
    """Their rows are the test splits; classes are those of both files, inputs those trained on."""
    train = write(tmp_path / "train.csv", ["a,1,x,no", "a,3,x,yes", "b,5,y,no"], "site,age,job,ill")
    test = write(tmp_path / "test.csv", ["b,7,z,maybe", "a,2,x,no", "a,4,x,no"], "site,age,job,ill")
    data = load(make_settings(train, test_path=str(test)))
    assert data.client_names == ("a", "b")
    assert data.class_names == ("maybe", "no", "yes")
    assert data.input_shape == (4,)
    one = data.get_client(0)
    np.testing.assert_array_equal(one.x_train[:, 0], [-1, 1])
    np.testing.assert_array_equal(one.x_test[:, 0], [0, 2])
    assert one.y_test.tolist() == [1, 1]
    np.testing.assert_array_equal(data.get_client(1).x_test, [[2, 0, 0, 0]])


def test_folders_for_training_and_testing(tmp_path: Path) -> None:
    """Files of one name, or folders of one name, are one client's."""
    for name, rows in (("North", ["1,no", "2,yes"]), ("South", ["3,no", "4,no"])):
        write(tmp_path / "train" / f"{name}.csv", rows, "age,ill")
        write(tmp_path / "test" / name / "part.csv", rows[:1], "age,ill")
    settings = make_settings(tmp_path / "train", test_path=str(tmp_path / "test"), client_column="")
    data = load(settings)
    assert data.client_names == ("North", "South")
    assert [len(data.get_client(k).y_test) for k in (0, 1)] == [1, 1]
    assert not [doubt for doubt in read_csv_table(settings).warnings if "test_path" in doubt]


@pytest.mark.parametrize(
    ("test_rows", "message"),
    [
        (["a,1,no", "c,1,no", "b,1,no"], ("data.path must have rows of each client of "
         "data.test_path, got none of c$")),
        (["a,1,no"], "data.test_path must have rows of each client of data.path, got none of b$"),
        (["a,1,no,3"], "data.test_path must be files as in data.path, .*: line 2 has 4 cells"),
        ([], "data.test_path must be files as in data.path, .*: it has no rows"),
    ],
)  # fmt: skip
def test_test_files_that_do_not_fit(tmp_path: Path, test_rows: list[str], message: str) -> None:
    """Clients of one part only are named, and files that are no table."""
    train = write(tmp_path / "train.csv", ["a,1,no", "a,2,yes", "b,3,no"], "site,age,ill")
    test = write(tmp_path / "test.csv", test_rows, "site,age,ill")
    with pytest.raises(DataError, match=message):
        load(make_settings(train, test_path=str(test)))


def test_small_clients_with_test_files(tmp_path: Path) -> None:
    """``data.min_samples`` counts rows for training, and leaves out both parts."""
    train = write(tmp_path / "train.csv", ["a,1,no", "a,2,yes", "b,3,no"], "site,age,ill")
    test = write(tmp_path / "test.csv", ["a,1,no", "b,2,no", "b,3,no"], "site,age,ill")
    data = load(make_settings(train, test_path=str(test), min_samples=2))
    assert data.client_names == ("a",)
    assert len(data.get_client(0).y_test) == 1


def test_errors_of_test_files_name_the_file(tmp_path: Path) -> None:
    """Rows below those for training are found in their own file."""
    train = write(tmp_path / "train.csv", ["a,1,no", "a,2,yes"], "site,age,ill")
    test = write(tmp_path / "test.csv", ["a,1,no", "a,inf,no"], "site,age,ill")
    with pytest.raises(DataError, match=r"age is inf in line 3 of test\.csv$"):
        load(make_settings(train, test_path=str(test)))


def test_a_group_in_both_files(tmp_path: Path) -> None:
    """It would leak, and is named."""
    train = write(tmp_path / "train.csv", ["a,7,1,no", "a,8,2,yes"], "site,who,age,ill")
    test = write(tmp_path / "test.csv", ["a,9,1,no", "a,8,3,no"], "site,who,age,ill")
    message = r"got who 8 in line 3 of train\.csv and line 3 of test\.csv$"
    with pytest.raises(DataError, match=message):
        load(make_settings(train, test_path=str(test), group_column="who"))


@pytest.mark.parametrize("key", ["group_column", "order_column"])
def test_missing_values_are_named_by_line(tmp_path: Path, key: str) -> None:
    """A row without a group or a time cannot be placed."""
    path = write(tmp_path / "a.csv", ["a,1,no,1", "a,,yes,2", "a,,yes,3"], "site,who,ill,age")
    message = (
        rf"data\.{key} must be a column without missing values, got who, .* in line 3 of .* and in "
        "1 more rows$"
    )
    with pytest.raises(DataError, match=message):
        load(make_settings(path, **{key: "who"}))


def test_a_client_with_one_group(tmp_path: Path) -> None:
    """It is named, with the setting."""
    path = write(tmp_path / "a.csv", ["a,1,no,1", "a,2,yes,2", "b,3,no,3", "b,3,no,4"],
                 "site,who,ill,age")  # fmt: skip
    message = r"data\.group_column must have at least 2 values for each client, .* for client b wit"
    with pytest.raises(DataError, match=message):
        load(make_settings(path, group_column="who"))


@pytest.mark.parametrize(
    "cells",
    [
        ["2026-03-01", "2025-12-31", "2026-03-01"],
        ["2026-03-01 10:00", "2026-03-01 09:59:59", "2026-03-01T10:00:00"],
        ["22.01.2022", "03.12.2021", "22.01.2022"],
        ["01.02.2022", "02.01.2022", "01.02.2022"],
        ["13/01/2022", "12/01/2022", "13/01/2022"],
        ["01/13/2022", "01/12/2022", "01/13/2022"],
        ["3 Mar 2022", "28 Feb 2022", "3 Mar 2022"],
        ["20260301", "20251231", "20260301"],
        ["10", "9.5", "1e1"],
        ["-1", "-2", "-1.0"],
    ],
)
def test_times_in_usual_forms(cells: list[str]) -> None:
    """Dates and numbers: the second is the earliest, the others are equal."""
    assert read_order(pa.chunked_array([cells]), "day", str).tolist() == [1, 0, 1]


def test_typed_times() -> None:
    """Those of Parquet and Excel need no reading."""
    days = pa.chunked_array([pa.array(["2026-03-02", "2026-03-01"]).cast(pa.date32())])
    assert read_order(days, "day", str).tolist() == [1, 0]
    assert read_order(pa.chunked_array([[2.5, -1]]), "day", str).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["2026-03-01", "2026-13-01", "x"], "got day, which is '2026-13-01' in row 1"),
        (["1", "2", "third"], "got day, which is 'third' in row 2"),
        (
            ["01/02/2022", "02/01/2022"],
            "days and months can be told apart",
        ),
        (["monday", "tuesday"], "got day, which is 'monday' in row 0"),
        (["2022-01-02", "2022-02-30"], "got day, which is '2022-02-30' in row 1"),
        (["1", "nan"], "got day, which is 'nan' in row 1"),
    ],
)
def test_times_that_cannot_be_read(cells: list[str], message: str) -> None:
    """The first cell that is none is shown with its place."""
    with pytest.raises(DataError, match=message):
        read_order(pa.chunked_array([cells]), "day", lambda row: f"row {row}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("data.group_column=a data.order_column=b", r"data\.order_column must be null where"),
        ("data.group_column=site", r"data\.group_column must be no column of data\.client_column"),
        ("data.order_column=ill", r"data\.order_column must be no column of data\.target"),
        ("data.group_column=age data.columns={numbers:[age],classes:[a,b]}",
         r"data\.group_column must be no column of data\.columns, got 'age'"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_together(words: str, message: str) -> None:
    """Refused before any work."""
    table = "data=csv data.path=x data.client_column=site data.target=ill"
    with pytest.raises(SettingsError, match=message):
        compose_settings("custom", f"{table} {words}")


@pytest.mark.parametrize("key", ["group_column", "order_column"])
def test_a_column_that_is_not_there(table: Path, key: str) -> None:
    """As for the other columns."""
    with pytest.raises(DataError, match=rf"data\.{key} must be one of the columns of .*'pat'"):
        load(make_settings(table, **{key: "pat"}))
