"""Tests that columns of tables round-trip valid values, and that invalid ones are refused."""

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
from fedquorum.records.callback import FinishedRound
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


def make_row(**changes: Any) -> dict[str, list[Any]]:
    fields = {"round": 1, "loss": 0.5, "rate": 0.5, "why": "x"}
    return {name: [value] for name, value in (fields | changes).items()}


def write_and_read(folder: Path, table: pa.Table) -> pa.Table:
    pq.write_table(table, folder / "file.parquet")
    return read_parquet_file(SafeRunDir(folder), ("file.parquet",), COLUMNS)


def test_any_float64_is_read_back_exactly(tmp_path: Path) -> None:
    """Infinities, NaN and the sign of 0 are retained; null stays null."""
    values = [0.0, -0.0, 5e-324, 1e120, -1.7e308, math.inf, -math.inf, math.nan, None]
    rows = {**make_row(), "loss": values}
    given = {
        name: column_values * len(values) if len(column_values) == 1 else column_values
        for name, column_values in rows.items()
    }
    column = write_and_read(tmp_path, build_table(COLUMNS, given))["loss"].combine_chunks()
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
def test_writer_and_reader_refuse_the_same_values(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    """Both use the same description and report the same message."""
    with pytest.raises(RunError, match=f"^{re.escape(problem)}$"):
        build_table(COLUMNS, make_row(**changes))
    types = {column.name: column.type for column in COLUMNS}
    table = pa.table({k: pa.array(v, types[k]) for k, v in make_row(**changes).items()})
    with pytest.raises(RunError, match=rf"file\.parquet: {re.escape(problem)}$"):
        write_and_read(tmp_path, table)


def test_one_number_out_of_range_is_refused() -> None:
    """It may be below or above the other numbers."""
    rows = {**make_row(), "rate": [0.5, 0.2, 0.9]}
    columns = {name: values * 3 if len(values) == 1 else values for name, values in rows.items()}
    assert len(build_table(COLUMNS, columns)) == 3
    for wrong in (-0.1, 1.1):
        with pytest.raises(RunError, match=f"from 0 to 1 in rate, got {wrong}$"):
            build_table(COLUMNS, {**columns, "rate": [0.5, wrong, 0.9]})


def test_docs_list_the_columns_that_are_never_null() -> None:
    """docs/records.md agrees with the declarations."""
    for name, columns in (
        ("clients/", CLIENTS_COLUMNS),
        ("population.parquet", POPULATION_COLUMNS),
    ):
        section = DOCUMENT.partition(f"## `{name}`")[2].partition("\n## ")[0]
        never = re.findall(r"^\| `(\w+)` \|.*\| never \|$", section, re.MULTILINE)
        assert never == [column.name for column in columns if not column.null_meaning]


def test_column_names_are_unique_in_each_table() -> None:
    """Two columns with the same name would be ambiguous."""
    for columns in (CLIENTS_COLUMNS, EVALUATIONS_COLUMNS, POPULATION_COLUMNS):
        assert len({column.name for column in columns}) == len(columns)
        assert all(isinstance(column, TableColumn) for column in columns)


def test_reasons_are_sanitized_and_truncated(tmp_path: Path) -> None:
    """A reason from a rule or a node becomes one line of limited length."""
    round_report = report(1)
    reasons = ("a\ud800\x1b[31m\nb", "x" * 10_000, None)
    decisions = tuple(
        replace(decision, reason=reason)
        for decision, reason in zip(round_report.decisions, reasons, strict=True)
    )
    with open_records(tmp_path / "run") as records:
        records.end_round(
            FinishedRound(
                make_round_record(round_report), replace(round_report, decisions=decisions)
            )
        )
    found = read_table(tmp_path / "run" / "clients")["reason"].to_pylist()
    assert found == ["a [31m b", "x" * MAX_CELL_LENGTH + "...", None]
