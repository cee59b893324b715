"""Define the result of a partition, and helpers of several partitions."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, overload

import numpy as np
from fedquorum.errors import SettingsError
from numpy.typing import NDArray

from client_app.data.base import Labels, RowIndex
from client_app.data.split import Rows

__all__ = [
    "ClientSplit",
    "Partition",
    "Rows",
    "check_rows",
    "group_rows_by_class",
    "partition_rows",
]


@dataclass(frozen=True)
class ClientSplit:
    """The rows of one client in the training and in the test set.

    Validation rows are rows of the training set that are not in ``train``.
    """

    train: Rows
    test: Rows
    validation: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Partition(Sequence[ClientSplit]):
    """The splits of all clients, by client id from 0, stored as flat arrays."""

    train: RowIndex
    test: RowIndex
    validation: RowIndex
    dropped_clients: Mapping[str, int] = field(default_factory=dict)
    """The clients with fewer rows than ``data.min_samples``, and their number of rows."""

    names: tuple[str, ...] | None = None
    """The names of the clients, by id, if the data names them."""

    @classmethod
    def from_splits(
        cls,
        splits: Sequence[ClientSplit],
        dropped_clients: Mapping[str, int] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Self:
        """Build a partition from the splits of all clients."""
        return cls(
            RowIndex.from_mapping({k: split.train for k, split in enumerate(splits)}),
            RowIndex.from_mapping({k: split.test for k, split in enumerate(splits)}),
            RowIndex.from_mapping({k: split.validation for k, split in enumerate(splits)}),
            dropped_clients or {},
            names,
        )

    def with_validation(self, split: Callable[[int, Rows], tuple[Rows, Rows]]) -> Self:
        """Return the partition with validation rows taken from the training rows.

        ``split`` takes a client's id and training rows. It returns the positions in these of the
        rows for training and of the rows for validation.
        """
        train, validation = {}, {}
        for client, rows in self.train.items():
            training, validating = split(client, rows)
            train[client], validation[client] = rows[training], rows[validating]
        return replace(
            self, train=RowIndex.from_mapping(train), validation=RowIndex.from_mapping(validation)
        )

    @overload
    def __getitem__(self, client: int) -> ClientSplit: ...

    @overload
    def __getitem__(self, client: slice) -> "list[ClientSplit]": ...

    def __getitem__(self, client: int | slice) -> "ClientSplit | list[ClientSplit]":
        if isinstance(client, slice):
            return [self[k] for k in range(len(self))[client]]
        if not -len(self) <= client < len(self):
            raise IndexError(client)
        k = client % len(self)
        return ClientSplit(self.train[k], self.test[k], self.validation[k])

    def __len__(self) -> int:
        return len(self.train)


def check_rows(num_clients: int, samples_per_client: int, num_train: int) -> None:
    """Check that there are enough training rows for clients of equal size.

    Raises
    ------
    SettingsError
        If there are too few, or a client would have none.
    """
    if not 0 < num_clients * samples_per_client <= num_train:
        raise SettingsError(
            "data.num_clients * data.samples_per_client must be at most the number of training "
            f"rows, {num_train}, got {num_clients} * {max(samples_per_client, 1)}"
        )


def group_rows_by_class(labels: Labels, rng: np.random.Generator) -> dict[int, Rows]:
    """Return the rows of each class that occurs, in random order."""
    shuffled = rng.permutation(len(labels))
    return {int(c): shuffled[labels[shuffled] == c] for c in np.unique(labels)}


def partition_rows(partitioner: Any, rows: Rows, **columns: NDArray[Any]) -> list[Rows]:
    """Return the rows that a partitioner of ``flwr_datasets`` assigns to each client.

    Parameters
    ----------
    partitioner : flwr_datasets.partitioner.Partitioner
    rows : array of int
        The rows to assign, (n,).
    **columns : array
        The columns that the partitioner uses, (n,) each.
    """
    from datasets import Dataset  # imported on demand: it takes seconds to load

    partitioner.dataset = Dataset.from_dict({**columns, "row": rows})
    with warnings.catch_warnings():
        # With samples_per_client, unassigned rows are intended.
        warnings.filterwarnings("ignore", message="The sum of (the partition_|partition )sizes")
        return [
            partitioner.load_partition(client).with_format("numpy")[:]["row"]
            for client in range(partitioner.num_partitions)
        ]
