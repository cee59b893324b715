"""Tests of tables that grow: their files, and their truncation."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records import tables
from fedquorum.records.reader import read_dataset
from fedquorum.records.tables import CLIENTS_COLUMNS, CLIENTS_SCHEMA, TableWriter


def make_rows(number: int, clients: int = 2) -> list[dict[str, Any]]:
    """Return the rows of a round."""
    blank = dict.fromkeys(CLIENTS_SCHEMA.names)
    return [
        {**blank, "round": number, "client": k, "priority": True, "status": "trained", "weight": 0}
        for k in range(clients)
    ]


def make_writer(run: Path, num_rows: int = 0) -> TableWriter:
    """Return a writer of the table of clients."""
    return TableWriter(run / "clients", CLIENTS_COLUMNS, num_rows)


def write_rounds(run: Path, *numbers: int, num_rows: int = 0) -> TableWriter:
    """Write rounds after the first rows, and flush after each."""
    table = make_writer(run, num_rows)
    for number in numbers:
        table.add_rows(make_rows(number))
        table.flush()
    return table


def read_rounds(run: Path) -> list[int]:
    """Return the rounds of all rows in order, read by PyArrow and by our reader."""
    found: list[int] = pq.read_table(run / "clients", columns=["round"])["round"].to_pylist()
    assert read_dataset(run / "clients", ["round"])["round"].to_pylist() == found
    return found


def list_files(run: Path) -> list[str]:
    """Return the names of the table's files."""
    return sorted(path.name for path in (run / "clients").iterdir())


def repeat_twice(*numbers: int) -> list[int]:
    """Return each number twice, as each round has two rows."""
    return [number for number in numbers for _ in "12"]


def test_a_table_is_readable_after_every_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is replaced until it has enough rows; then the next one starts."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 5)
    table = make_writer(tmp_path)
    for number in range(1, 8):
        table.add_rows(make_rows(number))
        table.flush()
        assert read_rounds(tmp_path) == repeat_twice(*range(1, number + 1))
        assert table.num_rows == 2 * number
        assert len(list_files(tmp_path)) == (number + 2) // 3
    table.close()
    assert list_files(tmp_path) == [f"part-0000{number}.parquet" for number in range(3)]


def test_the_number_of_files_follows_from_the_rows(tmp_path: Path) -> None:
    """It does not depend on the number of checkpoints."""
    write_rounds(tmp_path, *range(1, 61)).close()
    assert list_files(tmp_path) == ["part-00000.parquet"]


def test_no_file_exceeds_the_maximum_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flush may write several files."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 5)
    monkeypatch.setattr(tables, "MAX_FILE_ROWS", 7)
    table = write_rounds(tmp_path, 1)
    for number in range(2, 10):
        table.add_rows(make_rows(number))
    table.close()
    paths = sorted((tmp_path / "clients").iterdir())
    assert [pq.read_metadata(path).num_rows for path in paths] == [7, 7, 4]
    assert read_rounds(tmp_path) == repeat_twice(*range(1, 10))


def test_an_empty_table_has_a_file_with_its_columns(tmp_path: Path) -> None:
    """Other programs can read the empty table; later rows replace it."""
    make_writer(tmp_path).close()
    assert pq.read_table(tmp_path / "clients").schema.names == CLIENTS_SCHEMA.names
    write_rounds(tmp_path, 1).close()
    assert list_files(tmp_path) == ["part-00000.parquet"]
    assert read_rounds(tmp_path) == [1, 1]


@pytest.mark.parametrize("num_rows", range(0, 15, 2))
def test_a_writer_truncates_to_the_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    """The truncation may fall within a file; foreign files stay."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 5)
    write_rounds(tmp_path, *range(1, 8)).close()
    foreign = tmp_path / "clients" / "_mine.txt"
    foreign.write_text("mine")
    table = make_writer(tmp_path, num_rows)
    assert table.num_rows == num_rows
    retained = range(1, num_rows // 2 + 1)
    if num_rows:
        assert read_rounds(tmp_path) == repeat_twice(*retained)
    table.add_rows(make_rows(9))
    table.close()
    assert read_rounds(tmp_path) == repeat_twice(*retained, 9)
    assert foreign.read_text() == "mine"


def test_a_failed_write_loses_and_repeats_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file of a flush fails; the next flush writes the rest."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 2)
    monkeypatch.setattr(tables, "MAX_FILE_ROWS", 4)
    table = make_writer(tmp_path)
    for number in range(1, 6):
        table.add_rows(make_rows(number))
    write_table = pq.write_table

    def fail_on_second_file(given: Any, path: Path, **options: Any) -> None:
        if "part-00001" in path.name:
            raise OSError(28, "No space left on device")
        write_table(given, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedquorum.records.tables.pq.write_table", fail_on_second_file)
        with pytest.raises(RunError, match=r"part-00001\.parquet cannot be written: No space"):
            table.flush()
        assert read_rounds(tmp_path) == [1, 1, 2, 2]
    table.close()
    assert read_rounds(tmp_path) == repeat_twice(*range(1, 6))


def test_a_run_resumes_after_a_damaged_file(tmp_path: Path) -> None:
    """Its footer has the number of rows; readers name the file, and nothing replaces it."""
    write_rounds(tmp_path, 1, 2).close()
    path = tmp_path / "clients" / "part-00000.parquet"
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)  # of the first column's pages
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"part-00000\.parquet: "):
        make_writer(tmp_path, 2)  # the file would have to be truncated
    write_rounds(tmp_path, 3, num_rows=4).close()
    assert path.read_bytes() == content
    assert list_files(tmp_path) == ["part-00000.parquet", "part-00001.parquet"]
    with pytest.raises(RunError, match=r"part-00000\.parquet: "):
        read_dataset(tmp_path / "clients")


def test_foreign_files_are_not_part_of_the_table(tmp_path: Path) -> None:
    """Parquet files with similar names are ignored, too."""
    write_rounds(tmp_path, 1).close()
    for name in ("mine.parquet", "part-1.parquet", "part-000001.parquet", "part-00001.parquet.bak"):
        pq.write_table(pq.read_table(tmp_path / "clients"), tmp_path / "clients" / name)
    table = read_dataset(tmp_path / "clients", ["round"])
    assert table["round"].to_pylist() == [1, 1]


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """The numbers of digits may differ."""
    write_rounds(tmp_path, 1).close()
    first = tmp_path / "clients" / "part-00000.parquet"
    for number in (100_000, 99_999):
        (tmp_path / str(number)).mkdir()
        write_rounds(tmp_path / str(number), number).close()
        (tmp_path / str(number) / "clients" / first.name).rename(
            first.with_name(f"part-{number}.parquet")
        )
    table = read_dataset(tmp_path / "clients", ["round"])
    assert table["round"].to_pylist() == repeat_twice(1, 99_999, 100_000)
