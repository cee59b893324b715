"""The kind of a column, and what one odd cell does to it: nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fedquorum.errors import DataError
from hypothesis import given
from hypothesis import strategies as st

from client_app.data.coding.cells import parse_column
from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import read_csv_table
from conf.schema.data import CsvSettings

ODD_CELLS = {
    "5,62": "has a decimal comma: write 5.62",
    "1,234": "has a comma: write 1.234, or without the comma if it separates thousands",
    "1,234.56": "separates thousands: write 1234.56",
    "1,23,456": "separates thousands: write 123456",
    "12,34,567.8": "separates thousands: write 1234567.8",
    "1.234,56": "separates thousands: write 1234.56",
    "1 234": "separates thousands: write 1234",
    "1\u202f234,5": "separates thousands: write 1234.5",
    "1'234'567": "separates thousands: write 1234567",
    "5.6%": "has a sign for per cent: write 5.6",
    "-5,6 %": "has a sign for per cent: write -5.6",
    "€ 5.62": "has a currency: write 5.62",
    "-$1,200.50": "has a currency: write -1200.50",
    "12 CHF": "has a currency: write 12",
    "5.62 mg": "has a unit: write 5.62",
    "80kg": "has a unit: write 80",
    "\u22125.62": "has another minus sign than -: write -5.62",
    "5.62-": "has another minus sign than -: write -5.62",
    "(5.62)": "has another minus sign than -: write -5.62",
    "'5.62": "is in quotes: write 5.62",
    "<0.5": "is a limit, as of detection: write a number, such as half of it",
    "≤ 3": "is a limit, as of detection: write a number, such as half of it",
    ">100": "is a limit, as of detection: write a number, such as half of it",
    "90+": "is a limit: write a number",
    "#DIV/0!": "is an error of Excel: write a number, or leave the cell empty",
    "4.5.1": "has more than one decimal point: write a number",
    "22.01.2022": "is a date: write a number",
    "2022-01-22 10:15": "is a date: write a number",
    "12:30": "is a time: write a number",
    "5-10": "is a range: write a number",
    "٥٦": "has digits of another script: write 56",
    "3O": "is no number: write a number",
    "V27": "is no number: write a number",
    "yes": "is a word: type 'data.replace={x: {yes: 1}}'",
    "unknown": "is a word: if it means missing, type data.missing=[unknown]",
}
"""A cell among numbers, and what the error says of it."""


def write(folder: Path, cells: list[str]) -> Path:
    path = folder / "table.csv"
    rows = [f'{"ab"[i % 2]},{i % 3 % 2},"{cell}"' for i, cell in enumerate(cells)]
    path.write_text("\n".join(["site,y,x", *rows]) + "\n", encoding="utf-8")
    return path


def load(path: Path, **settings: object) -> ClientTable:
    return read_csv_table(
        CsvSettings(path=str(path), client_column="site", target="y", **settings)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("odd", ODD_CELLS)
@pytest.mark.parametrize("position", [0, 23])
def test_one_odd_cell_is_refused_by_its_line(tmp_path: Path, odd: str, position: int) -> None:
    """The column stays one of numbers; the error names line, value and what to type."""
    cells = [str(1 + 0.5 * i) for i in range(40)]
    cells[position] = odd
    path = write(tmp_path, cells)
    with pytest.raises(DataError) as caught:
        load(path)
    message = str(caught.value)
    assert f"x: line {position + 2} has {odd!r}: {odd} {ODD_CELLS[odd]}" in message
    assert "data.invalid_cells=missing takes such cells as missing" in message
    assert "\n" not in message
    table = load(path, invalid_cells="missing")
    assert (table.columns, table.invalid) == (("x",), {"x": 1})
    assert np.flatnonzero(np.isnan(table.numbers[:, 0])).tolist() == [position]


@pytest.mark.parametrize("odd", ["5,62", "€ 5.62", "5.6%", "5.62 mg", "1 234", "\u22125.62"])
def test_a_column_in_a_foreign_form_is_refused(tmp_path: Path, odd: str) -> None:
    """At most five lines are shown, and the count; nothing makes the whole column missing."""
    path = write(tmp_path, [odd.replace("2", str(i % 10)) for i in range(40)])
    with pytest.raises(DataError, match=r"x: line 2 has .*line 6 has .*, \.\.\. \(40 cells in all"):
        load(path)
    with pytest.raises(DataError, match="line 2 has"):
        load(path, invalid_cells="missing")
    assert np.isnan(load(path, invalid_cells="missing", numbers=["x"]).numbers).all()
    assert load(path, categories=["x"]).schema.categories


@pytest.mark.parametrize(
    "values",
    [
        ["<18", "18-65", ">65"],
        ["A", "B", "27A"],
        ["4.5.1", "4.5.2", "3.1.0"],
        ["0 none", "1 mild", "2 severe"],
        ["1st", "2nd", "3rd"],
        ["10.0.0.1", "10.0.0.2"],
        ["+", "-"],
        ["NA", "none", "much"],
        ["V27", "I10", "250"],
    ],
)
def test_categories_with_digits_stay_categories(values: list[str]) -> None:
    """A form that may be a group or a code does not make numbers of a column."""
    assert parse_column(pa.chunked_array([values * 20])).kind == "categories"


@pytest.mark.parametrize(
    ("dates", "odd"),
    [
        (["22.01.2022", "23.02.2021"], "soon"),
        (["2022-01-22", "2021-02-23"], "22.01.2022"),
        (["22.01.22", "23.02.21"], "5"),
        (["01/22/2022", "02/23/2021"], "#N/A"),
    ],
)
def test_dates_stay_dates_with_an_odd_cell(dates: list[str], odd: str) -> None:
    """One odd cell among 1,115 dates gives no 1,115 inputs."""
    for cells in ([odd, *dates * 10], [*dates * 10, odd]):
        column = parse_column(pa.chunked_array([cells]))
        assert (column.kind, column.num_odd) == ("dates", int(odd in {"soon", "5"}))


def test_truth_and_nothing_are_numbers() -> None:
    """True and false are 1 and 0; a column without known cells is one of missing numbers."""
    truth = parse_column(pa.chunked_array([["TRUE", "false", None, "NA", "1"]]))
    assert truth.values.to_pylist() == [1, 0, None, None, 1]
    empty = parse_column(pa.chunked_array([["NA", None, "#N/A"]]))
    assert (empty.kind, empty.values.to_pylist()) == ("numbers", [None] * 3)


NUMBERS = st.one_of(
    st.integers(-(10**15), 10**15).map(str),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
)


@given(
    cells=st.lists(NUMBERS, min_size=3, max_size=30),
    odd=st.sampled_from([*ODD_CELLS]),
    data=st.data(),
)
def test_no_odd_cell_changes_a_column_of_numbers(
    cells: list[str], odd: str, data: st.DataObject
) -> None:
    """The other cells are read exactly, whatever the odd one is and wherever it stands."""
    row = data.draw(st.integers(0, len(cells)))
    column = parse_column(pa.chunked_array([[*cells[:row], odd, *cells[row:]]]))
    assert column.kind == "numbers"
    assert column.odd is not None
    assert np.flatnonzero(column.odd).tolist() == [row]
    values = column.values.cast(pa.float64(), safe=False).to_pylist()
    assert [v for v in values if v is not None] == [float(cell) for cell in cells]


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_numbers_are_read_as_by_python(cells: list[str]) -> None:
    """The parse is exact, for whole numbers and for others."""
    column = parse_column(pa.chunked_array([cells]))
    assert (column.kind, column.num_odd) == ("numbers", 0)
    assert column.values.cast(pa.float64(), safe=False).to_pylist() == [*map(float, cells)]
