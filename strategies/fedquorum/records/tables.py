"""The Parquet tables of a run: their columns, their rows, and how they are written."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..appeal import Requirements
from ..client.availability.rates import SimulatedRates
from ..intake import shown
from ..report import ClientDecision, ClientEvaluation
from ..types import Population
from .columns import (
    LARGEST_INT32,
    Columns,
    checked,
    count,
    flag,
    number,
    schema_of,
    share,
    table_of,
    text,
)
from .files import replacing, sync
from .parts import Span, uncovered
from .values import LARGEST_COUNT

_UNUSABLE = "no usable update arrived"
_UNMEASURED = "not measured"

CLIENTS: Columns = (
    count("round", high=LARGEST_INT32),
    count("client", high=LARGEST_INT32),
    flag("priority"),
    text("status"),
    text("reason", "there is nothing to report"),
    count("num_examples", f"{_UNUSABLE}, or data has the amount"),
    number("loss", f"{_UNUSABLE}, or it reports none"),
    number("accuracy", f"{_UNUSABLE}, or it reports none"),
    number("response", "the strategy has none"),
    number("mixing", "the strategy has none"),
    number("omega", "the strategy has none, or the client never took part"),
    count("draws", "not drawn with replacement", high=LARGEST_INT32),
    number("update_norm", "the strategy does not weight by it"),
    number("weight"),
    number("seconds", "time decides nothing, or no reply arrived"),
    number("test_loss", "not evaluated in this round"),
    number("test_accuracy", "not evaluated in this round"),
    number("data", "num_examples has the amount"),
)
"""The columns of ``clients/``."""

EVALUATIONS: Columns = (
    count("round", high=LARGEST_INT32),
    count("client", high=LARGEST_INT32),
    flag("priority"),
    count("num_examples", "not reported"),
    number("loss", _UNMEASURED),
    number("accuracy", _UNMEASURED),
    count("test_num_examples", _UNMEASURED),
    number("test_loss", _UNMEASURED),
    number("test_accuracy", _UNMEASURED),
    number("test_metric", "it is loss or accuracy, or not defined"),
    count("validation_num_examples", _UNMEASURED),
    number("validation_loss", _UNMEASURED),
    number("validation_accuracy", _UNMEASURED),
    number("validation_metric", "it is loss or accuracy, or not defined"),
    flag("unseen", "an older run"),
)
"""The columns of ``evaluations/``."""

POPULATION: Columns = (
    count("client", high=LARGEST_INT32),
    flag("priority"),
    share("priority_weight"),
    share("participation_rate", "not known"),
    count("joined", "all clients were known before round 1", high=LARGEST_INT32),
    share("base_rate", "not known"),
    flag("unseen", "an older run"),
    number("requirement", "it has none"),
    number("local_accuracy", "not known"),
)
"""The columns of ``population.parquet``."""

CLIENTS_SCHEMA, EVALUATIONS_SCHEMA, POPULATION_SCHEMA = map(
    schema_of, (CLIENTS, EVALUATIONS, POPULATION)
)


def metric_column(part: str, metric: str) -> str:
    """Return the column of ``evaluations`` with the clients' metric on a part.

    Parameters
    ----------
    part : {"test", "validation"}
        Of each client's data.
    metric : str
        ``evaluation.metric``; losses and accuracies have columns of their own.
    """
    return f"{part}_{metric if metric in ('loss', 'accuracy') else 'metric'}"


LONGEST_TEXT = 4000
"""Of a text in a table, in characters."""

FLUSH_SECONDS = 10.0
MERGED = 32
"""How many parts become one."""

MOST_MERGED_ROWS = 2**18
DAMAGED_ROWS = MOST_MERGED_ROWS + 1


class ParquetParts:
    """A Parquet data set in a folder, written in parts: a part is whole or not there.

    A Parquet file cannot be read before its footer is written, so rows are kept for at most
    ``FLUSH_SECONDS`` and then written as a file of their own. ``flush`` and ``close`` bring all
    parts to the disk. ``flush`` also merges old parts, of which the last two checkpoints know; see
    ``fedquorum.records.parts``.
    """

    def __init__(self, folder: Path, columns: Columns) -> None:
        self._folder = folder
        self._columns = columns
        self._schema = schema_of(columns)
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._flushed = time.monotonic()
        folder.mkdir(exist_ok=True)
        self._parts = self._found()
        self._known = (0, 0)  # how many parts the last two checkpoints go with
        self._unsynced: list[Path] = []

    def _found(self) -> dict[Span, int]:
        """Return the parts that there are and their rows; remove those that a merge left."""
        names = [path.name for path in self._folder.iterdir()]
        kept = uncovered(names)
        for name in set(names) - set(kept):
            (self._folder / name).unlink()
        spans = (span for span in map(Span.of, kept) if span is not None)
        return {span: _count_rows(self._folder / span.name) for span in spans}

    @property
    def _count(self) -> int:
        return max((span.last for span in self._parts), default=-1) + 1

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Buffer rows, and write the buffer ``FLUSH_SECONDS`` after the last time."""
        self._rows.extend(rows)
        if self._keeps and time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._write()

    def add_table(self, table: pa.Table) -> None:
        """Buffer the rows of a table, and write the buffer as ``add`` does."""
        if len(table):
            self._tables.append(table)
        self.add(())

    @property
    def _keeps(self) -> bool:
        return bool(self._rows or self._tables)

    def flush(self) -> None:
        """Write the rows that are still kept; all parts are on the disk when this returns."""
        if self._keeps:
            self._write()
        for path in self._unsynced:
            sync(path)
        if self._unsynced:
            sync(self._folder)
        self._unsynced = []
        self._merge(self._known[0])
        self._known = (self._known[1], self._count)

    def close(self) -> None:
        """Flush; an empty data set gets one empty part."""
        if not self._parts:
            self._write()
        self.flush()

    def _write(self) -> None:
        rows = pa.Table.from_pylist(self._rows, schema=self._schema)
        table = checked(self._columns, pa.concat_tables([*self._tables, rows]))
        span = Span(self._count, self._count)
        path = self._folder / span.name
        write_whole(table, path)
        self._unsynced.append(path)
        self._parts[span] = len(table)
        self._rows, self._tables = [], []
        self._flushed = time.monotonic()

    def _merge(self, below: int) -> None:
        """Merge parts with numbers below one, those of one width with each other."""
        width = 1
        while True:
            alike = [s for s in self._parts if s.width == width and s.last < below][:MERGED]
            few = sum(map(self._parts.__getitem__, alike)) <= MOST_MERGED_ROWS
            if len(alike) < MERGED or not few:
                return
            self._merge_into_one(alike)
            width *= MERGED

    def _merge_into_one(self, spans: Sequence[Span]) -> None:
        """Replace parts by one with their rows."""
        paths = [self._folder / span.name for span in spans]
        try:
            tables = [pq.ParquetFile(path).read() for path in paths]
            table = pa.concat_tables(tables, promote_options="default")
        except pa.ArrowException:  # a run goes on beside parts that were damaged before
            self._parts |= dict.fromkeys(spans, DAMAGED_ROWS)
            return
        merged = Span(spans[0].first, spans[-1].last)
        columns = [name for name in self._schema.names if name in table.column_names]
        write_whole(table.select(columns), self._folder / merged.name, synced=True)
        for path in paths:
            path.unlink()
        left = {span: rows for span, rows in self._parts.items() if not merged.covers(span)}
        self._parts = dict(sorted({merged: len(table), **left}.items()))


