"""The clients of one table: each with rows, and a scale, of its own."""

import warnings
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from fedquorum.errors import SettingsError

from client_app.data.account import Account, target_words
from client_app.data.base import (
    NEEDS_CLASSES,
    ClientData,
    Labels,
    Part,
    Pool,
    Target,
    Targets,
    part_of,
    pooled,
)
from client_app.data.priority import priority_clients
from client_app.data.sources.csv_table import Numbers, Table
from client_app.data.split import Rows, split_client
from conf.schema.checks import check_clients
from conf.schema.data import TableSettings


class TabularData:
    """The clients of a table.

    Of a client's rows ``data.test_fraction`` are for testing, see ``split_client``. Its numbers are
    scaled by what it knows itself: a missing number is the median of its column in the client's
    training part, and nothing tells that it was missing; then every column has the mean of the
    training part subtracted and is divided by its standard deviation (over n, not n - 1), or by 1
    where that is 0. A column without any number in the training part is 0 in both parts.
    Categories are 0 and 1 and not scaled; their columns are the same for all clients.

    Inputs are float32 (n, d): the numbers in the file's order, then the categories.

    Parameters
    ----------
    table : Table
        All rows.
    settings : TableSettings
        How much is for testing, and who has priority.
    seed : int
        The run's seed.

    Raises
    ------
    SettingsError
        If settings of clients do not fit those in the table.
    """

    num_tokens = None

    def __init__(self, table: Table, settings: TableSettings, seed: int) -> None:
        self._table = table
        self._settings = settings
        self._seed = seed
        self.num_clients = len(table.client_names)
        self.num_classes = len(table.classes) or 1
        self.target: Target = "class" if table.classes else "number"
        self.input_shape = (len(table.columns),)
        check_clients(settings, self.num_clients)
        fraction = settings.test_fraction
        self._rows = [
            client_rows(table, np.flatnonzero(table.clients == k), fraction, client=k, seed=seed)
            for k in range(self.num_clients)
        ]

    @cached_property
    def priority(self) -> tuple[int, ...]:
        """The priority clients that the settings ask for, ascending."""
        return priority_clients(self._settings, self.num_clients, self.labels, self._seed)

    @property
    def account(self) -> Account:
        """What the table was taken for: its columns, its target, and who is left out."""
        table = self._table
        words = target_words(self.target, self.num_classes)
        return Account(
            self.num_clients,
            f"{table.target}, {words}" if table.target else words,
            table.agreed.words,
            rows=len(table.labels),
            left_out=table.left_out,
            columns_left_out=table.columns_left_out,
            doubts=table.doubts,
        )

    def client(self, client: int) -> ClientData:
        """Return the data of one client."""
        return table_part(self._table, *self._rows[client])

    def targets(self, client: int) -> tuple[Targets, Targets]:
        """Return the targets of a client's two parts."""
        train, test = self._rows[client]
        return self._table.labels[train], self._table.labels[test]

    def labels(self, client: int) -> Labels:
        """Return the training labels of one client.

        Raises
        ------
        SettingsError
            If the targets are no classes.
        """
        if not self._table.classes:
            raise SettingsError(NEEDS_CLASSES)
        return self._table.labels[self._rows[client][0]]

    def pool(self, part: Part, clients: Sequence[int]) -> Pool:
        """Return one part of these clients."""
        return pooled({k: part_of(self.client(k), part) for k in clients})


def client_rows(
    table: Table, rows: Rows, fraction: float, *, client: int, seed: int
) -> tuple[Rows, Rows]:
    """Return which of a client's rows are for training and which for testing."""
    labels = table.labels[rows] if table.classes else np.zeros(len(rows), dtype=np.int64)
    train, test = split_client(labels, fraction, client=client, seed=seed)
    return rows[train], rows[test]


def table_part(table: Table, train: Rows, test: Rows) -> ClientData:
    """Return the data of a client with these rows."""
    x_train, x_test = (
        np.concatenate([scaled.astype(np.float32), table.categories[rows]], axis=1)
        for scaled, rows in zip(
            _scaled(table.numbers[train], table.numbers[test]), (train, test), strict=True
        )
    )
    return ClientData(x_train, table.labels[train], x_test, table.labels[test])


def _scaled(train: Numbers, test: Numbers) -> tuple[Numbers, Numbers]:
    """Return both parts of a client's numbers (n, p), by the statistics of the training part."""
    known = ~np.isnan(train).all(axis=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        median = np.nanmedian(train, axis=0)
    filled = [np.where(np.isnan(part), median, part) for part in (train, test)]
    # By its ends: of equal numbers like 0.1 the mean is rounded, and the deviation not quite 0.
    constant = filled[0].min(axis=0) == filled[0].max(axis=0)
    mean = np.where(constant, filled[0][0], filled[0].mean(axis=0))
    deviation = np.where(constant, 1.0, filled[0].std(axis=0))
    train, test = (np.where(known, (part - mean) / deviation, 0.0) for part in filled)
    return train, test
