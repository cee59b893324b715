"""Read the records of a run as pandas frames, with the columns that docs/records.md describes.

A column that is never null has NumPy's type. In other columns, null is NaN for float64, and
``pd.NA`` for pandas' nullable types of whole numbers, booleans and strings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import pandas as pd
import pyarrow as pa
from fedquorum.records.reader import Run, read_table
from fedquorum.records.round_record import SPLITS, RoundRecord

_ROUND_TYPES = {
    name: {int: "int64", float: "float64", float | None: "float64"}.get(kind, "object")
    for name, kind in get_type_hints(RoundRecord).items()
    if name not in SPLITS
}
_PANDAS_TYPES = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.float64(): None,
    pa.string(): pd.StringDtype(),
}


def build_rounds_frame(run: Run) -> pd.DataFrame:
    """Return one row per round; ``test`` becomes columns such as ``test.priority.accuracy``."""
    rows = [
        {
            item.name: getattr(record, item.name)
            for item in fields(record)
            if item.name not in SPLITS
        }
        | dict(_flatten_metrics(record))
        for record in run.rounds
    ]
    names = dict.fromkeys([*_ROUND_TYPES, *(name for row in rows for name in row)])
    types = {name: _ROUND_TYPES.get(name, "float64") for name in names}
    return pd.DataFrame(rows, columns=list(names)).astype(types)


def _flatten_metrics(record: RoundRecord) -> Iterator[tuple[str, float]]:
    for split in SPLITS:
        for group, values in (getattr(record, split) or {}).items():
            for name, value in (values or {}).items():
                yield f"{split}.{group}.{name}", value


def read_table_frame(run: Run, name: str) -> pd.DataFrame:
    """Return the rows of ``clients`` or ``evaluations``.

    Raises
    ------
    RunError
        If the table is missing or damaged.
    """
    table = read_table(run.directory / name)
    frame = table.to_pandas(types_mapper=_PANDAS_TYPES.get)
    return frame.astype(_get_pandas_types(table.schema))


def _get_pandas_types(schema: pa.Schema) -> Mapping[str, Any]:
    return {field.name: _get_pandas_type(field) for field in schema}


def _get_pandas_type(field: pa.Field) -> Any:
    if pa.types.is_list(field.type) or pa.types.is_binary(field.type):
        return "object"
    nullable = _PANDAS_TYPES[field.type]
    if nullable is None or field.nullable or pa.types.is_string(field.type):
        return nullable or "float64"
    return nullable.numpy_dtype
