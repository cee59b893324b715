"""Parts of tables, and what becomes of them when they are merged."""

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fedquorum.records import tables
from fedquorum.records.folder import RunFolder
from fedquorum.records.parts import Span, is_covered, is_made_of, uncovered
from fedquorum.records.reader import read_parts
from fedquorum.records.tables import CLIENTS, CLIENTS_SCHEMA, ParquetParts


def rows(number: int, clients: int = 2) -> list[dict[str, Any]]:
    """Return the rows of a round."""
    blank = dict.fromkeys(CLIENTS_SCHEMA.names)
    return [
        {**blank, "round": number, "client": k, "priority": True, "status": "trained", "weight": 0}
        for k in range(clients)
    ]


def rounds_in(run: Path) -> list[int]:
    """Return the rounds of all rows, in their order."""
    found: list[int] = read_parts(run / "clients", ["round"])["round"].to_pylist()
    return found


def names(run: Path) -> list[str]:
    """Return the files that there are."""
    return sorted(path.name for path in (run / "clients").iterdir())


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("part-00007.parquet", Span(7, 7)),
        ("part-00000-00031.parquet", Span(0, 31)),
        ("part-1234567.parquet", Span(1234567, 1234567)),
    ],
)
def test_names_say_what_is_in_a_part(name: str, span: Span) -> None:
    """There and back."""
    assert Span.of(name) == span
    assert span.name == name


@pytest.mark.parametrize("name", ["part-7.parquet", ".part-00007.parquet.part", "x.parquet", ""])
def test_other_names_are_of_no_part(name: str) -> None:
    """They are nobody's."""
    assert Span.of(name) is None
    assert not is_covered(name, ["part-00000-00031.parquet"])
    assert not is_made_of(name, ["part-00000.parquet"])


def test_what_a_merge_left_is_not_counted_twice() -> None:
    """The larger part counts; the order is that of the rows."""
    parts = [Span(0, 3), Span(0, 0), Span(2, 2), Span(4, 4), Span(5, 8), Span(8, 8), Span(9, 9)]
    given = [span.name for span in parts]
    random.Random(0).shuffle(given)
    kept = [span.name for span in (Span(0, 3), Span(4, 4), Span(5, 8), Span(9, 9))]
    assert uncovered(given) == kept
    assert uncovered([*given, "foreign.parquet"]) == ["foreign.parquet", *kept]


def test_what_a_part_is_made_of() -> None:
    """All of it, or not."""
    singles = [Span(i, i).name for i in range(4)]
    assert is_made_of(Span(0, 3).name, singles)
    assert is_made_of(Span(0, 3).name, [Span(0, 1).name, *singles[2:], "foreign.parquet"])
    assert not is_made_of(Span(0, 3).name, singles[:3])
    assert not is_made_of(Span(0, 4).name, singles)
    assert is_covered(singles[3], [Span(0, 3).name])
    assert not is_covered(Span(4, 4).name, [Span(0, 3).name])
    assert not is_covered(singles[0], singles)


# --- merges --------------------------------------------------------------------------------------


def test_the_number_of_files_does_not_grow_with_the_checkpoints(tmp_path: Path) -> None:
    """A thousand of them: at most 32 files of each width, and every row once, in order."""
    parts = ParquetParts(tmp_path / "clients", CLIENTS)
    for number in range(1, 1101):
        parts.add(rows(number))
        parts.flush()
        if number % 100 == 0:
            assert len(names(tmp_path)) <= 2 * tables.MERGED + 2
            assert rounds_in(tmp_path) == [t for t in range(1, number + 1) for _ in "12"]
    parts.close()
    assert names(tmp_path)[0] == "part-00000-01023.parquet"


def test_parts_that_the_last_two_checkpoints_know_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that both can be gone back to."""
    monkeypatch.setattr(tables, "MERGED", 2)
    parts = ParquetParts(tmp_path / "clients", CLIENTS)
    seen = []
    for number in range(1, 6):
        parts.add(rows(number))
        parts.flush()
        seen.append(names(tmp_path))
    assert seen[2] == [Span(0, 0).name, Span(1, 1).name, Span(2, 2).name]
    assert seen[3] == [Span(0, 1).name, Span(2, 2).name, Span(3, 3).name]
    assert seen[4] == [Span(0, 1).name, Span(2, 2).name, Span(3, 3).name, Span(4, 4).name]


def test_parts_with_many_rows_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge takes memory and time, and many rows in a file are no trouble."""
    monkeypatch.setattr(tables, "MERGED", 2)
    monkeypatch.setattr(tables, "MOST_MERGED_ROWS", 7)
    parts = ParquetParts(tmp_path / "clients", CLIENTS)
    for number in range(1, 9):
        parts.add(rows(number))
        parts.flush()
    assert max(pq.read_metadata(tmp_path / "clients" / n).num_rows for n in names(tmp_path)) == 4
    assert rounds_in(tmp_path) == [t for t in range(1, 9) for _ in "12"]


def test_a_merge_that_was_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers count its rows once, and a run that goes on removes what is left over."""
    monkeypatch.setattr(tables, "MERGED", 2)
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    parts = ParquetParts(tmp_path / "clients", CLIENTS)
    for number in range(1, 5):
        parts.add(rows(number))
        parts.flush()
    monkeypatch.setattr(Path, "unlink", unlink)
    assert {Span(0, 0).name, Span(1, 1).name, Span(0, 1).name} <= set(names(tmp_path))
    assert rounds_in(tmp_path) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert next(iter(RunFolder(tmp_path).parts("clients"))) == Span(0, 1).name
    parts = ParquetParts(tmp_path / "clients", CLIENTS)
    assert names(tmp_path) == [Span(0, 1).name, Span(2, 2).name, Span(3, 3).name]
    parts.add(rows(5))
    parts.close()
    assert names(tmp_path)[-1] == Span(4, 4).name
    assert rounds_in(tmp_path) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_a_damaged_part_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on; readers name it."""
    monkeypatch.setattr(tables, "MERGED", 2)
    parts = ParquetParts(tmp_path / "clients", CLIENTS)
    for number in range(1, 7):
        parts.add(rows(number))
        parts.flush()
        if number == 1:
            (tmp_path / "clients" / Span(0, 0).name).write_bytes(b"no Parquet")
    assert Span(0, 0).name in names(tmp_path)
