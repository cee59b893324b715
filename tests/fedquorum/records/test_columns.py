"""Columns of tables: what one holds is written and read, anything else is refused by both."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records.columns import (
    TableColumn,
    build_table,
    float_column,
    fraction_column,
    int_column,
    text_column,
)
from fedquorum.records.parquet import read_parquet_file
from fedquorum.records.reader import read_table
from fedquorum.records.safe_files import SafeRunDir
from fedquorum.records.tables import (
    CLIENTS_COLUMNS,
    EVALUATIONS_COLUMNS,
    MAX_CELL_LENGTH,
    POPULATION_COLUMNS,
)

from tests.fedquorum.records.made import make_round_record, open_records, report

COLUMNS = (
    int_column("round"),
    float_column("loss", "not measured"),
    fraction_column("rate", "not known"),
    text_column("why"),
)
DOCUMENT = (Path(__file__).parents[3] / "docs" / "records.md").read_text()


def row(**changes: Any) -> dict[str, list[Any]]:
    fields = {"round": 1, "loss": 0.5, "rate": 0.5, "why": "x"}
    return {name: [value] for name, value in (fields | changes).items()}


def read(folder: Path, table: pa.Table) -> pa.Table:
    pq.write_table(table, folder / "file.parquet")
    return read_parquet_file(SafeRunDir(folder), ("file.parquet",), COLUMNS)


def test_any_float64_is_read_to_the_bit(tmp_path: Path) -> None:
    """Infinities, NaN, the sign of 0; null stays null."""
    values = [0.0, -0.0, 5e-324, 1e120, -1.7e308, math.inf, -math.inf, math.nan, None]
    rows = {**row(), "loss": values}
    given = {name: one * len(values) if len(one) == 1 else one for name, one in rows.items()}
    column = read(tmp_path, build_table(COLUMNS, given))["loss"].combine_chunks()
    assert column.is_null().to_pylist() == [False] * 8 + [True]
    found = column.drop_null().to_numpy().view(np.int64)
    np.testing.assert_array_equal(found, np.array(values[:-1]).view(np.int64))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"round": -1}, "expected numbers from 0 to 9.0072e+15 in round, got -1"),
        ({"round": 2**53 + 1}, "expected numbers from 0 to 9.0072e+15 in round, got 9.0072e+15"),
        ({"rate": 1.5}, "expected numbers from 0 to 1 in rate, got 1.5"),
        ({"rate": math.inf}, "expected numbers from 0 to 1 in rate, got inf"),
        ({"why": None}, "expected why in every row"),
    ],
)
def test_the_writer_refuses_what_the_reader_does(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    """By the same description, in the same words."""
    with pytest.raises(RunError, match=f"^{re.escape(problem)}$"):
        build_table(COLUMNS, row(**changes))
    types = {column.name: column.type for column in COLUMNS}
    table = pa.table({k: pa.array(v, types[k]) for k, v in row(**changes).items()})
    with pytest.raises(RunError, match=rf"file\.parquet: {re.escape(problem)}$"):
        read(tmp_path, table)


def test_one_number_of_many_that_is_out_of_range_is_refused() -> None:
    """Whether it is below or above the others."""
    rows = {**row(), "rate": [0.5, 0.2, 0.9]}
    whole = {name: one * 3 if len(one) == 1 else one for name, one in rows.items()}
    assert len(build_table(COLUMNS, whole)) == 3
    for wrong in (-0.1, 1.1):
        with pytest.raises(RunError, match=f"from 0 to 1 in rate, got {wrong}$"):
            build_table(COLUMNS, {**whole, "rate": [0.5, wrong, 0.9]})


def test_the_document_says_which_columns_may_be_null() -> None:
    """As the description of each does."""
    for name, columns in (
        ("clients/", CLIENTS_COLUMNS),
        ("population.parquet", POPULATION_COLUMNS),
    ):
        part = DOCUMENT.partition(f"## `{name}`")[2].partition("\n## ")[0]
        never = re.findall(r"^\| `(\w+)` \|.*\| never \|$", part, re.MULTILINE)
        assert never == [column.name for column in columns if not column.null_meaning]


def test_every_column_is_in_one_table_once() -> None:
    """Two columns of one name would be one."""
    for columns in (CLIENTS_COLUMNS, EVALUATIONS_COLUMNS, POPULATION_COLUMNS):
        assert len({column.name for column in columns}) == len(columns)
        assert all(isinstance(column, TableColumn) for column in columns)


def test_a_text_of_a_rule_is_fit_for_a_table(tmp_path: Path) -> None:
    """Whatever a rule or a node says is one line, and not too long."""
    told = report(1)
    reasons = ("a\ud800\x1b[31m\nb", "x" * 10_000, None)
    decisions = tuple(
        replace(one, reason=reason) for one, reason in zip(told.decisions, reasons, strict=True)
    )
    with open_records(tmp_path / "run") as records:
        records.add_round(make_round_record(told), replace(told, decisions=decisions), ())
    found = read_table(tmp_path / "run" / "clients")["reason"].to_pylist()
    assert found == ["a [31m b", "x" * MAX_CELL_LENGTH + "...", None]
