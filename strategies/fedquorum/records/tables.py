"""Define the Parquet tables of a run, build their rows, and write them."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..client.availability.rates import ParticipationRates
from ..contrib import CLIENT_COLUMNS
from ..errors import RunError, to_one_line
from ..io import atomic_write
from ..rules.decisions import (
    PERSONAL_METRICS,
    PERSONAL_MODELS,
    ClientDecision,
    ClientEvaluation,
)
from ..rules.metrics import AVERAGE_PRECISION
from ..rules.types import PerClient, Population
from ..sanitize import sanitize
from .client_names import NO_NAMES, ClientNames
from .columns import (
    MAX_INT32,
    TableColumn,
    TableColumns,
    bool_column,
    build_schema,
    build_table,
    calibration_column,
    float_column,
    fraction_column,
    int_column,
    text_column,
    validate_columns,
)
from .hosts import Host
from .parquet import read_parquet_file
from .safe_files import SafeRunDir, format_table_file, select_table_files
from .values import MAX_COUNT

_NO_UPDATE = "no usable update arrived"
_NOT_EVALUATED = "not measured"
_NO_LATE_UPDATE = "late updates do not count, or no usable update arrived"
_NO_R2 = "no numbers are predicted, or not defined"
_NO_CALIBRATION = "no classes are predicted, or not defined, or not reported"

CLIENTS_COLUMNS: TableColumns = (
    int_column("round", high=MAX_INT32),
    int_column("client", high=MAX_INT32),
    bool_column("priority"),
    text_column("status"),
    text_column("reason", "there is nothing to report"),
    int_column("num_examples", f"{_NO_UPDATE}, or data_weight has the amount"),
    float_column("loss", f"{_NO_UPDATE}, or it reports none"),
    float_column("accuracy", f"{_NO_UPDATE}, or it reports none"),
    float_column("response", "the strategy has none"),
    float_column("mixing_coefficient", "the strategy has none"),
    float_column(
        "participation_correction", "the strategy has none, or the client never took part"
    ),
    int_column("num_draws", "not drawn with replacement", high=MAX_INT32),
    float_column("update_norm", "the strategy does not weight by it"),
    float_column("weight"),
    float_column("reply_seconds", "time decides nothing, or no reply arrived"),
    float_column("test_loss", "not evaluated in this round"),
    float_column("test_accuracy", "not evaluated in this round"),
    float_column("data_weight", "num_examples has the amount"),
    int_column(
        "start_round",
        "late updates do not count, or the client did not set out",
        high=MAX_INT32,
        is_optional=True,
    ),
    int_column("staleness", _NO_LATE_UPDATE, high=MAX_INT32, is_optional=True),
    float_column("discount", _NO_LATE_UPDATE, is_optional=True),
)
"""The columns of ``clients/``; only runs in which late updates count write the optional ones."""

EVALUATIONS_COLUMNS: TableColumns = (
    int_column("round", high=MAX_INT32),
    int_column("client", high=MAX_INT32),
    bool_column("priority"),
    int_column("num_examples", "not reported"),
    float_column("loss", _NOT_EVALUATED),
    float_column("accuracy", _NOT_EVALUATED),
    int_column("test_num_examples", _NOT_EVALUATED),
    float_column("test_loss", _NOT_EVALUATED),
    float_column("test_accuracy", _NOT_EVALUATED),
    float_column("test_metric", "it is loss or accuracy, or not defined"),
    float_column("test_r2", _NO_R2),
    calibration_column("test_calibration", _NO_CALIBRATION),
    int_column("validation_num_examples", _NOT_EVALUATED),
    float_column("validation_loss", _NOT_EVALUATED),
    float_column("validation_accuracy", _NOT_EVALUATED),
    float_column("validation_metric", "it is loss or accuracy, or not defined"),
    float_column("validation_r2", _NO_R2),
    calibration_column("validation_calibration", _NO_CALIBRATION),
    bool_column("held_out"),
)
"""The columns of ``evaluations/`` in every run."""

AVERAGE_PRECISION_COLUMNS: TableColumns = tuple(
    replace(float_column(f"{split}_{AVERAGE_PRECISION}", "AUROC is not defined"), is_optional=True)
    for split in ("test", "validation")
)
"""Further columns of ``evaluations/`` in runs whose metric is AUROC."""

_NO_PERSONAL_MODEL = "no personal model was evaluated, or as above"

PERSONAL_COLUMNS: Mapping[str, TableColumns] = {
    model: tuple(
        replace(column, is_optional=True)
        for column in (
            int_column(f"{model}_epochs", _NO_PERSONAL_MODEL),
            *(
                (calibration_column if name.endswith("calibration") else float_column)(
                    f"{model}_{name}", _NO_PERSONAL_MODEL
                )
                for name in PERSONAL_METRICS
            ),
        )
    )
    for model in PERSONAL_MODELS
}
"""Further columns of ``evaluations/`` by personal model, in runs that have such models."""

POPULATION_COLUMNS: TableColumns = (
    int_column("client", high=MAX_INT32),
    text_column("name", "it has none, or the run records no names"),
    bool_column("priority"),
    fraction_column("priority_weight"),
    fraction_column("participation_rate", "not known"),
    int_column("joined_round", "all clients were known before round 1", high=MAX_INT32),
    fraction_column("base_rate", "not known"),
    bool_column("held_out"),
    *(float_column(name, null) for name, null in CLIENT_COLUMNS.items()),
    text_column("node", "a simulation, or the client has not connected yet", is_optional=True),
    text_column("node_key", "a simulation, or the node has no public key", is_optional=True),
)
"""The columns of ``population.parquet``."""

COLUMNS_BY_TABLE = {
    "clients": CLIENTS_COLUMNS,
    "evaluations": (
        *(*EVALUATIONS_COLUMNS, *AVERAGE_PRECISION_COLUMNS),
        *chain.from_iterable(PERSONAL_COLUMNS.values()),
    ),
}
"""The columns of the tables that grow, by the names of their folders."""

CLIENTS_SCHEMA, EVALUATIONS_SCHEMA, POPULATION_SCHEMA = map(
    build_schema, (CLIENTS_COLUMNS, EVALUATIONS_COLUMNS, POPULATION_COLUMNS)
)


def get_metric_column(split: str, metric: str) -> str:
    """Return the column of ``evaluations`` with the clients' metric on a split.

    Parameters
    ----------
    split : {"test", "validation"}
        The split of each client's data.
    metric : str
        ``evaluation.metric``; losses and accuracies have separate columns.
    """
    return f"{split}_{metric if metric in ('loss', 'accuracy') else 'metric'}"


MAX_CELL_LENGTH = 4000
"""The longest text in a table, in characters."""

FLUSH_SECONDS = 10.0
"""How long rows wait: a file of a few rows costs as much as one of thousands, and rows that a
kill loses are those of rounds after the last checkpoint, which flushes."""

MIN_FILE_ROWS = 2**13
"""A file with fewer rows is rewritten with the rows that follow, so that a run of a week with
hundreds of thousands of checkpoints does not have as many files."""

MAX_UNBUILT_ROWS = 2**13
"""How many rows wait as objects, which take some 400 bytes each; in a table it is a quarter."""

MAX_FILE_ROWS = 2**18
"""A reader and a resumed run load a file whole; this many rows take some 30 MB."""


class TableWriter:
    """A table in a folder of Parquet files, ``part-00000.parquet`` and so on; all have all columns.

    A Parquet file cannot be read before its footer is written, so rows are buffered for at most
    ``FLUSH_SECONDS``. They are then written together with those of the last file, which the new
    file replaces, until it has ``MIN_FILE_ROWS``. So the number of files follows from the rows, and
    not from the checkpoints, of which a long run has many. After any interruption, the files hold
    the first rows of the table, each once.

    Parameters
    ----------
    folder : Path
        The folder; created if missing.
    columns : TableColumns
    num_rows : int
        The number of existing rows to retain; later rows are removed.
    build : callable
        Returns a table of such items as ``add_rows`` receives; by default they are rows.

    Raises
    ------
    RunError
        If a file that must be truncated cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[TableColumn],
        num_rows: int = 0,
        build: Callable[[Sequence[Any]], pa.Table] | None = None,
    ) -> None:
        self._folder = folder
        self._columns = columns
        self._schema = build_schema(columns)
        self._build = build or partial(pa.Table.from_pylist, schema=self._schema)
        self._items: list[Any] = []  # not built yet, because a table costs as much for one row
        self._tables: list[pa.Table] = []
        self._flushed = time.monotonic()
        self._tail = self._schema.empty_table()  # the rows of the file to write next
        self._number = 0  # of that file
        self._closed_rows = 0  # in the files before it
        self._is_written = False
        folder.mkdir(exist_ok=True)
        self._truncate_rows(num_rows)

    def _truncate_rows(self, num_rows: int) -> None:
        """Remove all rows but the first ``num_rows``, and continue the last file if it is small."""
        rows_left = num_rows
        for name in select_table_files(path.name for path in self._folder.iterdir()):
            path = self._folder / name
            if rows_left <= 0:
                path.unlink()
                continue
            file_rows = _count_rows(path)
            if rows_left < file_rows or (
                rows_left == file_rows < MIN_FILE_ROWS and not self._is_corrupt(name)
            ):
                self._tail = self._read_file(name).slice(0, rows_left)
                self._is_written = rows_left == file_rows
            else:
                self._closed_rows += file_rows
                self._number += 1
            rows_left -= file_rows
        self.flush()

    def _is_corrupt(self, name: str) -> bool:
        """Say whether a file's rows cannot be read; a resumed run leaves the file and continues."""
        try:
            self._read_file(name)
        except RunError:
            return True
        return False

    def _read_file(self, name: str) -> pa.Table:
        """Return the rows of a file, which is untrusted."""
        run = SafeRunDir(self._folder.parent)
        return read_parquet_file(run, (self._folder.name, name), self._columns).cast(self._schema)

    @property
    def num_rows(self) -> int:
        """The number of rows written."""
        return self._closed_rows + len(self._tail)

    def add_rows(self, items: Iterable[Any]) -> None:
        """Buffer an item for each row; flush if the last write is more than ``FLUSH_SECONDS`` ago.

        Of many rows the table is built before, because it is smaller.
        """
        self._items.extend(items)
        if len(self._items) > MAX_UNBUILT_ROWS:
            self._build_table()
        if (self._items or self._tables) and time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def _build_table(self) -> None:
        if self._items:
            built = self._build(self._items).select(self._schema.names)
            self._tables.append(validate_columns(self._columns, built))
            self._items = []

    def flush(self) -> None:
        """Write all buffered rows durably."""
        self._build_table()
        if self._tables:
            self._tail = pa.concat_tables([self._tail, *self._tables]).combine_chunks()
            self._is_written = False
            self._tables = []
        if len(self._tail) and not self._is_written:
            self._write_tail()

    def close(self) -> None:
        """Flush; an empty table gets one empty file."""
        self.flush()
        if self.num_rows == 0:
            self._write_tail()

    def _write_tail(self) -> None:
        """Write the tail to as many files as it needs, replacing the last file."""
        is_full = len(self._tail) >= MIN_FILE_ROWS
        while True:
            path = self._folder / format_table_file(self._number)
            write_table(self._tail.slice(0, MAX_FILE_ROWS), path, durable=True)
            if not is_full:
                break
            self._closed_rows += min(len(self._tail), MAX_FILE_ROWS)
            self._number += 1
            self._tail = self._tail.slice(MAX_FILE_ROWS)
            if not len(self._tail):
                break
        self._is_written = True
        self._flushed = time.monotonic()


