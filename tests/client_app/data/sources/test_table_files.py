"""A table in one file or in several, as CSV and as Parquet."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import DataError

from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import read_csv_table
from conf.schema.data import CsvSettings

ROWS = {"west": ["31,baker,no", "7,smith,yes"], "east": ["1,smith,no", "2.5,,yes", "3,nurse,no"]}


def load(path: Path | str, **settings: Any) -> ClientTable:
    return read_csv_table(CsvSettings(path=str(path), target="paid", **settings))


def write_folder(tmp_path: Path, **rows: list[str]) -> Path:
    folder = tmp_path / "clients"
    folder.mkdir()
    for name, lines in {**ROWS, **rows}.items():
        (folder / f"{name}.csv").write_text("\n".join(["age,job,paid", *lines]) + "\n")
    return folder


def assert_same(one: ClientTable, other: ClientTable) -> None:
    assert (one.client_names, one.classes, one.columns) == (
        other.client_names,
        other.classes,
        other.columns,
    )
    for name in ("clients", "labels", "numbers", "categories"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)


@pytest.mark.parametrize("pattern", ["", "*", "*.csv", "?ast.csv"])
def test_a_file_for_each_client(tmp_path: Path, pattern: str) -> None:
    """A folder or a pattern: the files' names, ascending, are the clients'."""
    table = load(write_folder(tmp_path) / pattern)
    if pattern == "?ast.csv":
        assert table.client_names == ("east",)
        return
    assert table.client_names == ("east", "west")
    assert table.clients.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_array_equal(table.numbers[:, 0], [1, 2.5, 3, 31, 7])
    assert table.columns == ("age", "job=baker", "job=nurse", "job=smith", "job=")


def test_several_files_are_the_one_file_in_pieces(tmp_path: Path) -> None:
    """With a client column, and with whole numbers and fractions in one column of two files."""
    lines = [f"{line},{name}" for name in sorted(ROWS) for line in ROWS[name]]
    whole, pieces = tmp_path / "whole.csv", tmp_path / "pieces"
    pieces.mkdir()
    header = "age,job,paid,town"
    whole.write_text("\n".join([header, *lines]))
    for number, split in enumerate((lines[:1], lines[1:])):
        (pieces / f"{number}.csv").write_text("\n".join([header, *split]))
    assert_same(load(pieces, client_column="town"), load(whole, client_column="town"))


def test_numbers_in_one_file_and_words_in_another(tmp_path: Path) -> None:
    """All cells of the column are words; a file without any cell there changes nothing."""
    table = load(write_folder(tmp_path, north=["1,7,no", "2,8,yes"], south=["1,,no", "2,,yes"]))
    assert table.columns == (
        "age",
        *(f"job={w}" for w in ("7", "8", "baker", "nurse", "smith", "")),
    )


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    """Kinds that CSV has not are what they would be there; NaN is a missing cell."""
    rows = ["a,1.5,x,0", "a,,y,1", "b,2,,1", "b,3,x,0"]
    text = tmp_path / "table.csv"
    text.write_text("\n".join(["town,age,job,paid", *rows]))
    columns = {
        "town": pa.array(["a", "a", "b", "b"], pa.large_string()),
        "age": pa.array([1.5, math.nan, 2, 3]),
        "job": pa.array(["x", "y", "?", "x"]).dictionary_encode(),
        "paid": pa.array([Decimal(0), Decimal(1), Decimal(1), Decimal(0)]),
    }
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(columns), path)
    assert_same(load(path, client_column="town", missing=["?"]), load(text, client_column="town"))


def test_an_error_in_several_files_shows_file_and_line(tmp_path: Path) -> None:
    """The error names the file and the line."""
    folder = write_folder(tmp_path, north=["1,smith,no", "", "inf,smith,yes"])
    with pytest.raises(DataError, match=r"age is inf in line 4 of north\.csv$"):
        load(folder)
    pq.write_table(pa.table({"age": [1.0, math.inf], "job": ["a", "b"], "paid": ["no", "yes"]}),
                   folder / "north.parquet")  # fmt: skip
    (folder / "north.csv").unlink()
    with pytest.raises(DataError, match=r"age is inf in row 2 of north\.parquet$"):
        load(folder)


def test_files_that_are_no_table_together(tmp_path: Path) -> None:
    """Other columns, two files of one name, no file, and no client column for a single one."""
    folder = write_folder(tmp_path)
    with pytest.raises(DataError, match=r"of the columns of .*, which are age, job, paid, got ''"):
        load(folder / "east.csv")
    with pytest.raises(DataError, match=r"there is no such file$"):
        load(folder / "*.dat")
    (folder / "east.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=r"there are several files called east$"):
        load(folder)
    (folder / "east.csv").unlink()
    with pytest.raises(DataError, match=r"got .*: east\.parquet: .*Parquet"):
        load(folder)
    (folder / "east.parquet").unlink()
    (folder / "south.csv").write_text("age,paid\n1,no\n2,yes\n")
    with pytest.raises(DataError, match=r"got job in west\.csv only$"):
        load(folder)


def test_a_nested_column_is_refused_unless_dropped(tmp_path: Path) -> None:
    """A list in each row is neither a number nor a word."""
    path = tmp_path / "table.parquet"
    columns = {"town": ["a", "a", "b", "b"], "age": [1, 2, 3, 5], "visits": [[1], [], [2], [3]]}
    pq.write_table(pa.table({**columns, "paid": ["no", "yes", "no", "yes"]}), path)
    with pytest.raises(DataError, match=r"got none of visits, which is of type list"):
        load(path, client_column="town")
    assert load(path, client_column="town", drop_columns=["visits"]).columns == ("age",)


TABLE = "age,job,paid\n1,smith,no\n2,nurse,yes\n3,smith,yes\n"


def test_a_folder_for_each_client(tmp_path: Path) -> None:
    """Files of one folder are one client's; errors name the file below the folder."""
    for name in ("North/2024/a.csv", "North/b.csv", "South/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TABLE)
    table = load(tmp_path)
    assert table.client_names == ("North", "South")
    assert table.clients.tolist() == [0] * 6 + [1] * 3
    (tmp_path / "South/a.csv").write_text(TABLE.replace("2,", "inf,"))
    with pytest.raises(DataError, match=r"age is inf in line 3 of South/a\.csv$"):
        load(tmp_path)


def test_folders_that_hold_a_column(tmp_path: Path) -> None:
    """``site=North`` names the client, with and without ``data.client_column``."""
    for site in ("North", "South"):
        (tmp_path / f"site={site}").mkdir()
        (tmp_path / f"site={site}/part-0.csv").write_text(TABLE)
    by_folder, by_column = load(tmp_path), load(tmp_path, client_column="site")
    assert_same(by_folder, by_column)
    assert by_folder.client_names == ("North", "South")
    assert by_folder.columns == ("age", "job=nurse", "job=smith")


def test_columns_that_differ_are_named_with_the_nearest(tmp_path: Path) -> None:
    """Each file with what only it has, and the pair that may be the same."""
    folder = write_folder(tmp_path)
    (folder / "west.csv").write_text("Age,job,paid,ward\n1,x,no,3\n")
    message = (
        r"got age in east\.csv only and Age, ward in west\.csv only \(are age and Age the same"
    )
    with pytest.raises(DataError, match=message):
        load(folder)


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    """Files beside the tables, and the index of a program."""
    folder = write_folder(tmp_path)
    (folder / "notes.txt").write_text("x")
    for file in folder.glob("*.csv"):
        lines = file.read_text().splitlines()
        rows = [f"{number},{line}" for number, line in enumerate(lines[1:], 1)]
        file.write_text("\n".join([f",{lines[0]}", *rows]))
    table = load(folder)
    assert table.files_passed_over == {"notes.txt": 1}
    assert table.dropped_columns == {"column 1 without a name": "row numbers"}
    for letter in "abcdef":
        (folder / f"{letter}.jpg").touch()
    assert load(folder).files_passed_over == {".jpg": 6, ".txt": 1}


def test_files_for_training_and_testing_are_doubted(tmp_path: Path) -> None:
    """The doubt names the setting, for files and for folders."""
    folder = tmp_path / "one"
    for name in ("train", "test"):
        (folder / name).mkdir(parents=True)
        (tmp_path / f"{name}.csv").write_text(TABLE)
        (folder / name / "north.csv").write_text(TABLE)
    doubt = f"data.path={tmp_path}/train.csv data.test_path={tmp_path}/test.csv tests on the latter"
    assert load(tmp_path / "*.csv").warnings[0].endswith(doubt)
    doubt = f"data.path={folder}/train data.test_path={folder}/test tests on the latter"
    assert load(folder).warnings[0].endswith(doubt)
