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
        load(folder / "*.txt")
    (folder / "east.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=r"there are several files called east$"):
        load(folder)
    (folder / "east.csv").unlink()
    with pytest.raises(DataError, match=r"got .*: east\.parquet: .*Parquet"):
        load(folder)
    (folder / "east.parquet").unlink()
    (folder / "south.csv").write_text("age,paid\n1,no\n2,yes\n")
    with pytest.raises(DataError, match=r"got job in one of south\.csv and west\.csv only$"):
        load(folder)


def test_a_nested_column_is_refused_unless_dropped(tmp_path: Path) -> None:
    """A list in each row is neither a number nor a word."""
    path = tmp_path / "table.parquet"
    columns = {"town": ["a", "a", "b", "b"], "age": [1, 2, 3, 5], "visits": [[1], [], [2], [3]]}
    pq.write_table(pa.table({**columns, "paid": ["no", "yes", "no", "yes"]}), path)
    with pytest.raises(DataError, match=r"got none of visits, which is of type list"):
        load(path, client_column="town")
    assert load(path, client_column="town", drop_columns=["visits"]).columns == ("age",)
