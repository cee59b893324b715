"""Test the coding of a table: its columns, its scales, and the rows that come later."""

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fedquorum.errors import DataError, SettingsError

from client_app.data.coding.read import read_coding
from client_app.data.coding.table import (
    MAX_STATISTICS,
    CategoryCoding,
    ClientScale,
    TableCoding,
    TableScaling,
    average_scales,
    encode_flags,
)
from client_app.data.scaling import NumberScale


def make_scale(*means: float, deviation: float = 2.0) -> NumberScale:
    """Return a scale that fills with its means."""
    mean = np.array(means)
    return NumberScale(mean, mean, np.full(len(means), deviation))


NORTH = ClientScale(0, 30, make_scale(50.0, 1.0), "North")
SOUTH = ClientScale(1, 10, make_scale(70.0, 5.0), "South")
SCALING = TableScaling.from_clients([NORTH, SOUTH])
CODING = TableCoding(("age", "dose"), (CategoryCoding("smoker", ("no", "yes", None)),), SCALING)
ROW = {"age": 52, "dose": 3.0, "smoker": "yes"}


def encode(rows: Any, client: int | str | None = "North", coding: TableCoding = CODING) -> Any:
    """Return the inputs of rows as a list."""
    return coding.encode(rows, client).inputs.tolist()


def test_a_row_is_scaled_by_its_client() -> None:
    """(x - mean) / deviation, then a flag for each category."""
    assert encode(ROW) == [[1.0, 1.0, 0.0, 1.0, 0.0]]
    ids: tuple[Any, ...] = (1, np.int64(1), "South")
    for south in ids:
        assert encode(ROW, south) == [[-9.0, -1.0, 0.0, 1.0, 0.0]]
    assert CODING.inputs == ("age", "dose", "smoker=no", "smoker=yes", "smoker=")
    assert CODING.encode(ROW, "North").inputs.dtype == np.float32


def test_without_a_client_the_statistics_are_averaged_by_rows() -> None:
    """(30 x 50 + 10 x 70) / 40 = 55, and a note says so."""
    encoded = CODING.encode({**ROW, "age": 57})
    assert encoded.inputs.tolist() == [[1.0, 0.5, 0.0, 1.0, 0.0]]
    (note,) = encoded.notes
    assert "the mean of all clients' statistics, weighted by rows" in note
    assert CODING.encode(ROW, "South").notes == ()


def test_a_client_without_numbers_does_not_count_in_the_mean() -> None:
    """A column that nobody has stays undefined, and its input is 0."""
    empty = NumberScale(*(np.array([math.nan, math.nan]) for _ in range(3)))
    half = NumberScale(*(np.array([math.nan, 4.0]) for _ in range(3)))
    mean = average_scales([ClientScale(0, 5, empty), ClientScale(1, 7, half)])
    assert math.isnan(mean.mean[0])
    assert mean.mean[1] == mean.fill[1] == mean.deviation[1] == 4.0
    assert mean.apply(np.array([[3.0, 8.0]])).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame([ROW]),
        {"smoker": ["yes"], "dose": np.array([3.0]), "age": (52,)},
        [ROW],
        pd.Series(ROW),
        {"comment": "x", **ROW},
        pd.DataFrame([{" age ": " 52 ", "dose": "3.0", "smoker": " yes "}], dtype="string"),
        pd.DataFrame([ROW]).convert_dtypes(),
        {**ROW, "age": "5.2e1", "dose": np.float32(3)},
    ],
    ids=["frame", "columns", "rows", "series", "extra", "texts", "nullable", "numpy"],
)
def test_every_form_of_a_row_is_the_same(rows: Any) -> None:
    """The order and further columns do not matter; numbers may be texts."""
    assert encode(rows) == encode(ROW)


@pytest.mark.parametrize("missing", [None, math.nan, "", " ", "NA", "?", pd.NA, np.float32("nan")])
def test_a_missing_number_is_filled(missing: Any) -> None:
    """With the fill of the training rows, whose input is 0 here."""
    assert encode({**ROW, "dose": missing}) == [[1.0, 0.0, 0.0, 1.0, 0.0]]


