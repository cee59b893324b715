"""Tests of reading untrusted Parquet files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fedquorum.errors import RunError
from fedquorum.records import parquet
from fedquorum.records.columns import (
    MAX_INT32,
    calibration_column,
    float_column,
    fraction_column,
    int_column,
    text_column,
)
from fedquorum.records.parquet import read_parquet_file
from fedquorum.records.safe_files import SafeRunDir

COLUMNS = (
    int_column("round", high=MAX_INT32),
    text_column("reason", "nothing to report"),
    float_column("loss", "not measured"),
    fraction_column("rate", "not known"),
    calibration_column("bins", "not reported"),
)


def write_and_read(
    folder: Path, columns: dict[str, Any], wanted: list[str] | None = None
) -> pa.Table:
    """Write columns, add null columns for the rest, and read the file."""
    rows = len(next(iter(columns.values())))
    null_columns = {
        column.name: pa.nulls(rows, column.type) for column in COLUMNS if column.null_meaning
    }
    pq.write_table(pa.table(null_columns | columns), folder / "file.parquet")
    return read_parquet_file(SafeRunDir(folder), ("file.parquet",), COLUMNS, wanted)


def test_columns_have_the_types_of_the_schema(tmp_path: Path) -> None:
    """Columns outside the schema are left out."""
    columns = {"round": pa.array([1, 2], pa.int64()), "loss": [1.0, None], "more": [1, 2]}
    table = write_and_read(tmp_path, columns)
    assert table.schema.names == [column.name for column in COLUMNS]
    assert table["round"].type == pa.int32()
    assert write_and_read(tmp_path, columns, ["loss", "reason"]).column_names == ["reason", "loss"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"loss": [1.0]}, "expected a column round"),
        ({"round": [1, None]}, "expected round in every row"),
        ({"round": ["one"]}, "Failed to parse string"),
        ({"round": [2**40]}, "Integer value"),
        ({"round": [-1]}, r"expected numbers from 0 to .* in round, got -1"),
        ({"round": [1], "rate": [1e300]}, r"expected numbers from 0 to 1 in rate, got 1e\+300"),
        ({"round": [1], "rate": [float("-inf")]}, "in rate, got -inf"),
        ({"round": [1], "reason": [5]}, "expected texts in reason, got int64"),
        ({"round": [1], "bins": [5]}, "expected bytes in bins, got int64"),
        ({"round": [1], "bins": ["text"]}, "bins must be the sums of 15 bins"),
        ({"round": [1, 2], "bins": [b"", b"\0" * 240]}, "bins must be the sums of 15 bins"),
        ({"round": [1], "bins": [b"\1" * 480]}, "bins must be the sums of 15 bins"),
    ],
)
def test_invalid_values_are_refused_with_the_file(
    tmp_path: Path, columns: dict[str, Any], problem: str
) -> None:
    """The error is one line with the file."""
    with pytest.raises(RunError, match=rf"file\.parquet: .*{problem}") as caught:
        write_and_read(tmp_path, columns)
    assert "\n" not in str(caught.value)


def test_duplicate_columns_are_refused(tmp_path: Path) -> None:
    """Which of two columns with the same name counts is unknown."""
    schema = pa.schema([pa.field("round", pa.int32()), pa.field("round", pa.int32())])
    table = pa.Table.from_arrays([pa.array([1], pa.int32())] * 2, schema=schema)
    pq.write_table(table, tmp_path / "file.parquet")
    with pytest.raises(RunError, match=r"file\.parquet: expected columns with different names$"):
        read_parquet_file(SafeRunDir(tmp_path), ("file.parquet",), COLUMNS)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error has the file's path."""
    path = tmp_path / "clients" / "file.parquet"
    expected = rf"^expected a file of a run, got {path} \(No such file or directory\)$"
    with pytest.raises(RunError, match=expected):
        read_parquet_file(SafeRunDir(tmp_path), ("clients", "file.parquet"), COLUMNS)


def test_files_that_would_fill_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are on the claimed number of rows and on the length of repeated texts."""
    monkeypatch.setattr(parquet, "MAX_READ_ROWS", 1000)
    with pytest.raises(RunError, match="expected at most 1,000 rows and 1024 MiB, got 1,001"):
        write_and_read(tmp_path, {"round": [1] * 1001})
    monkeypatch.setattr(parquet, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(RunError, match="MiB of texts in reason, got more"):
        write_and_read(tmp_path, {"round": [1] * 1000, "reason": ["x" * 20] * 1000})
    with pytest.raises(RunError, match="MiB of bytes in bins, got more"):
        write_and_read(tmp_path, {"round": [1] * 1000, "bins": [b"x" * 17] * 1000})


READING = """
import os, sys
from pathlib import Path
from fedquorum.records.parquet import read_columns

names = [f"x{number}" for number in range(20)]
with Path(sys.argv[1]).open("rb") as file:
    threads = os.listdir("/proc/self/task")
    assert read_columns(file, names, ()).num_rows == 10_000
assert os.listdir("/proc/self/task") == threads
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed by Linux only")
def test_no_thread_still_holds_the_file_after_reading(tmp_path: Path) -> None:
    """Such a thread would abort the process when the interpreter ends."""
    file = tmp_path / "file.parquet"
    pq.write_table(pa.table({f"x{number}": [1.0] * 10_000 for number in range(20)}), file)
    variables = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", READING, str(file)], env=variables, check=True)
