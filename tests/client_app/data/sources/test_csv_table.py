"""A table in a CSV file: what is read, and every mistake in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data.sources.client_table import ClientTable
from client_app.data.sources.csv_table import read_csv_table
from conf.compose import compose_settings
from conf.schema.data import CsvSettings

HEADER = "where,age,job,paid,note"
ROWS = [
    "north,31,nurse,yes,a",
    "south,,smith,no,b",
    "north,28.5,,no,c",
    "south,0,nurse,yes,d",
    "Delta,44,baker,no,e",
    "Delta,45,,yes,f",
]


def save(folder: Path, text: str | bytes = "\n".join([HEADER, *ROWS]) + "\n") -> Path:
    path = folder / "table.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(path: Path | str, **settings: Any) -> ClientTable:
    defaults: dict[str, Any] = {
        "client_column": "where",
        "target": "paid",
        "drop_columns": ["note"],
    }
    return read_csv_table(CsvSettings(path=str(path), **defaults | settings))


def assert_refused(path: Path | str, message: str, **settings: Any) -> None:
    """Check for one line that is the message, with the path for ``PATH``."""
    with pytest.raises(DataError) as caught:
        load(path, **settings)
    assert str(caught.value) == message.replace("PATH", str(path))


def test_what_is_read(tmp_path: Path) -> None:
    """Clients and classes ascending, numbers with NaN, a column of 0 and 1 for each category."""
    table = load(save(tmp_path))
    assert table.client_names == ("Delta", "north", "south")
    np.testing.assert_array_equal(table.clients, np.array([1, 2, 1, 2, 0, 0]), strict=True)
    assert table.classes == ("no", "yes")
    np.testing.assert_array_equal(table.labels, np.array([1, 0, 0, 1, 0, 1]), strict=True)
    assert table.columns == ("age", "job=baker", "job=nurse", "job=smith", "job=")
    np.testing.assert_array_equal(table.numbers[:, 0], [31, np.nan, 28.5, 0, 44, 45])
    expected = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(table.categories, np.array(expected, dtype=np.float32))
    assert table.categories.dtype == np.float32


@pytest.mark.parametrize("word", ["?", "NA", "#N/A", "NAN", "null", "-", "None", "n/a", "."])
def test_words_for_missing(tmp_path: Path, word: str) -> None:
    """Each is a missing number, and a category with a doubt unless data.missing names it."""
    text = f"where,age,job,paid\na,{word},x,0\na,2,{word},1\nb,3,x,1\nb,4,x,0\n"
    path = save(tmp_path, text)
    table = load(path, drop_columns=[])
    np.testing.assert_array_equal(table.numbers[:, 0], [np.nan, 2, 3, 4])
    assert table.missing == {"age": 0.25}
    assert {*table.columns} == {"age", "job=x", f"job={word}"}
    (doubt,) = table.warnings
    assert doubt.startswith(f"words that may mean missing are taken as categories in job ({word});")
    table = load(path, drop_columns=[], missing=[word])
    assert table.columns == ("age", "job=x", "job=")
    np.testing.assert_array_equal(table.categories[1], [0, 1])
    assert (table.warnings, table.missing) == ((), {"age": 0.25, "job": 0.25})


@pytest.mark.parametrize("cell", ["", '""', " ", "\u00a0"])
def test_empty_cells_are_missing(tmp_path: Path, cell: str) -> None:
    """In columns of numbers and of categories."""
    text = f"where,age,job,paid\na,{cell},x,0\na,2,{cell},1\nb,3,x,1\nb,4,x,0\n"
    table = load(save(tmp_path, text), drop_columns=[])
    np.testing.assert_array_equal(table.numbers[:, 0], [np.nan, 2, 3, 4])
    assert (table.columns, table.warnings) == (("age", "job=x", "job="), ())


def test_no_column_for_missing_where_none_is(tmp_path: Path) -> None:
    """Categories without missing ones have a column each, and the rows sum to 1."""
    table = load(save(tmp_path), drop_columns=["age", "job"])
    assert table.columns == tuple(f"note={letter}" for letter in "abcdef")
    assert table.numbers.shape == (6, 0)
    np.testing.assert_array_equal(table.categories, np.eye(6))


def test_numbers_alone(tmp_path: Path) -> None:
    """Without categories there are none."""
    table = load(save(tmp_path), drop_columns=["job", "note"])
    assert table.columns == ("age",)
    assert table.categories.shape == (6, 0)


def test_kinds_of_columns(tmp_path: Path) -> None:
    """Whole and other numbers, true and false, and nothing are numbers; dates are left out."""
    text = "where,i,f,b,n,d,paid\na,1,1e3,true,,2020-01-02,0\na,2,-0.5,false,,2020-01-01,1\n"
    table = load(save(tmp_path, text), drop_columns=[])
    assert table.columns == ("i", "f", "b", "n")
    assert table.dropped_columns == {"d": "dates"}
    np.testing.assert_array_equal(table.numbers, [[1, 1000, 1, np.nan], [2, -0.5, 0, np.nan]])


def test_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    """Client 2 comes before client 10, and class 9 before class 10."""
    text = "where,age,paid\n10,1,10\n10,2,9\n2,3,10\n2,4,9\n"
    table = load(save(tmp_path, text), drop_columns=[])
    assert table.client_names == ("2", "10")
    assert table.clients.tolist() == [1, 1, 0, 0]
    assert table.classes == ("9", "10")
    assert table.labels.tolist() == [1, 0, 1, 0]


def test_more_than_two_classes(tmp_path: Path) -> None:
    """Any labels are classes."""
    table = load(save(tmp_path), target="note", drop_columns=["job"])
    assert table.classes == tuple("abcdef")
    assert table.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert table.columns == ("age", "paid=no", "paid=yes")


def test_zeros_that_are_missing(tmp_path: Path) -> None:
    """Only in the columns named; others keep their zeros."""
    table = load(save(tmp_path), zero_as_missing=["age"])
    np.testing.assert_array_equal(table.numbers[:, 0], [31, np.nan, 28.5, np.nan, 44, 45])


def test_a_late_fraction_makes_a_column_of_numbers(tmp_path: Path) -> None:
    """The kind of a column follows from all of its cells, not from the first megabyte."""
    rows = "a,1,0\n" * 400_000 + "a,2.5,1\n"
    table = load(save(tmp_path, f"where,age,paid\n{rows}"), drop_columns=[])
    assert table.numbers[-1, 0] == 2.5


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffwhere,age,paid\na,1,0\na,2,1\n",
        "where,age,paid\r\na,1,0\r\n\r\na,2,1\r\n\r\n",
        'where,"age","paid"\n"a","1",0\na,2,1',
    ],
)
def test_files_of_other_programs(tmp_path: Path, text: str) -> None:
    """A byte order mark, other line ends, empty lines, quotes and no last line end do no harm."""
    table = load(save(tmp_path, text), drop_columns=[])
    assert table.columns == ("age",)
    assert table.numbers[:, 0].tolist() == [1, 2]


def test_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in data.path is the user's home, as in a shell."""
    save(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("~/table.csv").classes == ("no", "yes")


FILE = (
    "data.path must be a .csv file with a header or a .parquet file, or a folder of such, got "
    "PATH: "
)
FILES: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "it is empty"),
    "no rows": (HEADER + "\n", "it has no rows"),
    "no text": (
        b"PK\x03\x04\x00\x00",
        ("it is a .zip archive; unpack it, and give a .csv or .parquet file"),
    ),
    "header twice": ("where,age,age,paid\na,1,1,0\n", "its header has age more than once"),
    "two headers twice": ("age,age,a,b,b\n1,1,1,0,1\n", "its header has age, b more than once"),
    "no name": (",where,age\nx,a,1\n", "column 1 of its header has no name"),
    "short row": (
        "where,age,paid\na,1,0\na,2\n",
        ("line 3 has 2 cells, its header has 3: a,2"),
    ),
    "long row": (
        "where,age,paid\na,1,0,5\n",
        ("line 2 has 4 cells, its header has 3: a,1,0,5"),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_tables(tmp_path: Path, name: str) -> None:
    """What is wrong with the file is said in one line, with its path."""
    text, reason = FILES[name]
    assert_refused(save(tmp_path, text), FILE + reason)


def test_classes_written_as_floats(tmp_path: Path) -> None:
    """Other programs write whole classes with a point; they keep it."""
    text = "where,age,paid\na,1,0.0\na,2,1.0\nb,3,1.0\nb,4,0.0\n"
    table = load(save(tmp_path, text), drop_columns=[])
    assert (table.classes, table.labels.tolist()) == (("0.0", "1.0"), [0, 1, 1, 0])


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    """A target that is not whole is one line, and not a class for every number."""
    path = save(tmp_path, "where,age,paid\na,1,0\na,2,1\nb,3,1.5\nb,4,0\n")
    assert_refused(
        path,
        "data.target must be a column of classes in PATH where data.regression is false, got paid, "
        "which is 1.5 in line 4 (data.regression=true predicts numbers)",
        drop_columns=[],
    )


def test_a_word_among_numbers(tmp_path: Path) -> None:
    """One slip of the pen does not make each number of a column a category."""
    path = save(tmp_path, "where,age,paid\na,1,0\na,2,1\nb,3O,1\nb,,0\n")
    assert_refused(
        path,
        "data.path must have columns of numbers without other cells, got PATH: age: line 4 has "
        "'3O': 3O is no number: write a number, or leave the cell empty. "
        "data.invalid_cells=missing takes such cells as missing, data.categories=[age] takes them "
        "as categories, data.drop_columns=[age] leaves them out",
        drop_columns=[],
    )
    table = load(path, drop_columns=[], invalid_cells="missing")
    np.testing.assert_array_equal(table.numbers[:, 0], [1, 2, np.nan, np.nan])
    assert (table.invalid, table.missing) == ({"age": 1}, {"age": 0.5})
    assert load(path, drop_columns=[], categories=["age"]).columns[0] == "age=1"
    named = {"categories": {"age": ["1", "2", "3O", None]}, "classes": ["0", "1"]}
    assert load(path, drop_columns=[], columns=named).categories.tolist() == np.eye(4).tolist()


def test_a_file_with_an_expected_number_of_rows(tmp_path: Path) -> None:
    """A truncated one is one line."""
    assert len(load(save(tmp_path), expected_rows=6).labels) == 6
    assert_refused(
        save(tmp_path), FILE + "it must have data.expected_rows 7, got 6", expected_rows=7
    )


def test_missing_file(tmp_path: Path) -> None:
    """A missing path is reported as such; test_find_files.py has folders."""
    assert_refused(tmp_path / "none.csv", FILE + "there is no such file")


@pytest.mark.parametrize(
    ("key", "value"),
    [("client_column", "town"), ("target", "Paid"), ("drop_columns", ["note", "x"])],
)
def test_missing_column(tmp_path: Path, key: str, value: str | list[str]) -> None:
    """The setting, the columns that there are and the one asked for are named."""
    wanted = value if isinstance(value, str) else "x"
    message = (
        f"data.{key} must be one of the columns of PATH, which are where, age, job, paid, note, "
        f"got '{wanted}'{' (did you mean paid?)' if wanted == 'Paid' else ''}"
    )
    assert_refused(save(tmp_path), message, **{key: value})


def test_a_mistyped_column_is_answered_with_the_nearest(tmp_path: Path) -> None:
    """In the same line, at its end."""
    message = (
        "data.drop_columns must be one of the columns of PATH, which are where, age, job, paid, "
        "note, got 'agee' (did you mean age?)"
    )
    assert_refused(save(tmp_path), message, drop_columns=["agee"])


def test_zeros_of_categories(tmp_path: Path) -> None:
    """Only columns of numbers have zeros."""
    kind = "must be one of the columns of numbers of PATH, which are age"
    path = save(tmp_path)
    assert_refused(path, f"data.zero_as_missing {kind}, got 'job'", zero_as_missing=["job"])
    none = kind.replace("age", "none")
    assert_refused(
        path,
        f"data.zero_as_missing {none}, got 'age'",
        zero_as_missing=["age"],
        drop_columns=["age"],
    )


def test_a_row_without_client_or_target(tmp_path: Path) -> None:
    """The column and the line are named; empty lines count."""
    for key, row in (("client_column", ",30,nurse,yes,x"), ("target", "north,30,x,,x")):
        name = {"client_column": "where", "target": "paid"}[key]
        text = "\n".join([HEADER, *ROWS[:2], "", row, *ROWS[2:]])
        assert_refused(
            save(tmp_path, text),
            f"data.{key} must be a column without missing values, got {name}, which is missing in "
            "line 5 of PATH",
        )


def test_a_client_without_targets(tmp_path: Path) -> None:
    """It is named, not only its first line."""
    rows = [f"{site},{age},nurse,,x" for site in ("west", "east") for age in (1, 2)]
    assert_refused(
        save(tmp_path, "\n".join([HEADER, *ROWS, *rows])),
        "data.target must have values for each client in PATH, got none of paid for east, west "
        "(leave these rows out, from line 8 on)",
    )


def test_a_client_with_one_row(tmp_path: Path) -> None:
    """It cannot be both trained and tested, and is named."""
    assert_refused(
        save(tmp_path, "\n".join([HEADER, *ROWS, "west,1,nurse,no,x"])),
        "data.min_samples must be at least 2 where clients have a single row (one row is for "
        "training, another for testing), got null; 2 leaves out west",
    )


def test_clients_with_few_rows_are_left_out(tmp_path: Path) -> None:
    """The others' ids have no gap, their rows and the columns are as in the whole file."""
    path = save(tmp_path, "\n".join([HEADER, "east,1,pilot,no,x", *ROWS, "west,1,nurse,no,x"]))
    table = load(path, min_samples=2)
    assert table.dropped_clients == {"east": 1, "west": 1}
    assert table.client_names == ("Delta", "north", "south")
    np.testing.assert_array_equal(table.clients, np.array([1, 2, 1, 2, 0, 0]))
    assert "job=pilot" in table.columns
    np.testing.assert_array_equal(table.numbers, load(save(tmp_path)).numbers)
    with pytest.raises(DataError, match="at most the number of rows of the largest client, 2, got"):
        load(path, min_samples=3)


@pytest.mark.parametrize(("rows", "doubts"), [(220, 1), (1500, 0)])
def test_many_numbers_as_classes_are_doubted(tmp_path: Path, rows: int, doubts: int) -> None:
    """Eleven grades of a few hundred rows may be meant as numbers; words are not."""
    lines = [f"a,{i}.5,{i % 11}" for i in range(rows)]
    table = load(save(tmp_path, "\n".join(["where,age,paid", *lines])), drop_columns=[])
    assert len(table.warnings) == doubts
    assert all("the 11 different numbers of paid" in doubt for doubt in table.warnings)
    overrides = "\n".join(["where,age,paid", *(f"{line}x" for line in lines)])
    assert not load(save(tmp_path, overrides), drop_columns=[]).warnings


def test_a_text_is_no_class(tmp_path: Path) -> None:
    """A target that is another word in nearly every row is refused."""
    lines = [f"a,{i}.5,word{i}" for i in range(30)]
    assert_refused(
        save(tmp_path, "\n".join(["where,age,paid", *lines])),
        "data.target must be a column of classes in PATH, got paid, which has 30 different values "
        "in 30 rows",
        drop_columns=[],
    )


def test_a_number_for_every_row_is_no_class(tmp_path: Path) -> None:
    """A price is predicted as a number, and the error says how."""
    lines = [f"a,{i}.5,{1000 + 7 * i}" for i in range(30)]
    path = save(tmp_path, "\n".join(["where,age,paid", *lines]))
    assert_refused(
        path,
        "data.target must be a column of classes in PATH, got paid, which has 30 different values "
        "in 30 rows (data.regression=true predicts numbers)",
        drop_columns=[],
    )
    assert load(path, drop_columns=[], regression=True).labels[1] == 1007


@pytest.mark.parametrize(
    ("sign", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")]
)
def test_columns_are_separated_by_commas(tmp_path: Path, sign: str, name: str) -> None:
    """Spreadsheets in many countries write something else."""
    text = "\n".join([HEADER, *ROWS]).replace(",", sign)
    assert_refused(
        save(tmp_path, text),
        "data.path must be a .csv file with a header or a .parquet file, or a folder of such, got "
        f"PATH: its columns must be separated by commas, got {name} in the header (numbers need a "
        "decimal point)",
    )


def test_one_class(tmp_path: Path) -> None:
    """There is nothing to learn where all targets are the same."""
    assert_refused(
        save(tmp_path, "where,age,paid\na,1,yes\na,2,yes\n"),
        "data.target must be a column of different values in PATH, got paid, which is always yes",
        drop_columns=[],
    )


def test_no_inputs(tmp_path: Path) -> None:
    """A model needs something to go by."""
    assert_refused(
        save(tmp_path),
        "data.drop_columns must leave columns of PATH as inputs, got none",
        drop_columns=["age", "job", "note"],
    )


@pytest.mark.parametrize(
    ("number", "shown"), [("inf", "inf"), ("-inf", "-inf"), ("1e999", "inf"), ("1e39", "1e+39")]
)
def test_numbers_that_are_not_finite(tmp_path: Path, number: str, shown: str) -> None:
    """The column and the line are named."""
    text = "\n".join([HEADER, *ROWS, "", f"Delta,{number},nurse,no,x"])
    assert_refused(
        save(tmp_path, text),
        "data.path must be a .csv file of numbers that are finite in float32, got PATH: age is "
        f"{shown} in line 9",
    )


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    """The encoding, the line and what to do, in one line."""
    text = "\n".join([HEADER, *ROWS]).encode() + b"\nDelta,1,caf\xe9,no,x"
    assert_refused(
        save(tmp_path, text),
        FILE + "the file is not UTF-8 but Latin-1, Windows-1252 or the like (line 8 has the byte "
        "0xe9, \u00e9 in Windows-1252); save it as CSV UTF-8",
    )


SETTINGS = {
    "": "data.path must be the path of a .csv, .parquet or .xlsx file, or a folder of such, got ''",
    "data.path=x data.client_column=a": "data.target must be the name of a column, got ''",
    "data.path=x data.client_column=a data.target=a": (
        "data.target must be another column than data.client_column, got 'a'"
    ),
    "data.path=x data.client_column=a data.target=b data.drop_columns=[c,b]": (
        "data.drop_columns must be columns other than data.target (b), got ['c', 'b']"
    ),
    "data.path=x data.client_column=a data.target=b data.drop_columns=[a]": (
        "data.drop_columns must be columns other than data.client_column (a), got ['a']"
    ),
    "data.path=x data.client_column=a data.target=b data.drop_columns=[c,c]": (
        "data.drop_columns must be a list of names of columns, each once, got ['c', 'c']"
    ),
    "data.path=x data.client_column=a data.target=b data.zero_as_missing=['']": (
        "data.zero_as_missing must be a list of names of columns, each once, got ['']"
    ),
    "data.path=x data.client_column=a data.target=b data.test_fraction=1": (
        "data.test_fraction must be a number >= 0.01 and <= 0.9, got 1.0"
    ),
}


@pytest.mark.parametrize("overrides", SETTINGS)
def test_settings_are_checked_before_any_work(overrides: str) -> None:
    """What is wrong without looking at the file is one line when composing."""
    quoted = " ".join(f'"{word}"' for word in overrides.split())
    with pytest.raises(SettingsError) as caught:
        compose_settings("custom", f"data=csv {quoted}")
    assert str(caught.value) == SETTINGS[overrides]


def test_one_column_to_drop_is_a_list() -> None:
    """A word in place of the list is refused in one line."""
    overrides = "data=csv data.path=x data.client_column=a data.target=b data.drop_columns=c"
    with pytest.raises(SettingsError, match=r"data\.drop_columns") as caught:
        compose_settings("custom", overrides)
    assert "\n" not in str(caught.value)


def test_numbers_to_predict(tmp_path: Path) -> None:
    """With data.regression the target is the number itself, and there are no classes."""
    text = "where,age,job\na,1.5,x\na,-2,y\nb,1e3,x\nb,0,x\n"
    numbers = load(save(tmp_path, text), target="age", drop_columns=[], regression=True)
    np.testing.assert_array_equal(numbers.labels, np.array([1.5, -2, 1000, 0]), strict=True)
    assert (numbers.classes, numbers.columns) == ((), ("job=x", "job=y"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "where,age,job\na,1,x\na,old,y\nb,2,x\nb,3,x\n",
            (
                "data.target must be a column of numbers in PATH where data.regression is true, "
                "got age: line 3 has 'old': old is a word: if it means missing, type "
                "data.missing=[old]"
            ),
        ),
        (
            "where,age,job\na,1,x\na,,y\nb,2,x\nb,3,x\n",
            (
                "data.target must be a column without missing values, got age, which is missing in "
                "line 3 of PATH"
            ),
        ),
    ],
)
def test_targets_that_are_no_numbers(tmp_path: Path, text: str, message: str) -> None:
    """Text or a gap among the numbers to predict is one line."""
    path = save(tmp_path, text)
    assert_refused(path, message, target="age", drop_columns=[], regression=True)
