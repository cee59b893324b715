"""The text of a CSV file: cells, line numbers, and files that are no such table."""

from pathlib import Path

import pytest

from client_app.data.sources.csv_text import CsvRows, read_csv_file

ROWS = "site,age,ill\nNorth,1,no\nSouth,2,yes\n"


def read(folder: Path, text: str | bytes) -> CsvRows:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_csv_file(path)


def test_cells_are_clean_text(tmp_path: Path) -> None:
    """Blanks of all kinds are trimmed, Unicode is in NFC, and only empty cells are null."""
    text = (
        'si\u00a0te , "age"\n\u2009K\u00f6ln\u00a0,\t1 \nKo\u0308ln,""\n NA ,  \n\ufeffx,"a, b"\n'
    )
    rows = read(tmp_path, text)
    assert rows.table.to_pydict() == {
        "si\u00a0te": ["K\u00f6ln", "K\u00f6ln", "NA", "x"],
        '"age"': ["1", None, None, "a, b"],
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("begin", ["", "\ufeff", "sep=,\n", "\n\n"])
def test_lines_are_those_of_an_editor(tmp_path: Path, begin: str, end: str) -> None:
    """Quoted line ends, blank lines and lines above the header count."""
    text = f'{begin}a,b\n1,"x\ny"\n\n2,z\n3,\u00f6\n'.replace("\n", end)
    rows = read(tmp_path, text)
    assert rows.table["a"].to_pylist() == ["1", "2", "3"]
    first = 2 + begin.count("\n")
    assert [rows.describe_row(row) for row in range(3)] == [
        f"line {first}", f"line {first + 3}", f"line {first + 4}"
    ]  # fmt: skip


@pytest.mark.parametrize("commas", [",", ",,,"])
def test_trailing_commas(tmp_path: Path, commas: str) -> None:
    """In all lines, in some of them, or below the header only."""
    lines = ROWS.splitlines()
    for text in (
        "\n".join(line + commas for line in lines),
        "\n".join([lines[0] + commas, lines[1] + commas, lines[2]]),
        "\n".join([lines[0], *(line + commas for line in lines[1:])]),
    ):
        rows = read(tmp_path, text)
        assert rows.table.column_names == ["site", "age", "ill"]
        assert rows.table["ill"].to_pylist() == ["no", "yes"]
        assert set(rows.dropped_columns.values()) <= {"no cells"}


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [1, 2, 3, 4], [7, 3, 90, 4], [0, 1, 0, 1]])
def test_an_index_is_left_out(tmp_path: Path, name: str, numbers: list[int]) -> None:
    """That of pandas and of R, shuffled, or of joined tables."""
    rows = read(tmp_path, "\n".join([f"{name},a", *(f"{n},x" for n in numbers)]))
    assert rows.table.column_names == ["a"]
    assert list(rows.dropped_columns.values()) == ["row numbers"]


@pytest.mark.parametrize("cells", [["5", "5", "9"], ["x", "y", "z"], ["1", "", "3"]])
def test_a_column_of_values_needs_a_name(tmp_path: Path, cells: list[str]) -> None:
    """A first column without one is left out only if it counts."""
    with pytest.raises(ValueError, match=r"^column 1 of its header has no name$"):
        read(tmp_path, "\n".join([",a", *(f"{cell},x" for cell in cells)]))


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "UTF-16": (ROWS.encode("utf-16"), "the file is UTF-16; save it as CSV UTF-8"),
    "UTF-16 without mark": (ROWS.encode("utf-16-le"), "the file is UTF-16; save it as CSV UTF-8"),
    "Latin-1": (
        ROWS.replace("South", "K\u00f6ln").encode("latin-1"),
        ("the file is not UTF-8 but Latin-1, Windows-1252 or the like (line 3 has the byte 0xf6, "
        "\u00f6 in Windows-1252); save it as CSV UTF-8"),
    ),
    "binary": (b"a,b\n\0\x01\x02,1\n", "it is no text"),
    "title": (
        f"Export of 2026-03-01,,\n,,\n{ROWS}",
        ("line 1 is no header: Export of 2026-03-01 (delete the lines above the names of the "
        "columns, which seem to be in line 3)"),
    ),
    "title without commas": (
        f"\nExport, our clinic\n\n{ROWS}",
        ("line 2 is no header: Export our clinic (delete the lines above the names of the columns, "
        "which seem to be in line 4)"),
    ),
    "header again": (f"{ROWS}\n{ROWS}", "line 5 repeats the header; delete it"),
    "header again, with a mark": (
        f"\ufeff{ROWS}\ufeff{ROWS}",
        "line 4 repeats the header; delete it",
    ),
    "semicolons": (
        'site;age;"dose, mg"\nNorth;1;2,5\n',
        ("its columns must be separated by commas, got semicolons in the header (numbers need a "
        "decimal point)"),
    ),
    "sep=;": (
        "sep=;\n" + ROWS.replace(",", ";"),
        ("its columns must be separated by commas, got semicolons in the header (numbers need a "
        "decimal point)"),
    ),
    "tabs below a title": (
        "Export\n" + ROWS.replace(",", "\t"),
        ("its columns must be separated by commas, got tabs in the header (numbers need a decimal "
        "point)"),
    ),
    "quote": (
        f'{ROWS}North,"5,no\nSouth,6,yes\n',
        ('line 4 has 2 cells, its header has 3 (a cell runs on to line 5: is a quote missing?): '
        'North,"5,no South,6,yes'),
    ),
    "short row below quoted lines": (
        'a,b,c\n1,"x\n\ny",3\n4,5\n',
        "line 5 has 2 cells, its header has 3: 4,5",
    ),
    "only blank lines": ("\n\n", "it is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_are_no_tables(tmp_path: Path, name: str) -> None:
    """The line and what to do are named."""
    text, message = BROKEN[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared below
        read(tmp_path, text)
    assert str(caught.value) == message


def test_semicolons_in_cells(tmp_path: Path) -> None:
    """Where the header has commas, other signs are part of the cells."""
    rows = read(tmp_path, "id;code,drugs\nA1;B2,x;y;z|w\n")
    assert rows.table.to_pydict() == {"id;code": ["A1;B2"], "drugs": ["x;y;z|w"]}