def _count_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: {to_one_line(error)}") from None


def write_table(
    table: pa.Table, path: Path, *, durable: bool = False, sorted_column: str | None = None
) -> None:
    """Write a table atomically.

    The column ``sorted_column`` is stored as differences: ids without gaps take no space.
    """
    encoding: dict[str, Any] = {}
    if sorted_column is not None:
        other_columns = [name for name in table.column_names if name != sorted_column]
        encodings = {sorted_column: "DELTA_BINARY_PACKED"}
        encoding = {"column_encoding": encodings, "use_dictionary": other_columns}
    with atomic_write(path, durable=durable) as partial:
        pq.write_table(table, partial, **encoding)


def build_population_table(
    population: Population,
    rates: ParticipationRates | None,
    joined: Mapping[int, int] | None = None,
    columns: Mapping[str, Mapping[int, float]] | None = None,
    names: ClientNames = NO_NAMES,
    *,
    hosts: Mapping[int, Host] | None = None,
) -> pa.Table:
    """Return the rows of ``population.parquet``.

    Parameters
    ----------
    population : Population
        The clients.
    rates : ParticipationRates or None
        How often each client participates, if known.
    joined : mapping of int to int, optional
        The first round of every client, if clients may join.
    columns : mapping of str to mapping of int to float, optional
        The run's columns of ``CLIENT_COLUMNS``, by client id.
    names : ClientNames
        The names to record.
    hosts : mapping of int to Host, optional
        The node of every client, in a deployment.
    """
    hosts = hosts or {}
    clients = np.sort(np.array(population.hosted_clients, dtype=np.int64))
    is_held_out = np.isin(clients, np.array(population.held_out, dtype=np.int64))
    weights = np.zeros(len(clients))
    weights[~is_held_out] = population.priority_weights
    unknown = pa.nulls(len(clients), pa.float64())
    extra_columns = {
        name: PerClient.from_mapping((columns or {}).get(name, {})) for name in CLIENT_COLUMNS
    }
    values = {
        "client": clients,
        "name": [names.names.get(k) for k in clients.tolist()],
        "priority": weights > 0,
        "priority_weight": weights,
        "participation_rate": (
            unknown if rates is None else _nan_to_null(rates.mean_rates[clients])
        ),
        "joined_round": (
            pa.nulls(len(clients), pa.int32())
            if joined is None
            else [joined[k] for k in clients.tolist()]
        ),
        "base_rate": unknown if rates is None else rates.p[clients],
        "held_out": is_held_out,
        **{
            name: _nan_to_null(numbers.get_array(clients, np.nan))
            for name, numbers in extra_columns.items()
        },
        "node": [str(hosts[k].node) if k in hosts else None for k in clients.tolist()],
        "node_key": [hosts[k].key if k in hosts else None for k in clients.tolist()],
    }
    table = build_table(POPULATION_COLUMNS, values)
    return table if hosts else table.drop_columns(["node", "node_key"])


