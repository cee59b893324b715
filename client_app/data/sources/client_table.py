"""Hold a user's table as arrays, and the schema that all its clients share."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from fedquorum.errors import DataError

from client_app.data.base import Inputs, Labels, Targets
from client_app.data.coding.cell_forms import Mask
from client_app.data.coding.values import Value, format_value
from client_app.data.moments import Numbers
from client_app.data.split import RowDivision

MAX_NAMES = 5


@dataclass(frozen=True)
class TableSchema:
    """The columns and classes that all clients of a table share: ``data.columns``.

    Attributes
    ----------
    numbers : tuple of str
        The columns of numbers, in the order of the inputs.
    categories : dict of str to tuple
        The columns of categories, and the values of each; None for a missing value.
    classes : tuple
        The values of the target; empty if it is a number.
    others : mapping of str to str
        The columns of categories whose other values share a flag, and the value that stands for
        them in ``categories``.
    """

    numbers: tuple[str, ...]
    categories: dict[str, tuple[Value, ...]]
    classes: tuple[Value, ...]
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_settings(cls, columns: Any) -> "TableSchema":
        """Build the schema from ``data.columns``, which ``conf.schema.checks`` has checked."""
        return cls(
            tuple(columns.get("numbers", [])),
            {name: tuple(values) for name, values in columns.get("categories", {}).items()},
            tuple(columns.get("classes", [])),
        )

    @property
    def description(self) -> str:
        """The kinds of columns in words."""
        categories = [f"{name}: {len(values)}" for name, values in self.categories.items()]
        kinds = {"numbers": list(self.numbers), "categories": categories}
        return ", ".join(
            f"{len(names)} column{'' if len(names) == 1 else 's'} of {kind} "
            f"({abbreviate_names(names)})"
            for kind, names in kinds.items()
            if names
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes as text."""
        return tuple(map(format_value, self.classes))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the input columns."""
        flags = [
            f"{name}={'' if value is None else format_value(value)}"
            for name, values in self.categories.items()
            for value in values
        ]
        return (*self.numbers, *flags)


@dataclass(frozen=True)
class ClientTable:
    """n rows with p numbers and q flags of 0 or 1, and the client of each row.

    Attributes
    ----------
    clients : array of int64
        (n,), from 0.
    client_names : tuple of str
        The clients' names in the file, by id.
    labels : array of int64 or float64
        (n,), the index of the target in ``classes``, or the target itself if it is a number.
    classes : tuple of str
        The values of the target in order; empty if it is a number.
    numbers : array of float64
        (n, p), NaN for a missing number.
    categories : array of float32
        (n, q), 1 if the row has this category in this column.
    columns : tuple of str
        The names of the p columns, and then of the q as ``column=category``.
    schema : TableSchema
        The columns in the form of ``data.columns``.
    target : str
        The name of the target column.
    division : RowDivision
        What the table tells about the rows for training and for testing.
    dropped_clients : mapping of str to int
        The clients with fewer rows than ``data.min_samples``, and their number of rows.
    dropped_columns : mapping of str to str
        The columns that were automatically excluded from the inputs, and why.
    missing : mapping of str to float
        The share of missing cells of each input column that has any.
    invalid : mapping of str to int
        The columns with cells that ``data.invalid_cells`` takes as missing, and how many.
    other_categories : mapping of str to int
        The columns with more values than ``data.max_categories``, and how many became "other".
    files_passed_over : mapping of str to int
        The files in a folder that were not read.
    warnings : tuple of str
        Possible misinterpretations of the table.
    """

    clients: Labels
    client_names: tuple[str, ...]
    labels: Targets
    classes: tuple[str, ...]
    numbers: Numbers
    categories: Inputs
    columns: tuple[str, ...]
    schema: TableSchema
    target: str = ""
    division: RowDivision = field(default_factory=RowDivision)
    dropped_clients: Mapping[str, int] = field(default_factory=dict)
    dropped_columns: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, float] = field(default_factory=dict)
    invalid: Mapping[str, int] = field(default_factory=dict)
    other_categories: Mapping[str, int] = field(default_factory=dict)
    files_passed_over: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def count_training_rows(self) -> Labels:
        """Return each client's number of rows that the data does not have for testing, (K,)."""
        is_test = self.division.is_test
        clients = self.clients if is_test is None else self.clients[~is_test]
        return np.bincount(clients, minlength=len(self.client_names))

    def drop_small_clients(self, min_rows: int) -> "ClientTable":
        """Return the table without clients that have fewer than ``min_rows`` rows."""
        counts = self.count_training_rows()
        few = {
            name: int(count)
            for name, count in zip(self.client_names, counts, strict=True)
            if count < min_rows
        }
        if not few:
            return self
        is_kept = (counts >= min_rows)[self.clients]
        return replace(
            self,
            clients=np.unique(self.clients[is_kept], return_inverse=True)[1].astype(np.int64),
            client_names=tuple(name for name in self.client_names if name not in few),
            labels=self.labels[is_kept],
            numbers=self.numbers[is_kept],
            categories=self.categories[is_kept],
            division=self.division.select(is_kept),
            dropped_clients=few,
        )

    def drop_unseen_values(self, train_rows: Labels) -> tuple[Inputs, dict[str, tuple[Value, ...]]]:
        """Return the flags (n, q) without values that no training row has.

        Such a value is another value: it has no flag, or that of the other values if the column has
        one.

        Returns
        -------
        array of float32
        dict of str to tuple
            The columns with such values, and which.
        """
        unseen: Mask = self.categories[train_rows].max(axis=0, initial=0) == 0
        if not unseen.any():
            return self.categories, {}
        flags, first, found = self.categories.copy(), 0, {}
        for name, values in self.schema.categories.items():
            column = np.arange(first, first + len(values))
            first += len(values)
            lost = column[unseen[column]]
            if not len(lost):
                continue
            found[name] = tuple(values[i] for i in lost - column[0])
            is_lost = flags[:, lost].max(axis=1) > 0
            flags[:, lost] = 0
            if name in self.schema.others:
                other = column[values.index(self.schema.others[name])]
                flags[is_lost, other] = not unseen[other]
        return flags, found


