"""Flags of categories: the frequent ones, other ones, and those without a training row."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from client_app.data import load_data
from client_app.data.partitioned import PartitionedData
from client_app.data.sources.categories import CategoryColumn, build_flags
from client_app.data.sources.csv_table import read_csv_table
from conf.schema.data import CsvSettings

CELLS = ["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d", "other", None]


def test_the_rarer_values_share_a_flag() -> None:
    """The most frequent ones keep theirs; the name of the shared one is new."""
    column = CategoryColumn.find(pa.chunked_array([CELLS]), 2)
    assert column.values == ("a", "b", "(other)", None)
    assert (column.other, column.num_others) == ("(other)", 3)
    assert column.codes.tolist() == [0] * 4 + [1] * 3 + [2] * 4 + [3]
    assert build_flags([column], len(CELLS)).sum(axis=0).tolist() == [4, 3, 4, 1]
    whole = CategoryColumn.find(pa.chunked_array([CELLS]), 5)
    assert (whole.values, whole.other) == (("a", "b", "c", "d", "other", None), None)


def write(folder: Path, rare: int) -> Path:
    path = folder / "table.csv"
    rows = [
        f"{'ab'[i % 2]},{i % 7},{'rare' if i == rare else 'xyz'[i % 3]},{i % 2}" for i in range(60)
    ]
    path.write_text("\n".join(["site,n,kind,paid", *rows]) + "\n")
    return path


def load(path: Path, **settings: object) -> PartitionedData:
    values = {"path": str(path), "client_column": "site", "target": "paid", **settings}
    data = load_data(CsvSettings(**values), 1)  # type: ignore[arg-type]
    assert isinstance(data, PartitionedData)
    return data


def test_a_value_without_a_training_row_has_no_flag(tmp_path: Path) -> None:
    """The width does not depend on the split; agreed categories keep their flag; it is said."""
    test_row = int(load(write(tmp_path, -1))._partition[0].test[0])
    path = write(tmp_path, test_row)
    data = load(path, num_clients=2)
    assert data.input_shape == (5,)
    position = data._partition[0].test.tolist().index(test_row)
    np.testing.assert_array_equal(data.get_client(0).x_test[position, 1:], [0, 0, 0, 0])
    assert data.summary.warnings[-1] == (
        "categories that no training row has are taken as other: kind (1)"
    )
    columns = {"numbers": ["n"], "categories": {"kind": ["rare", "x", "y", "z"]}, "classes": [0, 1]}
    agreed = load(path, columns=columns).get_client(0).x_test[position, 1:]
    np.testing.assert_array_equal(agreed, [1, 0, 0, 0])
    others = load(path, max_categories=2)
    np.testing.assert_array_equal(others.get_client(0).x_test[position, 1:], [0, 0, 1])
    table = read_csv_table(
        CsvSettings(path=str(path), client_column="site", target="paid", max_categories=2)
    )
    assert (table.columns[-1], table.other_categories) == ("kind=other", {"kind": 2})