def test_settings_of_missing_cells_hold_for_later_rows() -> None:
    """Further words, zeros, invalid cells, and other spellings of categories."""
    coding = TableCoding(
        ("age", "dose"),
        (CategoryCoding("smoker", ("no", "yes")),),
        SCALING,
        missing=("-999", "unknown"),
        zero_as_missing=("dose",),
        invalid_as_missing=True,
        replacements={"smoker": {"Y": "yes"}, "dose": {"<1": "1"}},
    )
    filled = [[1.0, 0.0, 0.0, 1.0]]
    for dose in (-999, "-999", "unknown", 0, "0", "much"):
        assert encode({**ROW, "dose": dose, "smoker": "Y"}, coding=coding) == filled, dose
    assert encode({**ROW, "dose": "<1", "age": 0}, coding=coding) == [[-25.0, 0.0, 0.0, 1.0]]
    assert read_coding(json.loads(json.dumps(coding.to_json()))).to_json() == coding.to_json()


@pytest.mark.parametrize(
    ("cell", "flags"),
    [("no", [1, 0, 0]), ("yes", [0, 1, 0]), ("", [0, 0, 1]), (None, [0, 0, 1])],
)
def test_categories(cell: Any, flags: list[int]) -> None:
    """A flag for each, and for a missing cell if training had one."""
    encoded = CODING.encode({**ROW, "smoker": cell}, "North")
    assert encoded.inputs[0, 2:].tolist() == flags
    assert encoded.notes == ()


def test_an_unseen_category_counts_as_none_and_is_said() -> None:
    """One note for a column, with a few of the values."""
    column = CategoryCoding("smoker", ("no", "yes"))
    coding = TableCoding((), (column,))
    encoded = coding.encode({"smoker": ["quit", "no", "Yes", None]})
    assert encoded.inputs.tolist() == [[0, 0], [1, 0], [0, 0], [0, 0]]
    assert encoded.notes == (
        "smoker had no Yes, quit, empty cell in training: taken as none of its categories",
    )
    many = coding.encode({"smoker": [f"v{i}" for i in range(9)]}).notes[0]
    assert "v0, v1, v2, v3, v4, .. in training" in many


def test_other_values_have_a_flag_if_training_had_it() -> None:
    """The last one."""
    coding = TableCoding((), (CategoryCoding("icd", ("A", "B", "other"), other="other"),))
    encoded = coding.encode({"icd": ["B", "Z"]})
    assert encoded.inputs.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert coding.inputs == ("icd=A", "icd=B", "icd=other")
    assert "taken as other" in encoded.notes[0]


def test_whole_numbers_are_categories_as_in_training() -> None:
    """pandas makes 3 to 3.0 in a column with a gap."""
    coding = TableCoding((), (CategoryCoding("grade", ("3", "4", None)),))
    assert coding.encode({"grade": [3.0, math.nan, 4]}).inputs.tolist() == [
        [1, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
    ]


@pytest.mark.parametrize(
    "cell", ["4.5.1", "<5", "1 234", "5,6", "1_000", "inf", math.inf, 1e39, "much", [1]]
)
def test_a_cell_that_is_no_number_is_one_line(cell: Any) -> None:
    """With its column, its value and its row."""
    frame = pd.DataFrame({"age": [52, 52], "dose": [3.0, cell], "smoker": ["yes", "no"]})
    with pytest.raises(
        DataError, match=r"^dose must be a number .*got .* in row 2(?: \(.*\))?$"
    ) as error:
        CODING.encode(frame)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"age": 52, "smoker": "no"}, r"must have the column dose, .*it has age, smoker$"),
        ({"age": 52, "dosis": 1, "smoker": "no"}, r"dose.*\(did you mean dosis\?\)$"),
        ({"x": 1}, r"must have the column age \(and 2 more\)"),
        (pd.DataFrame([[1, 2, 3, 4]], columns=["age", "age", "dose", "smoker"]), "age 2 times$"),
        ({"age": [1, 2], "dose": [1], "smoker": ["no"]}, "must be a DataFrame, .* got dict: "),
        ([], "must be a DataFrame, .* got list$"),
        (["a"], "must be a DataFrame, .* got list$"),
        ("t.csv", "must be a DataFrame, .* got str$"),
        (None, "must be a DataFrame, .* got NoneType$"),
    ],
)
def test_rows_that_are_no_such_table_are_one_line(rows: Any, message: str) -> None:
    """The message names the column, or the form."""
    with pytest.raises(DataError, match=message) as error:
        CODING.encode(rows)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("client", ["Nroth", 2, -1, "0", True])
