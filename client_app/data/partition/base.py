"""Define the result of every partition."""

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

    Rows for validation are of the training set, and none of ``train``.
    """

    train: Rows
    test: Rows
    validation: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Partition(Sequence[ClientSplit]):
    """The shares of all clients, by client id from 0, without an object for each."""

    train: RowIndex
    test: RowIndex
    validation: RowIndex
    dropped_clients: Mapping[str, int] = field(default_factory=dict)
    """The clients that have fewer rows than were asked for, and how many they have."""

    @classmethod
    def from_splits(
        cls, splits: Sequence[ClientSplit], dropped_clients: Mapping[str, int] | None = None
    ) -> Self:
        """Return the shares in arrays."""
        return cls(
            RowIndex.from_mapping({k: share.train for k, share in enumerate(splits)}),
            RowIndex.from_mapping({k: share.test for k, share in enumerate(splits)}),
            RowIndex.from_mapping({k: share.validation for k, share in enumerate(splits)}),
            dropped_clients or {},
        )

    def with_validation(self, split: Callable[[int, Rows], tuple[Rows, Rows]]) -> Self:
        """Return the shares with a validation part of each training part.

        ``split`` returns, of a client's id and n, the positions in its n training rows of those to
        train on and of those to validate with.
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
    """Compare the training rows that clients of one size need with those there are.

    Raises
    ------
    SettingsError
        If there are fewer, or none for a client.
    """
    if not 0 < num_clients * samples_per_client <= num_train:
        raise SettingsError(
            "data.num_clients * data.samples_per_client must be at most the number of training "
            f"rows, {num_train}, got {num_clients} * {max(samples_per_client, 1)}"
        )


def group_rows_by_class(labels: Labels, rng: np.random.Generator) -> dict[int, Rows]:
    """Return the rows of each class that there is, in random order."""
    shuffled = rng.permutation(len(labels))
    return {int(c): shuffled[labels[shuffled] == c] for c in np.unique(labels)}


def partition_rows(partitioner: Any, rows: Rows, **columns: NDArray[Any]) -> list[Rows]:
    """Return the rows that a partitioner of ``flwr_datasets`` deals to each client.

    Parameters
    ----------
    partitioner : flwr_datasets.partitioner.Partitioner
        Deals positions among ``rows``.
    rows : array of int
        What to deal, (n,).
    **columns : array
        What the partitioner goes by, (n,) each.
    """
    from datasets import Dataset  # imported when asked for: it takes seconds to load

    partitioner.dataset = Dataset.from_dict({**columns, "row": rows})
    with warnings.catch_warnings():
        # Rows that are left over are what samples_per_client is for.
        warnings.filterwarnings("ignore", message="The sum of (the partition_|partition )sizes")
        return [
            partitioner.load_partition(client).with_format("numpy")[:]["row"]
            for client in range(partitioner.num_partitions)
        ]