def _count_rows(path: Path) -> int:
    """Return how many rows a part has, too many to merge it where it is damaged."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError):
        return DAMAGED_ROWS


def write_whole(
    table: pa.Table, path: Path, *, synced: bool = False, ascending: str | None = None
) -> None:
    """Write a table, all at once or not at all.

    A column that is ``ascending`` is written as differences: ids without gaps take no space.
    """
    encoding: dict[str, Any] = {}
    if ascending is not None:
        others = [name for name in table.column_names if name != ascending]
        packed = {ascending: "DELTA_BINARY_PACKED"}
        encoding = {"column_encoding": packed, "use_dictionary": others}
    with replacing(path, synced=synced) as part:
        pq.write_table(table, part, **encoding)


def population_table(
    population: Population,
    rates: SimulatedRates | None,
    joined: Mapping[int, int] | None = None,
    requirements: Requirements | None = None,
) -> pa.Table:
    """Return the rows of ``population.parquet``.

    Parameters
    ----------
    population : Population
        The clients.
    rates : SimulatedRates or None
        How often each client takes part, where known.
    joined : mapping of int to int, optional
        The first round of every client, where clients may join.
    requirements : Requirements, optional
        rho_k where the run has them.
    """
    clients = np.sort(np.array(population.hosted, dtype=np.int64))
    unseen = np.isin(clients, np.array(population.unseen, dtype=np.int64))
    weights = np.zeros(len(clients))
    weights[~unseen] = population.priority_weights
    unknown = pa.nulls(len(clients), pa.float64())
    held = requirements or Requirements({})
    values = {
        "client": clients,
        "priority": weights > 0,
        "priority_weight": weights,
        "participation_rate": (
            unknown if rates is None else _undefined_as_null(rates.mean[clients])
        ),
        "joined": (
            pa.nulls(len(clients), pa.int32())
            if joined is None
            else [joined[k] for k in clients.tolist()]
        ),
        "base_rate": unknown if rates is None else rates.p[clients],
        "unseen": unseen,
        "requirement": _undefined_as_null(held.losses(clients)),
        "local_accuracy": _undefined_as_null(held.accuracies(clients)),
    }
    return table_of(POPULATION, values)


def _undefined_as_null(values: NDArray[np.float64]) -> pa.Array:
    """Return a column of numbers, null for NaN."""
    return pa.array(values, mask=np.isnan(values))


def client_row(
    round_number: int, decision: ClientDecision, tested: ClientEvaluation | None
) -> dict[str, Any]:
    """Return the row of ``clients/`` of one client asked."""
    examples, data = _examples(decision.num_examples)
    row = {
        "round": round_number,
        **{item.name: getattr(decision, item.name) for item in fields(decision)},
        "num_examples": examples,
        "data": data,
        "test_loss": None if tested is None else _defined(tested.test_loss),
        "test_accuracy": None if tested is None else _defined(tested.test_accuracy),
    }
    for name in _NUMBERS:  # Arrow refuses whole numbers beyond 2^53 for float64
        if row[name] is not None:
            row[name] = float(row[name])
    if decision.reason is not None:
        row["reason"] = shown(decision.reason, LONGEST_TEXT)
    return row


_NUMBERS = [column.name for column in CLIENTS if pa.types.is_floating(column.type)]


def evaluation_table(round_number: int, evaluations: Sequence[ClientEvaluation]) -> pa.Table:
    """Return the rows of ``evaluations/`` of the clients evaluated after a round."""
    values: dict[str, Any] = {
        "round": np.full(len(evaluations), round_number),
        "client": [e.client for e in evaluations],
        "priority": [e.priority for e in evaluations],
        "unseen": [e.unseen for e in evaluations],
    }
    for column in EVALUATIONS:
        if column.name not in values:
            given = np.array([getattr(e, column.name) for e in evaluations], dtype=np.float64)
            values[column.name] = _undefined_as_null(given).cast(column.type)
    return table_of(EVALUATIONS, values)


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _examples(given: float | None) -> tuple[int | None, float | None]:
    """Return an amount of data as a whole number, or else as the number that it is."""
    if given is None:
        return None, None
    whole = 0 <= given <= LARGEST_COUNT and given == int(given) and math.copysign(1.0, given) > 0
    return (int(given), None) if whole else (None, given)
