"""The formats of one file, recognized by its content: Parquet, Excel, and refused ones."""

import gzip
import importlib
import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from client_app.data.sources import table_formats
from client_app.data.sources.table_formats import read_table_file

FRAME = pd.DataFrame({"site ": [" K\u00f6ln", "Ko\u0308ln", ""], "age": [1.5, float("nan"), 3]})


@pytest.mark.parametrize("name", ["a.pq", "a.parquet", "a.PARQUET", "a.csv"])
def test_parquet_by_content(tmp_path: Path, name: str) -> None:
    """Its text is as clean as that of CSV, its numbers keep their type."""
    FRAME.to_parquet(tmp_path / "file")
    path = (tmp_path / "file").rename(tmp_path / name)
    table = read_table_file(path).table
    assert table.to_pydict() == {"site": ["K\u00f6ln", "K\u00f6ln", None], "age": [1.5, None, 3]}


def test_the_index_of_a_parquet_file(tmp_path: Path) -> None:
    """Rows that pandas selected have an index, which is no column of the table."""
    FRAME.iloc[[2, 0, 1]].to_parquet(tmp_path / "a.pq")
    rows = read_table_file(tmp_path / "a.pq")
    assert rows.table.column_names == ["site", "age"]
    assert rows.dropped_columns == {"__index_level_0__": "row numbers"}


def test_gzip_by_content(tmp_path: Path) -> None:
    """Whatever the file is called."""
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n", mtime=0))
    rows = read_table_file(path)
    assert rows.table.to_pydict() == {"a": ["1"], "b": ["2"]}
    assert rows.describe_row(0) == "line 2"


def save_book(path: Path, **sheets: list[list[Any]]) -> Path:
    book = pytest.importorskip("openpyxl").Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def test_excel(tmp_path: Path) -> None:
    """Cells keep their types; empty sheets, rows and columns do not count, but their numbers do."""
    rows: list[list[Any]] = [
        ["site", "age", None, "seen", "well", "code"],
        [" North", 30, None, date(2026, 1, 2), True, 1],
        [],
        [None, 1.5, None, None, False, "A"],
    ]
    file = read_table_file(save_book(tmp_path / "book.xlsx", Data=rows, Empty=[]))
    assert file.table.column_names == ["site", "age", "seen", "well", "code"]
    assert file.table["site"].to_pylist() == ["North", None]
    assert file.table["age"].to_pylist() == [30, 1.5]
    assert pa.types.is_timestamp(file.table.schema.field("seen").type)
    assert pa.types.is_boolean(file.table.schema.field("well").type)
    assert file.table["code"].to_pylist() == ["1", "A"]
    assert [file.describe_row(row) for row in range(2)] == ["row 2", "row 4"]


@pytest.mark.parametrize(
    ("sheets", "message"),
    [
        ({"a": [["x"], [1]], "b": [["x"], [2]]}, r"one sheet with cells, got a, b; save"),
        ({"a": []}, r"one sheet with cells, got none; save"),
        ({"a": [["Export"], ["x", "y"], [1, 2]]}, r"^row 1 is no header: Export .* in row 2\)$"),
        ({"a": [["x", "y"]]}, r"^it has no rows$"),
        ({"a": [["x", "x"], [1, 2]]}, r"header has x more than once$"),
    ],
)
def test_excel_files_that_are_no_tables(
    tmp_path: Path, sheets: dict[str, list[list[Any]]], message: str
) -> None:
    """Several sheets, none, a title, no rows and a repeated name."""
    path = save_book(tmp_path / "book.xlsx", **sheets)
    with pytest.raises(ValueError, match=message):
        read_table_file(path)


def test_excel_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the extra, and the way without it."""

    def import_module(_name: str) -> Any:
        raise ModuleNotFoundError

    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with monkeypatch.context() as patch:
        patch.setattr(importlib, "import_module", import_module)
        with pytest.raises(ValueError, match=r'save it as CSV UTF-8 or install ".*\[excel\]"$'):
            read_table_file(tmp_path / "a.xlsx")
    pytest.importorskip("openpyxl")
    with pytest.raises(ValueError, match=r"^it is a damaged Excel file: "):
        read_table_file(tmp_path / "a.xlsx")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": 2}\n', "JSON"),
        (b'[{"a": 1}]', "JSON"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "old Excel"),
        (b"\n<!DOCTYPE html>", "failed download"),
        (b"$FL2@(#) SPSS", "SPSS"),
        (b"<stata_dta><header>", "Stata"),
        (gzip.compress(b"RDX3\nX\n", mtime=0), "R; save"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"PK\x03\x04 and no more", "zip archive; unpack it"),
    ],
)
def test_other_formats(tmp_path: Path, content: bytes, message: str) -> None:
    """They are named, with what to do."""
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^it is an? .*{message}"):
        read_table_file(path)


@pytest.mark.parametrize(
    "header", ["ORCID,b", "RDX,b", "[id],[age]", "HEADER,b", "version,b", "a<b,c", "X,b"]
)
def test_no_format_is_seen_in_a_name(tmp_path: Path, header: str) -> None:
    """Names of columns may begin as other formats do."""
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n1,2\n")
    assert read_table_file(path).table.column_names == header.split(",")


def test_no_archive_of_another_program_is_taken_for_excel(tmp_path: Path) -> None:
    """LibreOffice's tables, and any .zip."""
    for member, message in (("content.xml", r"\.ods"), ("one.csv", r"\.zip archive; unpack it")):
        with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
            archive.writestr(member, "x")
        with pytest.raises(ValueError, match=message):
            read_table_file(tmp_path / "a.xlsx")


def test_first_bytes_are_enough_to_tell(tmp_path: Path) -> None:
    """Every beginning fits into the bytes that are read."""
    longest = max(
        len(begin) for begins in table_formats.FOREIGN_FORMATS.values() for begin in begins
    )
    assert longest <= table_formats.NUM_FIRST_BYTES
