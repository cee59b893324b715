"""Turn a table into arrays whose numbers are scaled client by client."""

from dataclasses import replace

import numpy as np

from client_app.data.base import Inputs
from client_app.data.scaling import Numbers, NumberScale
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.sources.csv_table import ClientTable, read_csv_table
from client_app.data.split import Rows
from client_app.data.summary import DataSummary, describe_target
from conf.schema.data import CsvSettings


def load_table_arrays(settings: CsvSettings) -> LabeledArrays:
    """Return the rows of ``data.path``; see ``build_table_arrays``."""
    return build_table_arrays(read_csv_table(settings), settings)


def build_table_arrays(table: ClientTable, settings: CsvSettings) -> LabeledArrays:
    """Return the rows of a table, with the clients that it names.

    Inputs are float32 (n, d): the numbers in the file's order, then the categories. Categories are
    0 and 1 and are not scaled; their columns are the same for all clients.

    ``build_for_training`` scales each client's numbers by its own training rows: a missing number
    becomes the median of its column (the mean with ``data.imputation=mean``), without a missing
    indicator; then the mean is subtracted from every column, which is divided by its standard
    deviation (over n, not n - 1), or by 1 if that is 0. A column without numbers in the training
    rows is 0 in all rows.
    """
    arrays = build_pooled_arrays(
        _join_columns(table, table.numbers),
        table.labels,
        len(table.classes) or 1,
        client_train=table.clients,
        client_names=table.client_names,
        class_names=table.classes or None,
        summary=_summarize_table(table),
    )

    def build_for_training(train_rows: Rows) -> LabeledArrays:
        x = _join_columns(table, _scale_by_client(table, train_rows, settings.imputation))
        return replace(arrays, x_train=x, x_test=x)

    return replace(arrays, build_for_training=build_for_training)


def _join_columns(table: ClientTable, numbers: Numbers) -> Inputs:
    """Return the inputs (n, d) with these numbers (n, p) and the table's categories."""
    return np.concatenate([numbers.astype(np.float32), table.categories], axis=1)


def _summarize_table(table: ClientTable) -> DataSummary:
    target = describe_target("class" if table.classes else "number", len(table.classes) or 1)
    return DataSummary(
        len(table.client_names),
        f"{table.target}, {target}" if table.target else target,
        table.schema.description,
        rows=len(table.labels),
        dropped_clients=table.dropped_clients,
        dropped_columns=table.dropped_columns,
        warnings=table.warnings,
    )


def _scale_by_client(table: ClientTable, train_rows: Rows, imputation: str) -> Numbers:
    """Return the table's numbers (n, p), each client's scaled by those of its training rows."""
    is_train = np.zeros(len(table.clients), dtype=np.bool_)
    is_train[train_rows] = True
    by_client = np.argsort(table.clients, kind="stable")
    ends = np.cumsum(np.bincount(table.clients))
    scaled = np.empty_like(table.numbers)
    for rows in np.split(by_client, ends[:-1]):
        numbers = table.numbers[rows]
        scaled[rows] = NumberScale.fit(numbers[is_train[rows]], imputation).apply(numbers)
    return scaled
