"""Turn a table into arrays whose numbers are scaled client by client."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from client_app.data.coding.table import (
    CategoryCoding,
    ClientScale,
    TableCoding,
    TableScaling,
    join_inputs,
)
from client_app.data.coding.values import Value
from client_app.data.moments import Numbers
from client_app.data.overrides import list_replacements
from client_app.data.scaling import NumberScale
from client_app.data.sources.base import AgreedColumns, LabeledArrays, build_pooled_arrays
from client_app.data.sources.client_table import ClientTable, TableSchema, abbreviate_names
from client_app.data.sources.csv_table import read_csv_table
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
    rows is 0 in all rows. With ``data.scaling=agreed`` mean and deviation are those of the known
    numbers in the training rows of all clients, and a missing number becomes that mean. The
    ``coding`` has these statistics.
    """
    summary = _summarize_table(table)
    arrays = build_pooled_arrays(
        join_inputs(table.numbers, table.categories),
        table.labels,
        len(table.classes) or 1,
        client_train=table.clients,
        client_names=table.client_names,
        class_names=table.classes or None,
        division=table.division,
        summary=summary,
    )

    def build_for_training(train_rows: Rows) -> LabeledArrays:
        flags, unseen = table.categories, dict[str, tuple[Value, ...]]()
        if settings.columns is None:
            flags, unseen = table.drop_unseen_values(train_rows)
        described = replace(arrays, summary=_add_unseen_values(summary, unseen))

        def build_scaled(numbers: Numbers, scaling: TableScaling) -> LabeledArrays:
            x = join_inputs(numbers, flags)
            coding = build_table_coding(table.schema, settings, scaling, unseen)
            return replace(described, x_train=x, x_test=x, coding=coding)

        if settings.scaling == "client":
            numbers, scales = _scale_by_client(table, train_rows, settings.imputation)
            return build_scaled(numbers, TableScaling.from_clients(scales))
        columns = AgreedColumns(
            table.schema.numbers,
            table.numbers,
            lambda scale: build_scaled(scale.apply(table.numbers), TableScaling("agreed", scale)),
        )
        return replace(build_scaled(table.numbers, TableScaling("none")), agreed=columns)

    return replace(arrays, build_for_training=build_for_training)


def build_table_coding(
    schema: TableSchema,
    settings: CsvSettings,
    scaling: TableScaling,
    unseen: Mapping[str, tuple[Value, ...]] = MappingProxyType({}),
) -> TableCoding:
    """Return the coding of a table with these columns."""
    return TableCoding(
        schema.numbers,
        tuple(
            CategoryCoding(name, values, schema.others.get(name), unseen.get(name, ()))
            for name, values in schema.categories.items()
        ),
        scaling,
        tuple(settings.missing),
        tuple(settings.zero_as_missing),
        settings.invalid_cells == "missing",
        list_replacements(settings.replace),
    )


def _add_unseen_values(
    summary: DataSummary, unseen: Mapping[str, tuple[Value, ...]]
) -> DataSummary:
    """Return the summary with a line on the categories that no training row has."""
    if not unseen:
        return summary
    columns = [f"{name} ({len(values)})" for name, values in unseen.items()]
    line = f"categories that no training row has are taken as other: {abbreviate_names(columns)}"
    return replace(summary, warnings=(*summary.warnings, line))


def _summarize_table(table: ClientTable) -> DataSummary:
    target = describe_target("class" if table.classes else "number", len(table.classes) or 1)
    return DataSummary(
        len(table.client_names),
        f"{table.target}, {target}" if table.target else target,
        table.schema.description,
        rows=len(table.labels),
        dropped_clients=table.dropped_clients,
        dropped_columns=table.dropped_columns,
        files_passed_over=table.files_passed_over,
        numbers=table.schema.numbers,
        categories={name: len(values) for name, values in table.schema.categories.items()},
        classes=dict.fromkeys(table.classes),
        missing=table.missing,
        invalid=table.invalid,
        other_categories=table.other_categories,
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
