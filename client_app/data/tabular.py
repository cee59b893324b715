"""Turn a table into arrays whose numbers are scaled client by client."""

from dataclasses import replace

import numpy as np

from client_app.data.coding.cells import format_cell
from client_app.data.coding.table import (
    CategoryColumn,
    ClientScale,
    TableCoding,
    TableScaling,
    join_inputs,
)
from client_app.data.scaling import Numbers, NumberScale
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.sources.csv_table import ClientTable, TableSchema, read_csv_table
from client_app.data.split import Rows
from client_app.data.summary import DataSummary, describe_target
from conf.schema.data import CsvSettings


def load_table_arrays(settings: CsvSettings) -> LabeledArrays:
    """Return the rows of a table, with the clients that it names.

    Inputs are float32 (n, d): the numbers in the file's order, then the categories. Categories are
    0 and 1 and are not scaled; their columns are the same for all clients.

    ``build_for_training`` scales each client's numbers by its own training rows: a missing number
    becomes the median of its column (the mean with ``data.imputation=mean``), without a missing
    indicator; then the mean is subtracted from every column, which is divided by its standard
    deviation (over n, not n - 1), or by 1 if that is 0. A column without numbers in the training
    rows is 0 in all rows. The ``coding`` has each client's statistics.
    """
    table = read_csv_table(settings)
    arrays = build_pooled_arrays(
        join_inputs(table.numbers, table.categories),
        table.labels,
        len(table.classes) or 1,
        client_train=table.clients,
        client_names=table.client_names,
        class_names=table.classes or None,
        summary=_summarize_table(table),
    )

    def build_for_training(train_rows: Rows) -> LabeledArrays:
        numbers, scales = _scale_by_client(table, train_rows, settings.imputation)
        x = join_inputs(numbers, table.categories)
        coding = build_table_coding(table.schema, settings, TableScaling.from_clients(scales))
        return replace(arrays, x_train=x, x_test=x, coding=coding)

    return replace(arrays, build_for_training=build_for_training)


def build_table_coding(
    schema: TableSchema, settings: CsvSettings, scaling: TableScaling
) -> TableCoding:
    """Return the coding of a table with these columns."""
    return TableCoding(
        schema.numbers,
        tuple(CategoryColumn(name, values) for name, values in schema.categories.items()),
        scaling,
        tuple(map(format_cell, settings.missing)),
        tuple(settings.zero_as_missing),
        settings.invalid_cells == "missing",
        {
            str(name): {format_cell(old): format_cell(new) for old, new in values.items()}
            for name, values in (settings.replace or {}).items()
        },
    )


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


def _scale_by_client(
    table: ClientTable, train_rows: Rows, imputation: str
) -> tuple[Numbers, tuple[ClientScale, ...]]:
    """Return the numbers (n, p), each client's scaled by those of its training rows; the scales."""
    is_train = np.zeros(len(table.clients), dtype=np.bool_)
    is_train[train_rows] = True
    by_client = np.argsort(table.clients, kind="stable")
    ends = np.cumsum(np.bincount(table.clients))
    scaled, scales = np.empty_like(table.numbers), []
    for client, rows in enumerate(np.split(by_client, ends[:-1])):
        numbers, train = table.numbers[rows], is_train[rows]
        scale = NumberScale.fit(numbers[train], imputation)
        scaled[rows] = scale.apply(numbers)
        scales.append(ClientScale(client, int(train.sum()), scale))
    return scaled, tuple(scales)
