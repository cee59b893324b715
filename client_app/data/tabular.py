"""Turn a table into arrays whose numbers are scaled client by client."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client_app.data.base import Inputs
from client_app.data.sources.base import LabeledArrays, build_pooled_arrays
from client_app.data.sources.csv_table import ClientTable, Numbers, read_csv_table
from client_app.data.split import Rows
from client_app.data.summary import DataSummary, describe_target
from conf.schema.data import CsvSettings

FILL_FUNCTIONS: Mapping[str, Callable[..., Numbers]] = {"median": np.nanmedian, "mean": np.nanmean}
"""The statistic of ``data.imputation``, which replaces missing numbers."""


def load_table_arrays(settings: CsvSettings) -> LabeledArrays:
    """Return the rows of a table, with the clients that it names.

    Inputs are float32 (n, d): the numbers in the file's order, then the categories. Categories are
    0 and 1 and are not scaled; their columns are the same for all clients.

    ``build_for_training`` scales each client's numbers by its own training rows: a missing number
    becomes the median of its column (the mean with ``data.imputation=mean``), without a missing
    indicator; then the mean is subtracted from every column, which is divided by its standard
    deviation (over n, not n - 1), or by 1 if that is 0. A column without numbers in the training
    rows is 0 in all rows.
    """
    table = read_csv_table(settings)
    arrays = build_pooled_arrays(
        _join_columns(table, table.numbers),
        table.labels,
        len(table.classes) or 1,
        client_train=table.clients,
        client_names=table.client_names,
        summary=_summarize_table(table),
    )
    compute_fill = FILL_FUNCTIONS[settings.imputation]

    def build_for_training(train_rows: Rows) -> LabeledArrays:
        x = _join_columns(table, _scale_by_client(table, train_rows, compute_fill))
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


def _scale_by_client(
    table: ClientTable, train_rows: Rows, compute_fill: Callable[..., Numbers]
) -> Numbers:
    """Return the table's numbers (n, p), each client's scaled by those of its training rows."""
    is_train = np.zeros(len(table.clients), dtype=np.bool_)
    is_train[train_rows] = True
    by_client = np.argsort(table.clients, kind="stable")
    ends = np.cumsum(np.bincount(table.clients))
    scaled = np.empty_like(table.numbers)
    for rows in np.split(by_client, ends[:-1]):
        scaled[rows] = _scale_numbers(table.numbers[rows], is_train[rows], compute_fill)
    return scaled


def _scale_numbers(
    numbers: Numbers, is_train: NDArray[np.bool_], compute_fill: Callable[..., Numbers]
) -> Numbers:
    """Scale the numbers (n, p) of one client by the statistics of its training rows."""
    train = numbers[is_train]
    has_numbers = ~np.isnan(train).all(axis=0)
    if np.isnan(numbers).any():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "All-NaN slice|Mean of empty slice", RuntimeWarning)
            fill_values = compute_fill(train, axis=0)
        numbers = np.where(np.isnan(numbers), fill_values, numbers)
        train = numbers[is_train]
    # Compare the extremes: the mean of equal numbers like 0.1 is rounded, so std is not exactly 0.
    constant = train.min(axis=0) == train.max(axis=0)
    mean = np.where(constant, train[0], train.mean(axis=0))
    deviation = np.where(constant, 1.0, train.std(axis=0))
    return np.where(has_numbers, (numbers - mean) / deviation, 0.0)