def _nan_to_null(values: NDArray[np.float64]) -> pa.Array:
    """Return a column of numbers with null for NaN."""
    return pa.array(values, mask=np.isnan(values))


def build_decisions_table(
    rows: Sequence[tuple[int, ClientDecision, ClientEvaluation | None]],
) -> pa.Table:
    """Return the rows of ``clients/``: a round, and a selected client with its evaluation."""
    decisions, evaluations = [decision for _, decision, _ in rows], [e for _, _, e in rows]
    columns: dict[str, Sequence[Any]] = {
        name: list(map(attrgetter(name), decisions)) for name in _DECISION_FIELDS
    }
    counts = [_split_num_examples(number) for number in columns["num_examples"]]
    columns |= {
        "round": [server_round for server_round, _, _ in rows],
        "num_examples": [count for count, _ in counts],
        "data_weight": [weight for _, weight in counts],
        "test_loss": [None if e is None else _nan_to_none(e.test_loss) for e in evaluations],
        "test_accuracy": [
            None if e is None else _nan_to_none(e.test_accuracy) for e in evaluations
        ],
        "reason": [
            None if reason is None else sanitize(reason, MAX_CELL_LENGTH)
            for reason in columns["reason"]
        ],
    }
    for column in CLIENTS_COLUMNS:
        if pa.types.is_floating(column.type):  # Arrow refuses whole numbers beyond 2^53 for float64
            columns[column.name] = [
                None if number is None else float(number) for number in columns[column.name]
            ]
    arrays = [pa.array(columns[field.name], field.type) for field in CLIENTS_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=CLIENTS_SCHEMA)


