"""Build the clients of one table, each with separate rows and scaling."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
from fedquorum.errors import SettingsError

from client_app.data.base import (
    CLASSES_REQUIRED,
    ClientData,
    Labels,
    PooledSplit,
    Split,
    Target,
    Targets,
    build_pooled_split,
    select_split,
)
from client_app.data.partition.base import ClientSplit
from client_app.data.priority import select_priority_clients
from client_app.data.sources.csv_table import ClientTable, Numbers
from client_app.data.split import Rows, split_client, split_validation
from client_app.data.summary import DataSummary, describe_target
from conf.schema.checks import check_clients
from conf.schema.data import CsvSettings


class TabularData:
    """The clients of a table.

    Of a client's rows ``data.test_fraction`` are for testing, see ``split_client``, and of the
    others ``data.validation_fraction`` for validation. Its numbers are scaled by the client's own
    training rows: a missing number becomes the median of its column (the mean with
    ``data.imputation=mean``), without a missing indicator; then the mean is subtracted from every
    column, which is divided by its standard deviation (over n, not n - 1), or by 1 if that is 0. A
    column without numbers in the training rows is 0 in all splits. Categories are 0 and 1 and are
    not scaled; their columns are the same for all clients.

    Inputs are float32 (n, d): the numbers in the file's order, then the categories.

    Parameters
    ----------
    table : ClientTable
        All rows.
    settings : CsvSettings
    seed : int
        The run's seed.

    Raises
    ------
    SettingsError
        If settings of single clients do not fit the number of clients in the table.
    """

    num_tokens = None

    def __init__(self, table: ClientTable, settings: CsvSettings, seed: int) -> None:
        self._table = table
        self._settings = settings
        self._seed = seed
        self.num_clients = len(table.client_names)
        self.num_classes = len(table.classes) or 1
        self.target: Target = "class" if table.classes else "number"
        self.input_shape = (len(table.columns),)
        check_clients(settings, self.num_clients)
        self._rows = [
            split_client_rows(
                table, np.flatnonzero(table.clients == k), settings, client=k, seed=seed
            )
            for k in range(self.num_clients)
        ]

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients of the settings, ascending."""
        return select_priority_clients(
            self._settings, self.num_clients, self.get_labels, self._seed
        )

    @property
    def summary(self) -> DataSummary:
        """The interpretation of the table: its columns, its target, and the clients left out."""
        table = self._table
        target = describe_target(self.target, self.num_classes)
        return DataSummary(
            self.num_clients,
            f"{table.target}, {target}" if table.target else target,
            table.schema.description,
            rows=len(table.labels),
            dropped_clients=table.dropped_clients,
            dropped_columns=table.dropped_columns,
            warnings=table.warnings,
        )

    def get_client(self, client: int) -> ClientData:
        """Return the data of one client."""
        return build_tabular_client(self._table, self._rows[client], self._settings.imputation)

    def get_targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the training and test targets of a client."""
        rows = self._rows[client]
        return self._table.labels[rows.train], self._table.labels[rows.test]

    def get_labels(self, client: int) -> Labels:
        """Return the training labels of one client.

        Raises
        ------
        SettingsError
            If the targets are not classes.
        """
        if not self._table.classes:
            raise SettingsError(CLASSES_REQUIRED)
        return self._table.labels[self._rows[client].train]

    def get_pooled_split(self, split: Split, clients: Sequence[int]) -> PooledSplit:
        """Return one split of these clients."""
        return build_pooled_split({k: select_split(self.get_client(k), split) for k in clients})


def split_client_rows(
    table: ClientTable, rows: Rows, settings: CsvSettings, *, client: int, seed: int
) -> ClientSplit:
    """Split a client's rows into training, test and validation rows."""
    labels = table.labels[rows] if table.classes else np.zeros(len(rows), dtype=np.int64)
    train, test = split_client(labels, settings.test_fraction, client=client, seed=seed)
    training, validation = split_validation(
        labels[train], settings.validation_fraction, client=client, seed=seed
    )
    return ClientSplit(rows[train][training], rows[test], rows[train][validation])


def build_tabular_client(table: ClientTable, split: ClientSplit, fill: str) -> ClientData:
    """Return a client's data; ``fill`` is ``data.imputation``, which replaces missing numbers."""
    splits = (split.train, split.test, split.validation)
    scaled = _scale_numbers([table.numbers[rows] for rows in splits], _FILL_FUNCTIONS[fill])
    x_train, x_test, x_validation = (
        np.concatenate([numbers.astype(np.float32), table.categories[rows]], axis=1)
        for numbers, rows in zip(scaled, splits, strict=True)
    )
    y_train, y_test, y_validation = (table.labels[rows] for rows in splits)
    return ClientData(x_train, y_train, x_test, y_test, (x_validation, y_validation))


_FILL_FUNCTIONS: Mapping[str, Callable[..., Numbers]] = {"median": np.nanmedian, "mean": np.nanmean}


def _scale_numbers(
    splits: Sequence[Numbers], compute_fill: Callable[..., Numbers]
) -> list[Numbers]:
    """Scale the numbers (n, p) of a client's splits by the statistics of the training split."""
    train = splits[0]
    has_numbers = ~np.isnan(train).all(axis=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice|Mean of empty slice", RuntimeWarning)
        fill_values = compute_fill(train, axis=0)
    filled = [np.where(np.isnan(numbers), fill_values, numbers) for numbers in splits]
    # Compare the extremes: the mean of equal numbers like 0.1 is rounded, so std is not exactly 0.
    constant = filled[0].min(axis=0) == filled[0].max(axis=0)
    mean = np.where(constant, filled[0][0], filled[0].mean(axis=0))
    deviation = np.where(constant, 1.0, filled[0].std(axis=0))
    return [np.where(has_numbers, (numbers - mean) / deviation, 0.0) for numbers in filled]