def require_rows(table: ClientTable, min_samples: int | None) -> ClientTable:
    """Return the table without clients that have fewer rows than ``data.min_samples``.

    Raises
    ------
    DataError
        If no client is left, or one has a single row or only one of the two splits.
    """
    _check_split(table, "path", "test_path")
    remaining = table.drop_small_clients(min_samples or 1)
    counts = np.bincount(remaining.clients)
    if not len(counts):
        largest = max(table.count_training_rows())
        raise DataError(
            "data.min_samples must be at most the number of rows of the largest client, "
            f"{largest}, got {min_samples}"
        )
    single_row = [name for name, n in zip(remaining.client_names, counts, strict=True) if n == 1]
    _check_split(remaining, "test_path", "path")
    if single_row and remaining.division.is_test is None:
        raise DataError(
            "data.min_samples must be at least 2 where clients have a single row (one row is for "
            f"training, another for testing), got null; 2 leaves out {abbreviate_names(single_row)}"
        )
    return remaining


def _check_split(table: ClientTable, key: str, other: str) -> None:
    """Refuse clients that have rows of only one of ``data.path`` and ``data.test_path``."""
    is_test = table.division.is_test
    if is_test is None:
        return
    rows = is_test if key == "test_path" else ~is_test
    counts = np.bincount(table.clients[rows], minlength=len(table.client_names))
    without = [table.client_names[client] for client in np.flatnonzero(counts == 0).tolist()]
    if without:
        raise DataError(
            f"data.{key} must have rows of each client of data.{other}, got none of "
            f"{abbreviate_names(without)}"
        )


def abbreviate_names(names: list[str] | tuple[str, ...]) -> str:
    """Join names with commas, at most ``MAX_NAMES`` of them."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