def test_an_unknown_client_is_one_line(client: Any) -> None:
    """It names those that there are."""
    with pytest.raises(SettingsError, match=r"a name \(North, South\) or an id from 0 to 1, got"):
        CODING.encode(ROW, client)


def test_scales_that_stayed_on_devices() -> None:
    """Only rows of a client that shares its scale, or the mean of such, can be scaled."""
    none = TableCoding(("age", "dose"), CODING.categories, TableScaling("device"))
    for client in (None, 0):
        with pytest.raises(DataError, match="stayed on the clients' devices"):
            none.encode(ROW, client)
    shared = TableScaling("device", NORTH.scale, (NORTH,))
    some = TableCoding(("age", "dose"), CODING.categories, shared)
    assert encode(ROW, 0, some) == encode(ROW)
    assert "the one client whose device shares them" in some.encode(ROW).notes[0]
    with pytest.raises(SettingsError, match=r"\(North\) or an id .* \(0\), got 1; for other"):
        some.encode(ROW, 1)


def test_the_mean_of_the_scales_of_devices() -> None:
    """It says how many share; where there are too many to keep, their mean is all there is."""
    both = TableScaling.from_devices([NORTH, SOUTH])
    assert (both.kind, both.common) == ("device", both.select(None)[0])
    assert "of the 2 clients whose devices share them" in both.select(None)[1][0]
    assert TableScaling.from_devices([]).common is None
    many = TableScaling("device", both.common)
    assert "the statistics of the clients whose devices" in many.select(None)[1][0]
    with pytest.raises(SettingsError, match="client must be left out"):
        many.select(0)


def test_an_agreed_scale_needs_no_client() -> None:
    """There is nothing to say about it; numbers without a scale stay as they are."""
    agreed = TableCoding(("age",), (), TableScaling("agreed", make_scale(50.0)))
    assert agreed.encode({"age": 52}).inputs.tolist() == [[1.0]]
    assert agreed.encode({"age": 52}).notes == ()
    assert TableCoding(("age",)).encode({"age": 52}).inputs.tolist() == [[52.0]]


def test_json_restores_every_bit() -> None:
    """Scales too, NaN as null."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(3, 2, 2))
    numbers[:, 0, 1] = math.nan
    scales = [ClientScale(k, k + 1, NumberScale(*numbers[:, k]), f"c{k}") for k in range(2)]
    coding = TableCoding(("a", "b"), CODING.categories, TableScaling.from_clients(scales))
    text = json.dumps(coding.to_json(), allow_nan=False)
    read = read_coding(json.loads(text))
    assert isinstance(read, TableCoding)
    for one, other in zip(read.scaling.clients, scales, strict=True):
        for name in ("fill", "mean", "deviation"):
            np.testing.assert_array_equal(getattr(one.scale, name), getattr(other.scale, name))
        assert (one.client, one.rows, one.name) == (other.client, other.rows, other.name)
    assert json.dumps(read.to_json()) == text


def test_many_clients_are_left_out_of_the_card() -> None:
    """Their mean stays, and a client is refused in one line."""
    scale = NumberScale(*(np.zeros(100) for _ in range(3)))
    count = MAX_STATISTICS // 300 + 1
    scaling = TableScaling.from_clients([ClientScale(k, 1, scale) for k in range(count)])
    coding = TableCoding(tuple(f"x{i}" for i in range(100)), (), scaling)
    read = read_coding(coding.to_json())
    assert isinstance(read, TableCoding)
    assert read.scaling.clients == ()
    with pytest.raises(SettingsError, match="client must be left out"):
        read.encode(dict.fromkeys(coding.numbers, 0), 0)


def test_flags() -> None:
    """A 1 at each index."""
    assert encode_flags(np.array([1, -1, 0]), 2).tolist() == [[0, 1], [0, 0], [1, 0]]
    assert encode_flags(np.array([], dtype=np.int64), 2).shape == (0, 2)
