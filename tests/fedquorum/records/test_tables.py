"""Tables that grow: their files, and how a writer goes back to the first rows."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records import tables
from fedquorum.records.reader import read_dataset
from fedquorum.records.tables import CLIENTS_COLUMNS, CLIENTS_SCHEMA, TableWriter


def rows(number: int, clients: int = 2) -> list[dict[str, Any]]:
    """Return the rows of a round."""
    blank = dict.fromkeys(CLIENTS_SCHEMA.names)
    return [
        {**blank, "round": number, "client": k, "priority": True, "status": "trained", "weight": 0}
        for k in range(clients)
    ]


def writer(run: Path, num_rows: int = 0) -> TableWriter:
    """Return a writer of the table of clients."""
    return TableWriter(run / "clients", CLIENTS_COLUMNS, num_rows)


def write_rounds(run: Path, *numbers: int, num_rows: int = 0) -> TableWriter:
    """Write rounds after the first rows, and flush after each."""
    table = writer(run, num_rows)
    for number in numbers:
        table.add_rows(rows(number))
        table.flush()
    return table


def rounds_in(run: Path) -> list[int]:
    """Return the rounds of all rows in their order, read as any program would and as ours do."""
    found: list[int] = pq.read_table(run / "clients", columns=["round"])["round"].to_pylist()
    assert read_dataset(run / "clients", ["round"])["round"].to_pylist() == found
    return found


def names(run: Path) -> list[str]:
    """Return the files that there are."""
    return sorted(path.name for path in (run / "clients").iterdir())


def twice(*numbers: int) -> list[int]:
    """Return the rounds of the rows of these rounds."""
    return [number for number in numbers for _ in "12"]


def test_a_table_is_readable_after_every_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is replaced until it has enough rows; then the next one begins."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 5)
    table = writer(tmp_path)
    for number in range(1, 8):
        table.add_rows(rows(number))
        table.flush()
        assert rounds_in(tmp_path) == twice(*range(1, number + 1))
        assert table.num_rows == 2 * number
        assert len(names(tmp_path)) == (number + 2) // 3
    table.close()
    assert names(tmp_path) == [f"part-0000{number}.parquet" for number in range(3)]


def test_the_number_of_files_follows_from_the_rows(tmp_path: Path) -> None:
    """However many checkpoints a run writes."""
    write_rounds(tmp_path, *range(1, 61)).close()
    assert names(tmp_path) == ["part-00000.parquet"]


def test_no_file_has_more_rows_than_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one flush there are several, then."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 5)
    monkeypatch.setattr(tables, "MAX_FILE_ROWS", 7)
    table = write_rounds(tmp_path, 1)
    for number in range(2, 10):
        table.add_rows(rows(number))
    table.close()
    paths = sorted((tmp_path / "clients").iterdir())
    assert [pq.read_metadata(path).num_rows for path in paths] == [7, 7, 4]
    assert rounds_in(tmp_path) == twice(*range(1, 10))


def test_an_empty_table_has_a_file_with_its_columns(tmp_path: Path) -> None:
    """A program that reads it need not know that nothing happened; later rows replace it."""
    writer(tmp_path).close()
    assert pq.read_table(tmp_path / "clients").schema.names == CLIENTS_SCHEMA.names
    write_rounds(tmp_path, 1).close()
    assert names(tmp_path) == ["part-00000.parquet"]
    assert rounds_in(tmp_path) == [1, 1]


@pytest.mark.parametrize("num_rows", range(0, 15, 2))
def test_a_writer_truncates_to_the_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    """Wherever in a file they end; files of somebody else's stay."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 5)
    write_rounds(tmp_path, *range(1, 8)).close()
    foreign = tmp_path / "clients" / "_mine.txt"
    foreign.write_text("mine")
    table = writer(tmp_path, num_rows)
    assert table.num_rows == num_rows
    kept = range(1, num_rows // 2 + 1)
    if num_rows:
        assert rounds_in(tmp_path) == twice(*kept)
    table.add_rows(rows(9))
    table.close()
    assert rounds_in(tmp_path) == twice(*kept, 9)
    assert foreign.read_text() == "mine"


def test_a_file_that_cannot_be_written_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several files of a flush the second one fails; the next flush writes the rest."""
    monkeypatch.setattr(tables, "MIN_FILE_ROWS", 2)
    monkeypatch.setattr(tables, "MAX_FILE_ROWS", 4)
    table = writer(tmp_path)
    for number in range(1, 6):
        table.add_rows(rows(number))
    write_table = pq.write_table

    def fails(given: Any, path: Path, **options: Any) -> None:
        if "part-00001" in path.name:
            raise OSError(28, "No space left on device")
        write_table(given, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr("fedquorum.records.tables.pq.write_table", fails)
        with pytest.raises(RunError, match=r"part-00001\.parquet cannot be written: No space"):
            table.flush()
        assert rounds_in(tmp_path) == [1, 1, 2, 2]
    table.close()
    assert rounds_in(tmp_path) == twice(*range(1, 6))


def test_a_run_resumes_after_a_damaged_file(tmp_path: Path) -> None:
    """Its footer says how many rows it has; readers name it, and nothing replaces it."""
    write_rounds(tmp_path, 1, 2).close()
    path = tmp_path / "clients" / "part-00000.parquet"
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)  # of the first column's pages
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"part-00000\.parquet: "):
        writer(tmp_path, 2)  # it would have to be cut
    write_rounds(tmp_path, 3, num_rows=4).close()
    assert path.read_bytes() == content
    assert names(tmp_path) == ["part-00000.parquet", "part-00001.parquet"]
    with pytest.raises(RunError, match=r"part-00000\.parquet: "):
        read_dataset(tmp_path / "clients")


def test_a_file_of_somebody_elses_is_no_part_of_the_table(tmp_path: Path) -> None:
    """Even a Parquet file, and one whose name is almost one of ours."""
    write_rounds(tmp_path, 1).close()
    for name in ("mine.parquet", "part-1.parquet", "part-000001.parquet", "part-00001.parquet.bak"):
        pq.write_table(pq.read_table(tmp_path / "clients"), tmp_path / "clients" / name)
    table = read_dataset(tmp_path / "clients", ["round"])
    assert table["round"].to_pylist() == [1, 1]


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Also where one has more digits than another."""
    write_rounds(tmp_path, 1).close()
    first = tmp_path / "clients" / "part-00000.parquet"
    for number in (100_000, 99_999):
        (tmp_path / str(number)).mkdir()
        write_rounds(tmp_path / str(number), number).close()
        (tmp_path / str(number) / "clients" / first.name).rename(
            first.with_name(f"part-{number}.parquet")
        )
    table = read_dataset(tmp_path / "clients", ["round"])
    assert table["round"].to_pylist() == twice(1, 99_999, 100_000)
