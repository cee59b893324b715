"""The Parquet tables of a run: their columns, their rows, and how they are written."""

import math
import time
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..report import ClientDecision, ClientEvaluation
from .files import replacing, sync

CLIENTS_SCHEMA = pa.schema(
    [
        pa.field("round", pa.int32(), nullable=False),
        pa.field("client", pa.int32(), nullable=False),
        pa.field("priority", pa.bool_(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("num_examples", pa.int64()),
        pa.field("loss", pa.float64()),
        pa.field("accuracy", pa.float64()),
        pa.field("response", pa.float64()),
        pa.field("mixing", pa.float64()),
        pa.field("omega", pa.float64()),
        pa.field("draws", pa.int32()),
        pa.field("update_norm", pa.float64()),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("seconds", pa.float64()),
        pa.field("test_loss", pa.float64()),
        pa.field("test_accuracy", pa.float64()),
    ]
)
EVALUATIONS_SCHEMA = pa.schema(
    [
        pa.field("round", pa.int32(), nullable=False),
        pa.field("client", pa.int32(), nullable=False),
        pa.field("priority", pa.bool_(), nullable=False),
        pa.field("num_examples", pa.int64()),
        pa.field("loss", pa.float64()),
        pa.field("accuracy", pa.float64()),
        pa.field("test_num_examples", pa.int64()),
        pa.field("test_loss", pa.float64()),
        pa.field("test_accuracy", pa.float64()),
        pa.field("test_metric", pa.float64()),
    ]
)
POPULATION_SCHEMA = pa.schema(
    [
        pa.field("client", pa.int32(), nullable=False),
        pa.field("priority", pa.bool_(), nullable=False),
        pa.field("priority_weight", pa.float64(), nullable=False),
        pa.field("participation_rate", pa.float64()),
    ]
)
FLUSH_SECONDS = 10.0


class ParquetParts:
    """A Parquet data set in a folder, written in parts: a part is whole or not there.

    A Parquet file cannot be read before its footer is written, so rows are kept for at most
    ``FLUSH_SECONDS`` and then written as a file of their own. ``flush`` and ``close`` bring all
    parts to the disk.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._flushed = time.monotonic()
        folder.mkdir(exist_ok=True)
        self._parts = len(list(folder.iterdir()))
        self._unsynced: list[Path] = []

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Keep rows, and write what is kept if the last time is ``FLUSH_SECONDS`` ago."""
        self._rows.extend(rows)
        if self._rows and time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._write()

    def flush(self) -> None:
        """Write the rows that are still kept; all parts are on the disk when this returns."""
        if self._rows:
            self._write()
        for path in self._unsynced:
            sync(path)
        if self._unsynced:
            sync(self._folder)
        self._unsynced = []

    def close(self) -> None:
        """Flush; an empty data set gets one empty part."""
        if self._parts == 0:
            self._write()
        self.flush()

    def _write(self) -> None:
        table = pa.Table.from_pylist(self._rows, schema=self._schema)
        path = self._folder / f"part-{self._parts:05d}.parquet"
        write_whole(table, path)
        self._unsynced.append(path)
        self._parts += 1
        self._rows = []
        self._flushed = time.monotonic()


def write_whole(table: pa.Table, path: Path, *, synced: bool = False) -> None:
    """Write a table, all at once or not at all."""
    with replacing(path, synced=synced) as part:
        pq.write_table(table, part)


def client_row(
    round_number: int, decision: ClientDecision, tested: ClientEvaluation | None
) -> dict[str, Any]:
    """Return the row of ``clients/`` of one client asked."""
    return {
        "round": round_number,
        **{item.name: getattr(decision, item.name) for item in fields(decision)},
        "test_loss": None if tested is None else _finite(tested.test_loss),
        "test_accuracy": None if tested is None else _finite(tested.test_accuracy),
    }


def evaluation_row(round_number: int, evaluation: ClientEvaluation) -> dict[str, Any]:
    """Return the row of ``evaluations/`` of one client evaluated after a round."""
    counts = {
        name: None if math.isnan(value) else int(value)
        for name, value in (
            ("num_examples", evaluation.num_examples),
            ("test_num_examples", evaluation.test_num_examples),
        )
    }
    return {
        "round": round_number,
        "client": evaluation.client,
        "priority": evaluation.priority,
        **counts,
        "loss": _finite(evaluation.loss),
        "accuracy": _finite(evaluation.accuracy),
        "test_loss": _finite(evaluation.test_loss),
        "test_accuracy": _finite(evaluation.test_accuracy),
        "test_metric": _finite(evaluation.test_metric),
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
