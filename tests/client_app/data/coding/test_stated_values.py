"""What values of the settings match in a table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fedquorum.errors import DataError

from client_app.data.coding.stated_values import match_values
from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import read_csv_table
from conf.schema.data import CsvSettings

TEXTS = ["1", "1.0", "01", "1E0", "+1", "true", "TRUE", "12345678901234567890", "-0.50"]


@pytest.mark.parametrize(
    ("value", "matching"),
    [
        (1, ["1", "1.0", "+1"]),
        (1.0, ["1", "1.0", "+1"]),
        ("1", ["1"]),
        ("01", ["01"]),
        (True, ["true", "TRUE"]),
        (12345678901234567890, ["12345678901234567890"]),
        (12345678901234567891, []),
        (-0.5, ["-0.50"]),
        (None, []),
    ],
)
def test_a_number_matches_equal_cells_and_a_text_itself(value: Any, matching: list[str]) -> None:
    """Leading zeros and exponents are another look."""
    found = match_values(pa.array(TEXTS), ["other", value])
    assert [text for text, index in zip(TEXTS, found, strict=True) if index == 1] == matching


def load(folder: Path, rows: list[str], **settings: Any) -> ClientTable:
    path = folder / "table.csv"
    path.write_text("\n".join(["site,x,job,y", *rows]) + "\n")
    return read_csv_table(CsvSettings(path=str(path), client_column="site", target="y", **settings))


ROWS = ["a,-999,nurse,YES", "a,1.5,unknown,no", "b,-999.0,Nurse,yes", "b,2,smith,no"]


def test_missing_values_are_those_of_the_settings(tmp_path: Path) -> None:
    """A number is missing in each of its forms, a word where it stands alone."""
    table = load(tmp_path, ROWS, missing=[-999, "unknown", "gone"], drop_columns=[])
    assert table.missing == {"x": 0.5, "job": 0.25}
    assert "data.missing has gone, which is in no cell of the table" in table.warnings


@pytest.mark.parametrize(
    "replacement", [{"y": {"YES": "yes"}}, [["y", "YES", "yes"]]], ids=["mapping", "list"]
)
def test_replaced_values_merge(tmp_path: Path, replacement: Any) -> None:
    """Two spellings are one class, and the doubt about them is gone."""
    assert any("'yes' and 'YES'" in line or "'YES' and 'yes'" in line
               for line in load(tmp_path, ROWS).warnings)  # fmt: skip
    table = load(tmp_path, ROWS, replace=replacement)
    assert table.classes == ("no", "yes")
    assert not any("classes" in line for line in table.warnings)


def test_a_replaced_value_must_occur(tmp_path: Path) -> None:
    """The nearest one is named."""
    with pytest.raises(DataError, match=r"got 'yess' \(did you mean yes\?\)$"):
        load(tmp_path, ROWS, replace={"y": {"yess": "no"}})
    with pytest.raises(DataError, match=r"data\.replace must be one of the columns .* got 'z'"):
        load(tmp_path, ROWS, replace={"z": {"yes": "no"}})


def test_agreed_values(tmp_path: Path) -> None:
    """A number of data.columns matches equal cells, a quoted text itself, and NA is no null."""
    rows = ["a,1.0,01,0", "a,1,1,1.0", "b,2,NA,1", "b,2,01,0"]
    columns = {"categories": {"x": [1, 2], "job": ["01", 1, None]}, "classes": [0, 1]}
    with pytest.raises(DataError, match=r"'NA' of job in line 4 .*data\.missing=\[NA\] takes it"):
        load(tmp_path, rows, columns=columns)
    table = load(tmp_path, rows, columns=columns, missing=["NA"])
    assert table.classes == ("0", "1")
    assert table.labels.tolist() == [0, 1, 1, 0]
    assert table.categories.argmax(axis=1).tolist() == [0, 0, 1, 1]
    assert table.columns == ("x=1", "x=2", "job=01", "job=1", "job=")
