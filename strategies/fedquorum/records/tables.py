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

from ..client.availability.rates import SimulatedRates
from ..contrib import CLIENT_COLUMNS
from ..errors import RunError, one_line
from ..intake import shown
from ..report import ClientDecision, ClientEvaluation
from ..types import ByClient, Population
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
from .files import replacing
from .folder import RunFolder, table_file, table_files
from .parquet import read_file
from .values import LARGEST_COUNT

_UNUSABLE = "no usable update arrived"
_UNMEASURED = "not measured"

CLIENTS: Columns = (
    count("round", high=LARGEST_INT32),
    count("client", high=LARGEST_INT32),
    flag("priority"),
    text("status"),
    text("reason", "there is nothing to report"),
    count("num_examples", f"{_UNUSABLE}, or data_weight has the amount"),
    number("loss", f"{_UNUSABLE}, or it reports none"),
    number("accuracy", f"{_UNUSABLE}, or it reports none"),
    number("response", "the strategy has none"),
    number("mixing_coefficient", "the strategy has none"),
    number("participation_correction", "the strategy has none, or the client never took part"),
    count("num_draws", "not drawn with replacement", high=LARGEST_INT32),
    number("update_norm", "the strategy does not weight by it"),
    number("weight"),
    number("reply_seconds", "time decides nothing, or no reply arrived"),
    number("test_loss", "not evaluated in this round"),
    number("test_accuracy", "not evaluated in this round"),
    number("data_weight", "num_examples has the amount"),
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
    flag("held_out"),
)
"""The columns of ``evaluations/``."""

POPULATION: Columns = (
    count("client", high=LARGEST_INT32),
    flag("priority"),
    share("priority_weight"),
    share("participation_rate", "not known"),
    count("joined_round", "all clients were known before round 1", high=LARGEST_INT32),
    share("base_rate", "not known"),
    flag("held_out"),
    *(number(name, null) for name, null in CLIENT_COLUMNS.items()),
)
"""The columns of ``population.parquet``."""

COLUMNS = {"clients": CLIENTS, "evaluations": EVALUATIONS}
"""The columns of the tables that grow, by the names of their folders."""

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
TAIL_ROWS = 2**13  # a file with fewer rows is written again with those that follow
MAX_ROWS = 2**18  # of one file


class TableWriter:
    """A table in a folder of Parquet files, ``part-00000.parquet`` and so on; all have all columns.

    A Parquet file cannot be read before its footer is written, so rows are kept for at most
    ``FLUSH_SECONDS``. They are then written together with those of the last file, which the new
    one replaces, until it has ``TAIL_ROWS``: the number of files follows from the rows and not from
    the checkpoints, of which a long run has many. Whatever stops the writing, the files hold the
    first rows of the table, each once.

    Parameters
    ----------
    folder : Path
        The folder; made if missing.
    columns : Columns
        The columns.
    num_rows : int
        How many rows stay of those that are there; later ones are removed.

    Raises
    ------
    RunError
        If a file cannot be read that has to be cut.
    """

    def __init__(self, folder: Path, columns: Columns, num_rows: int = 0) -> None:
        self._folder = folder
        self._columns = columns
        self._schema = schema_of(columns)
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._flushed = time.monotonic()
        self._tail = self._schema.empty_table()  # the rows of the file that is written next
        self._number = 0  # of this file
        self._closed_rows = 0  # of the files before it
        self._is_written = False
        folder.mkdir(exist_ok=True)
        self._go_back(num_rows)

    def _go_back(self, num_rows: int) -> None:
        """Remove all rows but the first, and go on with the last file where it is small."""
        left = num_rows
        for name in table_files(path.name for path in self._folder.iterdir()):
            path = self._folder / name
            if left <= 0:
                path.unlink()
                continue
            rows = _count_rows(path)
            if left < rows or (left == rows < TAIL_ROWS and not self._is_damaged(name)):
                self._tail = self._read(name).slice(0, left)
                self._is_written = left == rows
            else:
                self._closed_rows += rows
                self._number += 1
            left -= rows
        self.flush()

    def _is_damaged(self, name: str) -> bool:
        """Say whether the rows of a file cannot be read; a run goes on after it."""
        try:
            self._read(name)
        except RunError:
            return True
        return False

    def _read(self, name: str) -> pa.Table:
        """Return the rows of a file, which may come from anybody."""
        run = RunFolder(self._folder.parent)
        return read_file(run, (self._folder.name, name), self._columns).cast(self._schema)

    @property
    def num_rows(self) -> int:
        """How many rows are written."""
        return self._closed_rows + len(self._tail)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Buffer rows, and write the buffer ``FLUSH_SECONDS`` after the last time."""
        self._rows.extend(rows)
        if (self._rows or self._tables) and time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def add_table(self, table: pa.Table) -> None:
        """Buffer the rows of a table, and write the buffer as ``add`` does."""
        if len(table):
            self._tables.append(table)
        self.add(())

    def flush(self) -> None:
        """Write the rows that are still kept; all are on the disk when this returns."""
        if self._rows or self._tables:
            rows = pa.Table.from_pylist(self._rows, schema=self._schema)
            table = checked(self._columns, pa.concat_tables([*self._tables, rows]))
            self._tail = pa.concat_tables([self._tail, table]).combine_chunks()
            self._is_written = False
            self._rows, self._tables = [], []
        if len(self._tail) and not self._is_written:
            self._write()

    def close(self) -> None:
        """Flush; an empty table gets one empty file."""
        self.flush()
        if self.num_rows == 0:
            self._write()

    def _write(self) -> None:
        """Write the tail into as many files as it needs, the first one over what is there."""
        is_full = len(self._tail) >= TAIL_ROWS
        while True:
            path = self._folder / table_file(self._number)
            write_whole(self._tail.slice(0, MAX_ROWS), path, synced=True)
            if not is_full:
                break
            self._closed_rows += min(len(self._tail), MAX_ROWS)
            self._number += 1
            self._tail = self._tail.slice(MAX_ROWS)
            if not len(self._tail):
                break
        self._is_written = True
        self._flushed = time.monotonic()


def _count_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: {one_line(error)}") from None


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
    columns: Mapping[str, Mapping[int, float]] | None = None,
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
    columns : mapping of str to mapping of int to float, optional
        Those of ``CLIENT_COLUMNS`` that the run has, by client id.
    """
    clients = np.sort(np.array(population.hosted, dtype=np.int64))
    unseen = np.isin(clients, np.array(population.unseen, dtype=np.int64))
    weights = np.zeros(len(clients))
    weights[~unseen] = population.priority_weights
    unknown = pa.nulls(len(clients), pa.float64())
    further = {name: ByClient.of((columns or {}).get(name, {})) for name in CLIENT_COLUMNS}
    values = {
        "client": clients,
        "priority": weights > 0,
        "priority_weight": weights,
        "participation_rate": (
            unknown if rates is None else _undefined_as_null(rates.mean[clients])
        ),
        "joined_round": (
            pa.nulls(len(clients), pa.int32())
            if joined is None
            else [joined[k] for k in clients.tolist()]
        ),
        "base_rate": unknown if rates is None else rates.p[clients],
        "held_out": unseen,
        **{name: _undefined_as_null(of.at(clients, np.nan)) for name, of in further.items()},
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
        "data_weight": data,
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
        "held_out": [e.held_out for e in evaluations],
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