_DECISION_FIELDS = [item.name for item in fields(ClientDecision)]


def list_evaluation_columns(
    personal_models: Iterable[str], *, has_average_precision: bool = False
) -> TableColumns:
    """Return the columns of ``evaluations/`` in a run.

    Parameters
    ----------
    personal_models : iterable of str
        The personal models that the run evaluates.
    has_average_precision : bool
        Whether the run has average precision beside its metric.
    """
    columns = (
        *(*EVALUATIONS_COLUMNS, *AVERAGE_PRECISION_COLUMNS),
        *chain.from_iterable(PERSONAL_COLUMNS[model] for model in personal_models),
    )
    return tuple(
        column
        for column in columns
        if has_average_precision or not column.name.endswith(AVERAGE_PRECISION)
    )


def build_evaluations_table(
    rows: Sequence[tuple[int, ClientEvaluation]],
    personal_models: Sequence[str] = (),
    *,
    has_average_precision: bool = False,
) -> pa.Table:
    """Return the rows of ``evaluations/``: a round, and a client evaluated after it.

    The other parameters are those of ``list_evaluation_columns``.
    """
    columns = list_evaluation_columns(personal_models, has_average_precision=has_average_precision)
    evaluations = [evaluation for _, evaluation in rows]
    values: dict[str, Any] = {
        "round": [server_round for server_round, _ in rows],
        "client": [e.client for e in evaluations],
        "priority": [e.priority for e in evaluations],
        "held_out": [e.held_out for e in evaluations],
    }
    for column in (*EVALUATIONS_COLUMNS, *AVERAGE_PRECISION_COLUMNS):
        if column.name not in values:
            values[column.name] = _build_column(
                column, [getattr(e, column.name) for e in evaluations]
            )
    for model in personal_models:
        personal = [e.find_personal(model) for e in evaluations]
        for column, name in zip(
            PERSONAL_COLUMNS[model], ("epochs", *PERSONAL_METRICS), strict=True
        ):
            missing = b"" if pa.types.is_binary(column.type) else math.nan
            values[column.name] = _build_column(
                column, [missing if one is None else getattr(one, name) for one in personal]
            )
    return pa.table(
        {column.name: values[column.name] for column in columns}, schema=build_schema(columns)
    )


def _build_column(column: TableColumn, values: Sequence[Any]) -> pa.Array:
    """Return a column of ``evaluations/``, with null for NaN and for no bytes."""
    if pa.types.is_binary(column.type):
        return pa.array([value or None for value in values], column.type)
    return _nan_to_null(np.array(values, dtype=np.float64)).cast(column.type)


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _split_num_examples(given: float | None) -> tuple[int | None, float | None]:
    """Return an amount of data as ``num_examples`` if it is a count, else as ``data_weight``."""
    if given is None:
        return None, None
    is_count = 0 <= given <= MAX_COUNT and given == int(given) and math.copysign(1.0, given) > 0
    return (int(given), None) if is_count else (None, given)
